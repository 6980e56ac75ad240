"""Shapes, layouts and rows that OpenVINO Model Server gives to the tensors of a model, applied to its signature."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gateway.common.domain.errors import UnofferedError
from gateway.common.domain.manifest import LAYOUTS, ROWS, Binding, TensorSpec
from gateway.common.domain.verdict import Signature
from gateway.workshop.importing.imported import ImportFinding, left_out, taken

AUTO = "auto"
DIMENSION_LIMIT = 2**31 - 1
_SHAPE = re.compile(r"\(\s*(.*?)\s*,?\s*\)")
_SIZE = re.compile(r"-1|[1-9][0-9]{0,9}")
_RANGE = re.compile(r"[0-9]{1,10}:([1-9][0-9]{0,9})")
ROWS_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class TensorWishes:
    """Texts of the configuration by the name of the tensor ("": the only input); `rows` is its batch_size."""

    shapes: Mapping[str, str] = field(default_factory=dict)
    layouts: Mapping[str, str] = field(default_factory=dict)
    rows: str = ""


@dataclass(frozen=True, slots=True)
class WishedTensors:
    """Tensors for callers, how the model file has them, most rows of a request (0: not bounded), and facts."""

    signature: Signature
    bind: Mapping[str, Binding]
    rows: int
    findings: tuple[ImportFinding, ...]


def wished_tensors(signature: Signature, wishes: TensorWishes, model: str) -> WishedTensors:
    """Return the tensors as configured. Raises UnofferedError if the model file does not take them so."""
    findings: list[ImportFinding] = []
    bind: dict[str, Binding] = {}
    _check_names("shape", wishes.shapes, signature.inputs, signature.inputs, model)
    _check_names("layout", wishes.layouts, (*signature.inputs, *signature.outputs), signature.inputs, model)
    shaped = [_shaped(spec, _text_of(spec, wishes.shapes), findings, model) for spec in signature.inputs]
    inputs = [_laid_out(spec, _text_of(spec, wishes.layouts), bind, findings) for spec in shaped]
    outputs = [_laid_out(spec, wishes.layouts.get(spec.name, ""), bind, findings) for spec in signature.outputs]
    rows = _rows(wishes.rows, findings)
    return WishedTensors(Signature(tuple(inputs), tuple(outputs)), bind, rows, tuple(findings))


def _text_of(spec: TensorSpec, texts: Mapping[str, str]) -> str:
    """Return the text for an input: by its name, else the one for the only input."""
    return texts.get(spec.name) or texts.get("", "")


def _check_names(
    key: str, texts: Mapping[str, str], specs: Sequence[TensorSpec], inputs: Sequence[TensorSpec], model: str
) -> None:
    """Check that every name is one of `specs`. A text without a name is for the only input."""
    names = {spec.name for spec in specs}
    for name in texts:
        if name and name not in names:
            known = ", ".join(sorted(names))
            raise UnofferedError(f"{model}: {key} names {name!r:.150}, but the tensors are {known}; correct it")
        if not name and len(inputs) != 1:
            raise UnofferedError(f"{model}: {key} must name the input: the model has {len(inputs)}")


def _shaped(spec: TensorSpec, text: str, findings: list[ImportFinding], model: str) -> TensorSpec:
    if not text:
        return spec
    if text == AUTO:
        findings.append(left_out(f"shape of {spec.name}", f"auto reloads the model; here it takes {list(spec.shape)}"))
        return spec
    sizes = [_size(part) for part in _parts(text)]
    if None in sizes or len(sizes) != len(spec.shape):
        raise UnofferedError(f"{model}: shape {text!r:.80} of {spec.name} does not fit {list(spec.shape)}; correct it")
    wished = tuple(size or ROWS for size in sizes)
    if any(own not in {size, ROWS} for size, own in zip(wished, spec.shape, strict=True)):
        problem = f"{model}: shape {text:.80} reshapes {spec.name}, which has {list(spec.shape)} in the file; "
        raise UnofferedError(f"{problem}export the model with this shape, or with open dimensions")
    findings.append(taken(f"shape of {spec.name}", text))
    return replace(spec, shape=wished)


def _parts(text: str) -> list[str]:
    found = _SHAPE.fullmatch(text.strip())
    return [part.strip() for part in found[1].split(",")] if found else [""]


def _size(text: str) -> int | None:
    """Return a dimension; -1 for a range, None for anything else."""
    if _RANGE.fullmatch(text):
        return ROWS
    return int(text) if _SIZE.fullmatch(text) and int(text) <= DIMENSION_LIMIT else None


def _laid_out(spec: TensorSpec, text: str, bind: dict[str, Binding], findings: list[ImportFinding]) -> TensorSpec:
    """Return a tensor in the layout of its clients. `NHWC:NCHW` is theirs and that of the model file."""
    theirs, _, own = text.replace("...", "").partition(":")
    own = own or theirs
    if not text:
        return spec
    if theirs not in LAYOUTS or own not in LAYOUTS or sorted(theirs) != sorted(own) or len(own) != len(spec.shape):
        if theirs != own:
            raise UnofferedError(f"layout {text!r:.80} of {spec.name} is not offered here; use {', '.join(LAYOUTS)}")
        findings.append(left_out(f"layout of {spec.name}", f"{text:.80}: only {', '.join(LAYOUTS)} are known"))
        return spec
    findings.append(taken(f"layout of {spec.name}", text))
    if theirs == own:
        return replace(spec, layout=own)
    bind[spec.name] = Binding(spec.name, own)
    return replace(spec, layout=theirs, shape=tuple(spec.shape[own.index(axis)] for axis in theirs))


def _rows(text: str, findings: list[ImportFinding]) -> int:
    """Return the most rows of one request."""
    most = (found := _RANGE.fullmatch(text)) and found[1]
    number = most or (text if _SIZE.fullmatch(text) and text != "-1" else "")
    if number and int(number) <= ROWS_LIMIT:
        findings.append(taken("batch_size", f"at most {number} rows in a request; fewer are allowed as well"))
        return int(number)
    if text:
        findings.append(left_out("batch_size", f"{text:.40}: requests may have any number of rows"))
    return 0
