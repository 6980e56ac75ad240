"""Table of the sources that can be imported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.model_files import near_model
from gateway.workshop.importing.hugging_face import is_hugging_face, read_hugging_face
from gateway.workshop.importing.imported import ImportedSource
from gateway.workshop.importing.mlflow import is_mlflow, read_mlflow
from gateway.workshop.importing.openvino_server import is_openvino_server, read_openvino_server
from gateway.workshop.importing.sklearn_export import is_sklearn, read_sklearn
from gateway.workshop.importing.source import Documents
from gateway.workshop.importing.triton import is_triton, read_triton
from gateway.workshop.importing.ultralytics import is_ultralytics, read_ultralytics


@dataclass(frozen=True, slots=True)
class SourceKind:
    """Kind of source: its name, what it is for people, how it is recognised, and its reader."""

    name: str
    meaning: str
    recognises: Callable[[Documents], bool]
    read: Callable[[Documents], ImportedSource]


SOURCES: Sequence[SourceKind] = (
    SourceKind("triton", "model repository with config.pbtxt", is_triton, read_triton),
    SourceKind("mlflow", "folder with MLmodel, ONNX flavour", is_mlflow, read_mlflow),
    SourceKind(
        "ovms",
        "config.json of OpenVINO Model Server, or a folder of numbered versions",
        is_openvino_server,
        read_openvino_server,
    ),
    SourceKind("ultralytics", "export with metadata of Ultralytics", is_ultralytics, read_ultralytics),
    SourceKind("huggingface", "export of Optimum with config.json", is_hugging_face, read_hugging_face),
    SourceKind("sklearn", "ONNX file of skl2onnx", is_sklearn, read_sklearn),
)
"""Kinds in the order in which they are tried."""
KINDS = tuple(kind.name for kind in SOURCES)


def choose_source(documents: Documents, name: str = "") -> SourceKind:
    """Return the kind called `name`, else the first that recognises the source. Raises ConfigurationError."""
    if name:
        return next(kind for kind in SOURCES if kind.name == name)
    for kind in SOURCES:
        if kind.recognises(documents):
            return kind
    damaged = next((model for model in documents.models.values() if model.problem), None)
    if damaged is not None:
        raise ConfigurationError(damaged.problem, file=damaged.path)
    if problem := next(filter(None, map(near_model, sorted(documents.files))), ""):
        raise ConfigurationError(problem, file=documents.name)
    known = "; ".join(f"{kind.name}: {kind.meaning}" for kind in SOURCES)
    problem = f"is none of the known sources ({known}); name one with --from, or make a release with a manifest"
    raise ConfigurationError(problem, file=documents.name)
