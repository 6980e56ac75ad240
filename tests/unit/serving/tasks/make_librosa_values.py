"""Record what librosa computes, for test_log_mel: librosa itself needs 200 MB of compilers.

Run once in an environment with librosa: `python tests/unit/serving/tasks/make_librosa_values.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

RATE_HZ = 16_000
FILE = Path(__file__).with_name("librosa_values.npz")


def recording(samples: int = 3_000) -> np.ndarray:
    """Return a chirp that decays, with a tone that rises: the same on every machine."""
    places = np.arange(samples)
    chirp = np.sin(2 * np.pi * (200 + 0.5 * places) * places / RATE_HZ) * np.exp(-places / 2_000)
    return (0.5 * chirp + 0.05 * np.sin(0.7 * places**1.5)).astype(np.float32)


def main() -> None:
    """Write the values that librosa computes to FILE."""
    import librosa

    signal, frames_hz = recording(), RATE_HZ / 160
    slaney = {"sr": RATE_HZ, "n_fft": 400, "hop_length": 160, "n_mels": 20}
    whisper = librosa.feature.melspectrogram(y=signal, pad_mode="reflect", **slaney)
    energies = librosa.feature.melspectrogram(y=signal, pad_mode="constant", power=1.0, **slaney)
    time = 0.4 * frames_hz
    rate = (np.sqrt(1 + 4 * time**2) - 1) / (2 * time**2)
    start = (1 - rate) * energies[:, :1] * 2**31  # the state of a filter that was at the first frame's level before
    odd = {**slaney, "n_fft": 512, "win_length": 399, "hop_length": 150, "htk": True, "norm": None, "center": False}
    np.savez_compressed(
        FILE,
        version=librosa.__version__,
        bands_slaney=librosa.filters.mel(sr=RATE_HZ, n_fft=512, n_mels=20, fmin=50.0, fmax=7_000.0),
        bands_htk=librosa.filters.mel(sr=RATE_HZ, n_fft=512, n_mels=20, htk=True, norm=None),
        reflect=whisper.T,
        decibel=librosa.power_to_db(whisper, amin=1e-10, top_db=60.0, ref=np.max).T,
        magnitude=energies.T,
        magnitude_db=librosa.amplitude_to_db(energies, amin=1e-5, top_db=None).T,
        pcen=librosa.pcen(energies * 2**31, sr=RATE_HZ, hop_length=160, zi=start).T,
        hamming=librosa.feature.melspectrogram(
            y=signal, window="hamming", pad_mode="constant", **{**odd, "center": True}
        ).T,
    )


if __name__ == "__main__":
    main()
