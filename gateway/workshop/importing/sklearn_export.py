"""Source `sklearn`: a scikit-learn model or pipeline that skl2onnx converted.

Source: skl2onnx's documentation, "Supported scikit-learn Models" and "Choose appropriate output of a classifier". A
classifier has the outputs `label` and `probabilities` (`output_label`, `output_probability` in older versions), a
regressor has `variable`. The classes are an attribute of the classifier in the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.workshop.importing.imported import (
    ImportedModel,
    ImportedSource,
    ImportFinding,
    fitting_labels,
    only_model,
    plain_name,
    shapes,
    taken,
    to_add,
    variant_of,
)
from gateway.workshop.importing.source import Documents, SourceModel

PRODUCER = "skl2onnx"
PROBABILITIES = frozenset({"probabilities", "output_probability", "probability"})
LABEL = frozenset({"label", "output_label"})
REGRESSORS = frozenset({"ai.onnx.ml::LinearRegressor", "ai.onnx.ml::SVMRegressor", "ai.onnx.ml::TreeEnsembleRegressor"})
_FLOATS = frozenset({Datatype.FP32, Datatype.FP64})


def is_sklearn(documents: Documents) -> bool:
    """Return True if every model file was made by skl2onnx."""
    return bool(documents.models) and all(model.header.producer == PRODUCER for model in documents.models.values())


def read_sklearn(documents: Documents) -> ImportedSource:
    """Return the only model. Raises ConfigurationError if there are several, or it cannot be served."""
    model = only_model(documents)
    signature = model.tensors()
    name, findings = plain_name(documents.name)
    task, options, labels, facts = tabular_task(model)
    imported = ImportedModel(
        name,
        "1",
        signature.inputs,
        signature.outputs,
        (variant_of(model),),
        labels=labels,
        task=task,
        task_options=options,
        findings=(*findings, *shapes(signature), *facts),
    )
    return ImportedSource((imported,))


def tabular_task(
    model: SourceModel,
) -> tuple[str, Mapping[str, Any] | None, tuple[str, ...], tuple[ImportFinding, ...]]:
    """Return the task of a converted model, its options, the labels and what was found; "" if it has no task."""
    outputs = model.tensors().outputs
    scores, label = _named(outputs, PROBABILITIES), _named(outputs, LABEL)
    if scores and label:
        labels, found = fitting_labels(model.header.classes, (scores,), "classes of the classifier")
        options = {"output": scores.name} | ({"label_output": label.name} if labels else {})
        return "tabular-classification", options, labels, (taken("task", "tabular-classification"), *found)
    if REGRESSORS & model.operators and len(outputs) == 1 and outputs[0].datatype in _FLOATS:
        return "tabular-regression", {"output": outputs[0].name}, (), (taken("task", "tabular-regression"),)
    names = ", ".join(spec.name for spec in outputs)
    advice = f"the outputs {names} do not tell it; write [task] into manifest.toml, or serve the tensors as they are"
    return "", None, (), (to_add("task", advice),)


def _named(outputs: Sequence[TensorSpec], names: frozenset[str]) -> TensorSpec | None:
    return next((spec for spec in outputs if spec.name in names), None)
