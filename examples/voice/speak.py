"""Print speech with pauses as 16-bit samples at 16 kHz.

python3 speak.py 'okay nabu' 'turn on the light'
"""

import subprocess
import sys

import numpy as np

SPOKEN_PER_S, PER_S, HEADER_BYTES = 22_050, 16_000, 44
chance = np.random.default_rng(0)


def pause(seconds: float) -> np.ndarray:
    """Return quiet noise."""
    return chance.normal(0, 20, round(seconds * PER_S))


def spoken(text: str) -> np.ndarray:
    """Return what espeak-ng says."""
    wave = subprocess.run(
        ["/usr/bin/espeak-ng", "-v", "en-us", "--stdout", text], stdout=subprocess.PIPE, check=True
    ).stdout
    samples = np.frombuffer(wave[HEADER_BYTES:], np.int16)
    return np.interp(np.arange(0, len(samples), SPOKEN_PER_S / PER_S), np.arange(len(samples)), samples)


parts = [pause(3.5)]
for said in sys.argv[1:]:
    parts += [spoken(said), pause(0.4 if said == "okay nabu" else 3.0)]
sys.stdout.buffer.write(np.concatenate(parts).astype(np.int16).tobytes())
