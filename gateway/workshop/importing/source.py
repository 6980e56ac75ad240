"""Content of a source as values: its files, the text of its documents, and the description of its model files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.verdict import Signature
from gateway.serving.domain.onnx_header import OnnxHeader

QUANTIZED = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinear", "ConvInteger", "MatMulInteger")
"""Beginnings of the names of ONNX operators that compute in 8 bits."""
_FLOATS: Mapping[int, str] = {1: "fp32", 10: "fp16", 16: "bf16"}
"""Precision by TensorProto.DataType."""


@dataclass(frozen=True, slots=True)
class SourceModel:
    """Model file of a source.

    `others`: files to which it refers, relative to the source. `problem` says why its runtime does not open it; then
    it has no `signature`. `header` and `operators` are those of an ONNX file.
    """

    path: str
    runtime: str
    signature: Signature | None = None
    others: tuple[str, ...] = ()
    header: OnnxHeader = field(default_factory=OnnxHeader)
    operators: frozenset[str] = frozenset()
    problem: str = ""

    @property
    def precision(self) -> str:
        """Return the precision of most weights; "" if the file does not tell it."""
        if any(name.rpartition("::")[2].startswith(QUANTIZED) for name in self.operators):
            return "int8"
        weights = {_FLOATS[kind]: count for kind, count in self.header.weights.items() if kind in _FLOATS}
        return max(weights, key=lambda precision: weights[precision], default="fp32" if self.runtime == "onnx" else "")

    def tensors(self) -> Signature:
        """Return the signature. Raises ConfigurationError with the reason if there is none, or a tensor is empty."""
        if self.signature is None:
            raise ConfigurationError(self.problem or "cannot be opened", file=self.path)
        for spec in (*self.signature.inputs, *self.signature.outputs):
            if 0 in spec.shape:
                problem = f"tensor {spec.name!r} has the shape {list(spec.shape)}, which holds nothing; export it again"
                raise ConfigurationError(problem, file=self.path)
        return self.signature


@dataclass(frozen=True, slots=True)
class Documents:
    """A source. All paths are relative to its folder; `name` is that of the folder, or of the file without its suffix.

    `texts`: content of documents. `unread`: documents without text, each with the reason.
    """

    name: str
    files: frozenset[str]
    texts: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, SourceModel] = field(default_factory=dict)

    def text(self, path: str) -> str:
        """Return the text of a document. Raises ConfigurationError if it is missing or was not read."""
        if path in self.texts:
            return self.texts[path]
        if path in self.unread:
            raise ConfigurationError(self.unread[path], file=path)
        raise missing(path)

    def within(self, folder: str) -> tuple[str, ...]:
        """Return the names of the files directly in `folder` ("": the source itself)."""
        inside = "" if folder in {"", "."} else f"{folder}/"
        return tuple(
            sorted(
                path.removeprefix(inside)
                for path in self.files
                if path.startswith(inside) and "/" not in path.removeprefix(inside)
            )
        )

    def folders(self, folder: str = "") -> tuple[str, ...]:
        """Return the names of the folders directly in `folder` that hold files."""
        inside = "" if folder in {"", "."} else f"{folder}/"
        below = (path.removeprefix(inside) for path in self.files if path.startswith(inside))
        return tuple(sorted({path.partition("/")[0] for path in below if "/" in path}))

    def model(self, path: str) -> SourceModel:
        """Return a model file. Raises ConfigurationError if there is none."""
        if path not in self.models:
            raise missing(path)
        return self.models[path]


def missing(path: str) -> ConfigurationError:
    """Return the error of a file that the source refers to and does not hold."""
    return ConfigurationError("is missing; copy it into the source, or correct its name", file=path)


def joined(*parts: str) -> str:
    """Return a path relative to the source. Raises ConfigurationError if it is absolute or leads out of it."""
    whole = PurePosixPath(*parts)
    if whole.is_absolute() or ".." in whole.parts or any("\\" in part or not part.isprintable() for part in parts):
        raise ConfigurationError("leads out of the source; name a file inside it", file=str(whole)[:200])
    return "" if str(whole) == "." else str(whole)
