"""Runtime of a language model that writes numbered words, so many and so slowly as a request's parameters say.

`given_to(folder)` returns variables with which every process of the gateway knows it, as if it were in the table.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import Artifact, ModelManifest, Variant
from gateway.common.domain.tensor import Array, Tensor, Tensors
from gateway.common.domain.text_model import TEXT_INPUTS, TEXT_OUTPUTS
from gateway.common.domain.verdict import SessionBudget, Signature
from gateway.serving.domain.infer import InferRequest
from gateway.serving.domain.ports import Part, RowProof
from tests.simulators.session import Gate, SimulatedRuntime

ROOT = Path(__file__).resolve().parents[2]
SITE = """
from gateway.common.domain import runtimes
packages = (runtimes.Package("numpy", ("numpy",)),)
spec = runtimes.RuntimeSpec("writer", "tests.simulators.writer:WriterRuntime", packages, "")
runtimes.RUNTIMES = {**runtimes.RUNTIMES, "writer": spec}
"""
MANIFEST = """
schema = 1
name = "writer"
version = "1"
batch = false
%s
[[variant]]
name = "writer"
runtime = "writer"
precision = "fp32"
artifacts = [{path = "model.writer", sha256 = "%s", bytes = 1}]
"""
CONTENT = b"1"
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MODEL = ModelManifest(
    "writer",
    "1",
    TEXT_INPUTS,
    TEXT_OUTPUTS,
    (Variant("writer", "writer", "fp32", (Artifact("model.writer", SHA256, len(CONTENT)),)),),
    batch=False,
)


def given_to(folder: Path) -> dict[str, str]:
    """Return the variables of a process that knows the runtime."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(SITE)
    return {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def write_release(models: Path) -> ModelManifest:
    """Write the release of the model into a folder of models. Return its manifest."""
    folder, text = models / "writer" / "1", ""
    folder.mkdir(parents=True)
    (folder / "model.writer").write_bytes(CONTENT)
    for role, specs in (("input", TEXT_INPUTS), ("output", TEXT_OUTPUTS)):
        for spec in specs:
            text += f'[[{role}]]\nname = "{spec.name}"\ndatatype = "{spec.datatype.label}"\nshape = [1]\n'
            default = spec.default.decode() if isinstance(spec.default, bytes) else spec.default
            text += "" if default is None else f"default = {json.dumps(default)}\n"
    (folder / "manifest.toml").write_text(MANIFEST % (text, SHA256))
    return MODEL


def text(content: str | bytes) -> Array:
    """Return one text as an array."""
    return np.array([content.encode() if isinstance(content, str) else content], object)


def inputs(prompt: str = "w", **parameters: Any) -> Tensors:
    """Return the inputs of a run."""
    given = {spec.name: np.full((1,), spec.default, spec.datatype.dtype) for spec in TEXT_INPUTS}
    return given | {"text_input": text(prompt), "sampling_parameters": text(json.dumps(parameters))}


def asking(prompt: str = "w", *, caller: str = "", in_parts: bool = False, **parameters: Any) -> InferRequest:
    """Return a request for `max_tokens` words."""
    datatypes = {spec.name: spec.datatype for spec in TEXT_INPUTS}
    tensors = {name: Tensor(datatypes[name], array) for name, array in inputs(prompt, **parameters).items()}
    return InferRequest("writer", tensors, caller=caller, in_parts=in_parts)


def words(count: int, prompt: str = "w") -> str:
    """Return what the model writes."""
    return "".join(f"{prompt}{number} " for number in range(count))


class WriterSession:
    """Session that writes `max_tokens` words of its prompt, with `pause_s` before each, or when `gate` lets it.

    With `crash_after`, `hang_after` or `fail_after` it does so after that many words; `part_bytes` makes a word as
    long. `steps` counts words.
    """

    lends, in_parts, remarks, rows = False, True, (), None

    def __init__(self) -> None:
        self.peers: list[WriterSession] = []
        self.gate, self.steps, self.closed, self.cancels, self.begun = Gate(), 0, 0, 0, 0
        self.ends = 0
        """Runs that end after a word because their process ended for another's run."""

    def run(self, inputs: Tensors) -> Tensors:
        return self.run_in_parts(inputs, lambda _: True)

    def run_in_parts(self, inputs: Tensors, part: Part) -> Tensors:
        prompt, asked = inputs["text_input"][0].decode(), json.loads(inputs["sampling_parameters"][0])
        self.begun += 1
        if prompt == "bad":
            raise VariantError("the request: there is nothing to say")
        wanted, written, finish = asked.get("max_tokens", 3), "", "length"
        goes_on = part({})
        for number in range(wanted):
            if not goes_on:
                finish = "cancelled"
                break
            self.gate.wait()
            time.sleep(asked.get("pause_s", 0))
            _misbehave(asked, number)
            word = f"{prompt}{number} ".ljust(asked.get("part_bytes", 0))
            written += word
            self.steps += 1
            goes_on = part({"text_output": text(word)})
            if self.ends:
                self.ends -= 1
                raise VariantError("its worker process died by SIGSEGV", transient=True)
        counts = {"num_input_tokens": 1, "num_output_tokens": len(written.split())}
        return {
            "text_output": text(written),
            "finish_reason": text(finish),
            "response": text(""),
            **{name: np.array([count], np.uint32) for name, count in counts.items()},
        }

    def cancel(self) -> bool:
        self.cancels += 1
        return False

    def widen(self, runs: int) -> None:
        while len(self.peers) < runs - 1:
            self.peers.append(type(self)())

    def close(self) -> None:
        self.closed += 1


def _misbehave(asked: dict[str, Any], number: int) -> None:
    if number == asked.get("crash_after"):
        os.abort()
    if number == asked.get("fail_after"):
        raise VariantError("the engine failed")
    while number == asked.get("hang_after"):
        time.sleep(1)


class WriterRuntime(SimulatedRuntime):
    """Runtime for .writer files, in the table and in rigs."""

    name = "writer"

    def devices(self, plugin: str = "") -> Sequence[str]:
        return ("CPU",)

    def open(self, manifest: ModelManifest, variant: Variant, files: Path, budget: SessionBudget) -> Any:
        self.opened.append(variant.name)
        session = WriterSession()
        self.sessions.append(session)  # type: ignore[arg-type]
        return session

    def inspect(self, file: Path) -> Signature:
        return Signature(TEXT_INPUTS, TEXT_OUTPUTS)

    def operators(self, variant: Variant, files: Path) -> frozenset[str]:
        return frozenset()

    def prove_rows(self, variant: Variant, files: Path, tensors: object) -> RowProof:
        return RowProof()
