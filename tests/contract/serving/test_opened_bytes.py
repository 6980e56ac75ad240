"""Writes to a release's folder while it is opened: only the bytes that its manifest names are served."""

from __future__ import annotations

import hashlib
import io
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import openvino
import pytest
from onnx import helper, numpy_helper

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import Artifact, ModelManifest, TensorSpec, Variant
from gateway.common.domain.manifest_toml import read_manifest
from gateway.common.domain.tensor import DATATYPES, Array
from gateway.common.domain.verdict import SessionBudget
from gateway.common.store import private_copies
from gateway.serving.assembly import _open_session
from gateway.serving.runtimes.catalog import get_runtime

ROWS, WIDTH = -1, 64
INPUT = np.ones((1, WIDTH), np.float32)
SPEC = DATATYPES["FP32"]
OPENINGS, MANY = 30, 1000
"""Openings of each kind: in `make test`, and in `make test-long`."""
MODELS = Path(__file__).parents[3] / "models" / "meter-reader" / "1"


@dataclass
class Model:
    """A variant whose files `swap` exchanges, and its answer to INPUT as signed."""

    manifest: ModelManifest
    folder: Path
    evil: dict[str, bytes]
    inputs: dict[str, Array]

    def __post_init__(self) -> None:
        self.good = {path: (self.folder / path).read_bytes() for path in self.evil}
        self.answer = self.run()

    def run(self) -> Array:
        """Open as the daemon does, and run once. Raises VariantError."""
        session = _open_session(self.manifest, self.manifest.variants[0], self.folder, SessionBudget(threads=1))
        try:
            (answer,) = (array.copy() for array in session.run(self.inputs).values())
        finally:
            session.close()
        return answer

    @contextmanager
    def swapping(self) -> Iterator[threading.Event]:
        """Exchange the files again and again, by rename and in place, until the end. Yields what is set once it was."""
        ended, begun = threading.Event(), threading.Event()

        def swap() -> None:
            while not ended.is_set():
                for contents in (self.evil, self.good):
                    for path, content in contents.items():
                        self._exchange(path, content, in_place=begun.is_set())
                begun.set()

        thread = threading.Thread(target=swap)
        thread.start()
        try:
            begun.wait()
            yield ended
        finally:
            ended.set()
            thread.join()

    def _exchange(self, path: str, content: bytes, *, in_place: bool) -> None:
        if in_place:
            with (self.folder / path).open("r+b") as file:
                file.write(content)
                file.truncate()
        staged = self.folder / "staged"
        staged.write_bytes(content)
        staged.rename(self.folder / path)


def manifest(runtime: str, folder: Path, paths: list[str], inputs: tuple, outputs: tuple) -> ModelManifest:
    contents = {path: (folder / path).read_bytes() for path in paths}
    artifacts = tuple(
        Artifact(path, hashlib.sha256(content).hexdigest(), len(content)) for path, content in contents.items()
    )
    variant = Variant("only", runtime, "fp32", artifacts)
    return ModelManifest("swapped", "1", inputs, outputs, (variant,))


def graph(weight: float) -> onnx.ModelProto:
    """Return y = x · W, every weight the same."""
    values = numpy_helper.from_array(np.full((WIDTH, WIDTH), weight, np.float32), "w")
    shape = [None, WIDTH]
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in "xy"]
    made = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ports[:1], ports[1:], [values])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def linear(runtime: str, folder: Path, save: Callable[[float, Path], list[str]]) -> Model:
    """Return a model of weights 1, exchanged for one of weights 2."""
    (folder / "evil").mkdir()
    paths = save(1.0, folder)
    save(2.0, folder / "evil")
    evil = {path: (folder / "evil" / path).read_bytes() for path in paths}
    ports = [(TensorSpec(name, SPEC, (ROWS, WIDTH)),) for name in "xy"]
    made = manifest(runtime, folder, paths, *ports)
    return Model(made, folder, {p: c for p, c in evil.items() if c != (folder / p).read_bytes()}, {"x": INPUT})


def save_onnx(weight: float, folder: Path) -> list[str]:
    onnx.save(graph(weight), str(folder / "m.onnx"))
    return ["m.onnx"]


def save_external(weight: float, folder: Path) -> list[str]:
    onnx.save(graph(weight), str(folder / "m.onnx"), save_as_external_data=True, location="m.data", size_threshold=0)
    return ["m.onnx", "m.data"]


def save_ir(weight: float, folder: Path) -> list[str]:
    onnx.save(graph(weight), str(folder / "source.onnx"))
    openvino.save_model(
        openvino.Core().read_model(str(folder / "source.onnx")), str(folder / "m.xml"), compress_to_fp16=False
    )
    return ["m.xml", "m.bin"]


def litert(folder: Path) -> Model:
    """Return a shipped model, exchanged for one with other weights."""
    read = read_manifest((MODELS / "manifest.toml").read_text(), "manifest.toml")
    variant = next(one for one in read.variants if one.name == "litert-fp32")
    (path,) = [artifact.path for artifact in variant.artifacts]
    content = bytearray((MODELS / path).read_bytes())
    (folder / path).parent.mkdir()
    (folder / path).write_bytes(content)
    half = len(content) // 2
    content[half : half + 4096] = bytes(4096)
    inputs = {"image": np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 1, 8, 8)}
    return Model(replace(read, variants=(variant,), golden=None), folder, {path: bytes(content)}, inputs)


def reference(folder: Path) -> Model:
    """Return the model of `litert` for the runtime that is cheapest to open: a weight lies where its bytes lie."""
    read = read_manifest((MODELS / "manifest.toml").read_text(), "manifest.toml")
    variant = next(one for one in read.variants if one.runtime == "reference")
    (path,) = [artifact.path for artifact in variant.artifacts]
    (folder / path).parent.mkdir()
    (folder / path).write_bytes((MODELS / path).read_bytes())
    with np.load(folder / path) as arrays:
        halved = {name: array / 2 if array.dtype.kind == "f" else array for name, array in arrays.items()}
    changed = io.BytesIO()
    np.savez(changed, **halved)
    inputs = {"image": np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 1, 8, 8)}
    return Model(replace(read, variants=(variant,), golden=None), folder, {path: changed.getvalue()}, inputs)


KINDS: dict[str, Callable[[Path], Model]] = {
    "onnx": lambda folder: linear("onnx", folder, save_onnx),
    "onnx with external data": lambda folder: linear("onnx", folder, save_external),
    "openvino": lambda folder: linear("openvino", folder, save_ir),
    "litert": litert,
    "reference": reference,
}


@pytest.mark.parametrize("openings", [OPENINGS, pytest.param(MANY, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_exchanged_while_it_is_opened_is_never_served(kind: str, tmp_path: Path, openings: int) -> None:
    model = KINDS[kind](tmp_path)
    outcomes = Counter[str]()
    with model.swapping():
        while outcomes.total() < openings or not outcomes["refused"]:
            try:
                answer = model.run()
            except VariantError as error:
                assert "changed since it was read" in str(error)  # noqa: PT017  the other outcome is as good
                outcomes["refused"] += 1
            else:
                np.testing.assert_array_equal(answer, model.answer)
                outcomes["served"] += 1
    assert model.run().tobytes() == model.answer.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_exchanged_after_its_digest_was_taken_is_never_served(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment that an attacker would wait for: between the check and the runtime's own opening."""
    model = KINDS[kind](tmp_path)
    check = private_copies._copy

    def then_exchange(artifact: Artifact, source: Path, copy: Path) -> None:
        check(artifact, source, copy)
        source.write_bytes(model.evil.get(artifact.path, source.read_bytes()))

    monkeypatch.setattr(private_copies, "_copy", then_exchange)
    np.testing.assert_array_equal(model.run(), model.answer)
    monkeypatch.setattr(private_copies, "_copy", check)
    with pytest.raises(VariantError, match="changed since it was read; reload the models"):
        model.run()


@pytest.mark.parametrize("kind", KINDS)
def test_the_exchanged_bytes_would_have_answered_otherwise(kind: str, tmp_path: Path) -> None:
    """The tests above would see this if the runtime opened the folder itself."""
    model = KINDS[kind](tmp_path)
    for path, content in model.evil.items():
        (model.folder / path).write_bytes(content)
    variant = model.manifest.variants[0]
    session = get_runtime(variant.runtime).open(model.manifest, variant, model.folder, SessionBudget(threads=1))
    (answer,) = session.run(model.inputs).values()
    assert not np.array_equal(answer, model.answer)


def test_a_golden_set_that_changed_refuses_the_model(tmp_path: Path) -> None:
    """Its first row is the known input by which failures are told apart."""
    read = read_manifest((MODELS / "manifest.toml").read_text(), "manifest.toml")
    model = reference(tmp_path)
    model.manifest = replace(model.manifest, golden=read.golden)
    (tmp_path / "golden.npz").write_bytes((MODELS / "golden.npz").read_bytes())
    np.testing.assert_array_equal(model.run(), model.answer)
    (tmp_path / "golden.npz").write_bytes(b"another")
    with pytest.raises(VariantError, match=r"golden\.npz changed since it was read"):
        model.run()
