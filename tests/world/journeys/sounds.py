"""Voice activity and wake words, with speech that espeak-ng makes: silero-vad, pymicro-wakeword, pyopen-wakeword."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import wave
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import MagicMock

import numpy as np
from scipy.signal import resample_poly

from gateway.common.domain.tensor import Array
from tests.world.journeys import distances
from tests.world.journeys.record import Ask, Bound, Bounds, Journey, imported_from, inside, replaced, with_task

RATE_HZ = 16_000
CHUNK, CONTEXT = 512, 64
"""Samples of one run of silero-vad, and those before it that it sees again."""
SENTENCES = (
    "The pump in hall four stopped at five past five.",
    "Please close the gate before you leave the building.",
    "Batch thirty one of ninety weighs twelve kilograms.",
)
VOICES = ("en-us", "en-gb", "en-us+f3", "de", "fr")
MEL_STEPS, MELS = 3, 40


def _speaker() -> str:
    program = shutil.which("espeak-ng")
    assert program, "espeak-ng is needed: make debian-world installs it"
    return program


@cache
def spoken(text: str, voice: str = "en-us", words_a_minute: int = 150) -> Array:
    """Return speech INT16 at 16 kHz."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "speech.wav"
        subprocess.run([_speaker(), "-v", voice, "-s", str(words_a_minute), "-w", file, text], check=True)
        with wave.open(str(file)) as sound:
            samples = np.frombuffer(sound.readframes(sound.getnframes()), np.int16)
            rate = sound.getframerate()
    return np.clip(resample_poly(samples.astype(np.float64), RATE_HZ, rate), -32768, 32767).astype(np.int16)


def pause(seconds: float, loudness: float = 20.0, seed: int = 0) -> Array:
    """Return quiet noise INT16."""
    noise = np.random.default_rng(seed).normal(0, loudness, round(seconds * RATE_HZ))
    return noise.astype(np.int16)


def talk(seed: int = 0) -> Array:
    """Return sentences with pauses between them, in several voices, and loud noise at the end."""
    parts = []
    for number, sentence in enumerate(SENTENCES):
        parts += [pause(1.0, seed=seed + number), spoken(sentence, VOICES[(number + seed) % len(VOICES)])]
    return np.concatenate([*parts, pause(1.0, seed=seed + 9), pause(1.0, 2000.0, seed=seed + 10)])


# ---- voice activity -------------------------------------------------------------------------------------------------
def heard(packages: Path, seed: int = 0) -> list[Ask]:
    """Return chunks of a talk with the probability of speech by the package's own code for whole recordings."""
    with imported_from(packages, torch=MagicMock(name="torch")):  # for reading files, which is not used here
        sequence = importlib.import_module("silero_vad.sequence_vad")
    sound = talk(seed).astype(np.float32) / 32768
    answers = sequence.SileroVADSequence(str(packages / "silero_vad/data/silero_vad_16k_sequence.onnx")).audio_forward(
        sound
    )
    chunks = np.concatenate(list(sequence.frame_blocks(sound, CHUNK, CONTEXT, len(answers))))
    state = np.zeros((2, 1, 128), np.float32)
    return [
        Ask(
            {"input": chunk[np.newaxis], "state": state, "sr": np.array(RATE_HZ)},
            float(answer),
            carried={"state": "stateN"} if number else {},
        )
        for number, (chunk, answer) in enumerate(zip(chunks, answers, strict=True))
    ]


def chunks(packages: Path, folder: Path) -> None:
    """Write chunks of another talk, each with the state before it."""
    onnxruntime: Any = importlib.import_module("onnxruntime")
    session = onnxruntime.InferenceSession(str(packages / "silero_vad/data/silero_vad_16k_op15.onnx"))
    asks = heard(packages, seed=3)
    states = [asks[0].tensors["state"]]
    for ask in asks:
        states.append(session.run(["stateN"], ask.tensors | {"state": states[-1]})[0])
    inputs = np.stack([ask.tensors["input"] for ask in asks])
    np.savez(folder / "chunks.npz", input=inputs, state=np.stack(states[:-1]), sr=np.full(len(asks), RATE_HZ))


def _spoken_or_not(text: str) -> str:
    """Correct the manifest: a task for the probability, whose shape is that of one recording."""
    return with_task("audio-classification", output="output")(replaced(("shape = [-1, 1]", "shape = [1, 1]"))(text))


# ---- wake words -----------------------------------------------------------------------------------------------------
def calls() -> Array:
    """Return a recording in which the wake word is called by several voices among other speech."""
    parts = [pause(1.0)]
    for number, voice in enumerate(VOICES[:3]):
        parts += [spoken("okay nabu", voice), pause(1.0, seed=number), spoken(SENTENCES[number], voice), pause(0.5)]
    return np.concatenate(parts)


def woken_micro(packages: Path) -> list[Ask]:
    """Return features of sound, by the package's front end, with the probability of the package's own runtime."""
    with imported_from(packages):
        module: Any = importlib.import_module("pymicro_wakeword")
    model = module.MicroWakeWord.from_builtin(module.Model.OKAY_NABU)
    model._probabilities = _LastOnly()
    model.sliding_window_size = 1
    features = [each.astype(np.float32) for each in module.MicroWakeWordFeatures().process_streaming(calls().tobytes())]
    features = features[: len(features) // MEL_STEPS * MEL_STEPS]
    answers = [model.process_streaming_prob(each) for each in features][MEL_STEPS - 1 :: MEL_STEPS]
    name = "serving_default_input_audio:0"
    inputs = [np.concatenate(features[at : at + MEL_STEPS], axis=1) for at in range(0, len(features), MEL_STEPS)]
    return [Ask({name: each}, answer) for each, answer in zip(inputs, answers, strict=True)]


class _LastOnly(list[float]):
    """The last probability alone: the package's mean over a window is not the model's."""

    def append(self, value: float) -> None:
        self[:] = [value]


OPEN_CHUNK = 1280
"""Samples that the package takes at once: 80 ms."""
OPEN_INPUT = "serving_default_onnx_tf__tf_Flatten_0_c338b170:0"


def woken_open(packages: Path) -> list[Ask]:
    """Return embeddings of sound, by the package's front end, with the probability of the package's own runtime."""
    with imported_from(packages):
        module: Any = importlib.import_module("pyopen_wakeword")
    model = module.OpenWakeWord.from_builtin(module.Model.OKAY_NABU)
    front, windows, asks = module.OpenWakeWordFeatures.from_builtin(), [], list[Ask]()
    sound = calls()
    for chunk in (sound[at : at + OPEN_CHUNK] for at in range(0, len(sound), OPEN_CHUNK)):
        for embedding in front.process_streaming(chunk.tobytes()):
            windows.append(embedding[0, 0].copy())
            for answer in model.process_streaming(embedding):
                window = np.concatenate(windows)[-model.input_windows :]
                asks.append(Ask({OPEN_INPUT: window[np.newaxis]}, float(answer)))
    return asks


def embeddings(packages: Path, folder: Path) -> None:
    """Write embeddings of the same recordings."""
    inputs = [ask.tensors[OPEN_INPUT] for ask in woken_open(packages)]
    np.savez(folder / "embeddings.npz", **{OPEN_INPUT: np.concatenate(inputs)})


JOURNEYS = (
    Journey(
        "silero-vad",
        "silero-vad",
        inside("silero_vad/data/silero_vad_16k_op15.onnx"),
        heard,
        "chunks: probability of speech",
        Bounds(Bound(1e-4), quantized=Bound(0.1, 0.9)),
        labels=lambda _: ["silence", "speech"],
        options=("--yes",),
        edit=_spoken_or_not,
        compare=distances.score_of("speech"),
        calibration=chunks,
    ),
    Journey(
        "micro-wake-word",
        "pymicro-wakeword",
        inside("pymicro_wakeword/models/okay_nabu.tflite"),
        woken_micro,
        "steps of 30 ms: probability of the wake word",
        Bounds(Bound(0.05)),
        labels=lambda _: ["other", "okay nabu"],
        options=("--yes",),
        edit=with_task("keyword-spotting"),
        compare=distances.score_of("okay nabu"),
        unquantized="it is INT8 already",
        settles=100,
    ),
    Journey(
        "open-wake-word",
        "pyopen-wakeword",
        inside("pyopen_wakeword/models/okay_nabu.tflite"),
        woken_open,
        "windows of 80 ms: probability of the wake word",
        Bounds(Bound(1e-5), quantized=Bound(0.1, 0.9)),
        labels=lambda _: ["other", "okay nabu"],
        options=("--yes",),
        edit=with_task("keyword-spotting"),
        compare=distances.score_of("okay nabu"),
        calibration=embeddings,
    ),
)
