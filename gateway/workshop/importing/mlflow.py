"""Source `mlflow`: the folder of an MLflow model with the ONNX flavour.

Source: mlflow.org, "MLflow Models": `MLmodel` is YAML; its `signature` holds JSON texts with one entry for each column
or tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gateway.common.domain.document import Table
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ROWS, TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.verdict import Signature
from gateway.workshop.importing.imported import (
    ImportedModel,
    ImportedSource,
    ImportFinding,
    left_out,
    plain_name,
    shapes,
    taken,
    variant_of,
)
from gateway.workshop.importing.json_document import json_value
from gateway.workshop.importing.sklearn_export import PRODUCER, tabular_task
from gateway.workshop.importing.source import Documents, joined
from gateway.workshop.importing.yaml_document import read_yaml

DOCUMENT = "MLmodel"
COLUMNS_LIMIT = 10_000
"""Most columns or tensors of a signature."""
_EXPORTS: Mapping[str, str] = {
    "sklearn": "convert the model with skl2onnx",
    "pytorch": "export the model with torch.onnx.export",
    "tensorflow": "convert the model with tf2onnx",
    "keras": "convert the model with tf2onnx",
    "transformers": "export the model with optimum-cli export onnx, and import that folder",
    "xgboost": "convert the model with onnxmltools",
    "lightgbm": "convert the model with onnxmltools",
    "catboost": "save the model with save_model(format='onnx')",
}
_TYPES: Mapping[str, Datatype] = {
    "boolean": Datatype.BOOL,
    "integer": Datatype.INT32,
    "long": Datatype.INT64,
    "float": Datatype.FP32,
    "double": Datatype.FP64,
    "string": Datatype.BYTES,
}
"""Datatypes of columns."""
_DTYPES: Mapping[str, Datatype] = {
    datatype.dtype.name: datatype for datatype in Datatype if datatype not in {Datatype.BYTES, Datatype.BF16}
} | dict.fromkeys(("str", "object", "bytes"), Datatype.BYTES)
"""Datatypes of tensors by numpy's names."""


def is_mlflow(documents: Documents) -> bool:
    """Return True if the source holds an MLmodel."""
    return DOCUMENT in documents.files


def read_mlflow(documents: Documents) -> ImportedSource:
    """Return the model. Raises ConfigurationError for another flavour, and for a signature that does not fit."""
    values = read_yaml(documents.text(DOCUMENT), DOCUMENT)
    flavors = values.get("flavors")
    if not isinstance(flavors, dict) or not flavors:
        raise ConfigurationError("missing; it must be a table of flavours", file=DOCUMENT, key="flavors")
    if "onnx" not in flavors:
        known = next((advice for flavor, advice in _EXPORTS.items() if flavor in flavors), "export the model to ONNX")
        problem = f"has no flavour onnx, only {', '.join(flavors)}; {known}, and log it with mlflow.onnx.log_model"
        raise ConfigurationError(problem[:500], file=DOCUMENT, key="flavors")
    flavor = flavors["onnx"]
    data = flavor.get("data") if isinstance(flavor, dict) else None
    if not isinstance(data, str) or not data:
        raise ConfigurationError("missing; name the model file", file=DOCUMENT, key="flavors.onnx.data")
    model_path = joined(data)
    model = documents.model(model_path)
    tensors = model.tensors()
    inputs, found = _described(values, "inputs", tensors.inputs)
    outputs, more = _described(values, "outputs", tensors.outputs)
    name, renamed = plain_name(_name(values, documents))
    task, options, labels, facts = tabular_task(model) if model.header.producer == PRODUCER else ("", None, (), ())
    imported = ImportedModel(
        name,
        "1",
        inputs,
        outputs,
        (variant_of(model),),
        labels=labels,
        task=task,
        task_options=options,
        findings=(*renamed, *shapes(Signature(inputs, outputs)), *found, *more, *facts),
    )
    return ImportedSource((imported,))


def _name(values: Mapping[str, Any], documents: Documents) -> str:
    """Return the folder's name; the artifact's, if the folder is only called `model`."""
    artifact = values.get("artifact_path") or values.get("name")
    return artifact if documents.name == "model" and isinstance(artifact, str) else documents.name


def _described(
    values: Mapping[str, Any], key: str, specs: tuple[TensorSpec, ...]
) -> tuple[tuple[TensorSpec, ...], tuple[ImportFinding, ...]]:
    """Return tensors of the file as the signature describes them, and what was found."""
    signature = values.get("signature")
    text = signature.get(key) if isinstance(signature, dict) else None
    if text is None:
        return specs, (taken(f"signature.{key}", "not stated; the tensors are those of the model file"),)
    place = f"{DOCUMENT}: signature.{key}"
    entries = json_value(text, place) if isinstance(text, str) else text
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigurationError("must be a list of columns or tensors", file=place)
    if len(entries) > COLUMNS_LIMIT:
        raise ConfigurationError(f"has more than {COLUMNS_LIMIT} entries; shorten it", file=place)
    tables = [Table(entry, file=place, name=f"[{index}]") for index, entry in enumerate(entries)]
    if entries and entries[0].get("type") == "tensor":
        fixed: dict[str, TensorSpec] = {}
        for table in tables:
            spec = _named(table.text("name", ""), specs, place)
            inner = table.table("tensor-spec", required=True)
            fixed[spec.name] = _fixed(spec, inner, place) if inner else spec
        named = ", ".join(sorted(fixed))
        return tuple(fixed.get(spec.name, spec) for spec in specs), (taken(place, f"names and sizes of {named}"),)
    return specs, _columns(tables, specs, place)


def _named(name: str, specs: tuple[TensorSpec, ...], place: str) -> TensorSpec:
    found = [spec for spec in specs if spec.name == name or (not name and len(specs) == 1)]
    if not found:
        names = ", ".join(spec.name for spec in specs)
        raise ConfigurationError(f"names {name!r:.150}, but the model file has {names}; log it again", file=place)
    return found[0]


def _fixed(spec: TensorSpec, table: Table, place: str) -> TensorSpec:
    dtype, shape = table.text("dtype"), table.integers("shape")
    if _DTYPES.get(dtype) is not spec.datatype:
        problem = f"{spec.name} is {dtype:.40}, but {spec.datatype.label} in the model file; log the model again"
        raise ConfigurationError(problem, file=place)
    if len(shape) != len(spec.shape) or any(
        ROWS not in {own, size} and own != size for own, size in zip(spec.shape, shape, strict=True)
    ):
        problem = f"{spec.name} has the shape {list(shape)}, but {list(spec.shape)} in the model file; log it again"
        raise ConfigurationError(problem, file=place)
    sizes = tuple(size if own == ROWS and size > 0 else own for own, size in zip(spec.shape, shape, strict=True))
    return replace(spec, shape=sizes)


def _columns(tables: Sequence[Table], specs: tuple[TensorSpec, ...], place: str) -> tuple[ImportFinding, ...]:
    """Return what columns say about tensors: one tensor for each column, or all of them in one tensor."""
    columns = [(table.text("name", ""), table.text("type", "")) for table in tables]
    by_name = {spec.name: spec for spec in specs}
    if all(name in by_name for name, _ in columns):
        return tuple(_column(by_name[name], kind, place) for name, kind in columns)
    wide = [spec for spec in specs if len(spec.shape) == 2 and spec.shape[1] in {len(columns), ROWS}]
    names = ", ".join(name or "unnamed" for name, _ in columns)
    if not wide or len(specs) != 1:
        held = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in specs)
        return (left_out(place, f"the columns {names:.200} are none of the tensors {held:.200}, which count"),)
    return (taken(place, f"the columns of {wide[0].name}, in this order: {names:.400}"),)


def _column(spec: TensorSpec, kind: str, place: str) -> ImportFinding:
    if _TYPES.get(kind) in {spec.datatype, None}:
        return taken(f"{place}: {spec.name}", kind)
    return left_out(
        f"{place}: {spec.name}", f"{kind} in the table, {spec.datatype.label} in the model file, which counts"
    )
