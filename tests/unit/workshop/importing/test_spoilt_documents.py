"""Documents that are spoilt by chance are read or refused; nothing else happens."""

import random
from contextlib import suppress
from dataclasses import replace

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.workshop.importing.release_writer import settled
from gateway.workshop.importing.sources import choose_source
from tests.fuzz.mutation import spoil
from tests.simulators.import_sources import (
    documents_of,
    ultralytics_metadata,
    write_detector,
    write_hugging_face,
    write_mlflow,
    write_openvino_server,
    write_triton,
)

ROUNDS = 400
WRITERS = {
    "triton": write_triton,
    "ovms": lambda root: write_openvino_server(root, shape="(-1,3)", layout={"x": "NC"}, batch_size="1:8", nireq=2),
    "mlflow": write_mlflow,
    "huggingface": write_hugging_face,
}


def read(documents, kind):
    """Read a source, and check what would be written."""
    with suppress(ConfigurationError):
        for model in choose_source(documents, kind).read(documents).models:
            settled(model)


@pytest.mark.parametrize("kind", WRITERS)
def test_spoilt_texts(tmp_path, kind):
    chance, documents = random.Random(2026), documents_of(WRITERS[kind](tmp_path / "source"))
    seeds = [text.encode() for text in documents.texts.values()]
    for _ in range(ROUNDS):
        path = chance.choice(sorted(documents.texts))
        text = spoil(documents.texts[path].encode(), chance, seeds).decode(errors="ignore")
        read(replace(documents, texts={**documents.texts, path: text}), kind)


def test_spoilt_metadata(tmp_path):
    write_detector(tmp_path / "m.onnx", metadata=ultralytics_metadata())
    chance, documents = random.Random(2026), documents_of(tmp_path / "m.onnx")
    (model,) = documents.models.values()
    seeds = [text.encode() for text in model.header.metadata.values()]
    for _ in range(ROUNDS):
        key = chance.choice(sorted(model.header.metadata))
        text = spoil(model.header.metadata[key].encode(), chance, seeds).decode(errors="ignore")
        header = replace(model.header, metadata={**model.header.metadata, key: text})
        read(replace(documents, models={model.path: replace(model, header=header)}), "ultralytics")
