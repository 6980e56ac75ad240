"""Simulated accelerator: a runtime whose device is a file, which is pulled, hangs, spoils answers, or does not open.

`python -m tests.simulators.accelerator` is `edge-gateway` on a machine with a Hailo-8. The product has no hook for it:
the folder `accelerator_path` on PYTHONPATH adds the runtime's row to the table in every process, and this module
replaces the probe of the machine in the daemon. Models run on the CPU by ONNX Runtime.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gateway.common.domain.errors import VariantError
from gateway.common.domain.inventory import CPU, Accelerator, Inventory, Rung
from gateway.common.domain.manifest import ModelManifest, Variant
from gateway.common.domain.tensor import Tensors
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.runtimes.onnx import OnnxRuntime

ROOT = Path(__file__).resolve().parents[2]
NODE = "SIMULATED_NODE"
"""Environment variable: path of the device's node."""
HANG_S = 0.02
"""Time between two looks of a run that hangs at whether the device does."""
SEEN = 256
"""Most inputs that a session remembers."""
MANIFEST = ROOT / "models/activity/1/manifest.toml"
SECOND = """
[[variant]]
name = "chip"
runtime = "simulated"
precision = "fp32"
accuracy = 1.0
accelerators = ["hailo-8"]
artifacts = [
    ARTIFACT
]

[variant.bind]
motion = {name = "motion", layout = "NLC"}
scores = {name = "scores"}
"""


@dataclass(frozen=True, slots=True)
class Device:
    """The device at `node`, as a test controls it."""

    node: Path

    @property
    def environ(self) -> Mapping[str, str]:
        """The environment of a daemon that has the device."""
        path = f"{Path(__file__).parent / 'accelerator_path'}{os.pathsep}{ROOT}"
        return {NODE: str(self.node), "PYTHONPATH": path}

    def does(self, deed: str = "") -> None:
        """Let it behave: "" works, "hang", "nan", "shape", "closed" (does not open), or fail with these words."""
        self.node.parent.mkdir(exist_ok=True)
        new = self.node.with_name(f".{self.node.name}")
        new.write_text(deed)
        new.replace(self.node)

    def pull(self) -> None:
        """Take the device away."""
        self.node.unlink()


class SimulatedRuntime(OnnxRuntime):
    """ONNX Runtime on the CPU, behind a device that may fail."""

    name = "simulated"

    def devices(self, plugin: str = "") -> tuple[str, ...]:
        return ("hailo-8",)

    def open(self, manifest: ModelManifest, variant: Variant, files: Path, budget: SessionBudget) -> Any:
        if (deed := _deed()) == "closed":
            raise VariantError("the chip does not answer (status 26)")
        _check(deed)
        return SimulatedSession(super().open(manifest, variant, files, replace(budget, accelerator=CPU, options={})))


class SimulatedSession:
    """Session on the device. It cannot be cancelled, as those of most drivers.

    It answers inputs that it has seen from memory, so that its trial finds it faster than the CPU.
    """

    lends = False

    def __init__(self, session: Any) -> None:
        self._session = session
        self._seen: dict[bytes, Tensors] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, inputs: Tensors) -> Tensors:
        deed = _deed()
        while deed == "hang":
            time.sleep(HANG_S)
            deed = _deed()
        _check(deed)
        key = b"".join(array.tobytes() for array in inputs.values())
        if key not in self._seen:
            if len(self._seen) >= SEEN:
                self._seen.clear()
            self._seen[key] = {name: array.copy() for name, array in self._session.run(inputs).items()}
        outputs = {name: array.copy() for name, array in self._seen[key].items()}
        if deed == "nan":
            return {name: np.full_like(array, np.nan) for name, array in outputs.items()}
        if deed == "shape":
            return {name: array[..., :-1] for name, array in outputs.items()}
        return outputs

    def cancel(self) -> bool:
        return False


def _deed() -> str:
    try:
        return Path(os.environ[NODE]).read_text()
    except FileNotFoundError:
        raise VariantError("the chip: [Errno 19] No such device") from None


def _check(deed: str) -> None:
    if deed not in {"", "hang", "nan", "shape", "closed"}:
        raise VariantError(deed)


def model(folder: Path, *others: str, name: str = "activity", version: str = "1") -> Path:
    """Write the model `activity` with a variant for the device and these `others`; return its folder."""
    target = folder / name / version
    artifact = next(line for line in MANIFEST.read_text().splitlines() if "onnx-fp32/model.onnx" in line)
    shutil.copytree(MANIFEST.parent, target)
    head, *variants = MANIFEST.read_text().split("\n[[variant]]\n")
    head = head.replace('name = "activity"', f'name = "{name}"', 1)
    head = head.replace('version = "1"', f'version = "{version}"', 1)
    head = head.replace("[golden.tolerance]", "[golden.tolerance]\nsimulated = {agreement = 0.975, mean_abs = 0.006}")
    kept = [each for each in variants if each.startswith(tuple(f'name = "{one}"' for one in others))]
    (target / "manifest.toml").write_text(
        "\n[[variant]]\n".join([head + SECOND.replace("ARTIFACT", artifact.strip()), *kept])
    )
    return target


def _probe(_root: Path, *, settings: Any = None) -> Inventory:
    """Return this machine with the device, which is there at the start."""
    from gateway.serving.hardware.probe import probe

    rungs = (Rung("bus", True), Rung("node", True))
    chip = Accelerator("hailo-8", "simulated chip", os.environ[NODE], rungs)
    return replace(probe(settings=settings), accelerators=(chip,))


def main() -> None:
    """Run `edge-gateway` with the device."""
    from gateway.serving import assembly

    assembly.probe, assembly.climb = _probe, lambda inventory, *_: inventory  # type: ignore[assignment]
    from gateway.cli import main as gateway

    gateway()


if __name__ == "__main__":
    main()
