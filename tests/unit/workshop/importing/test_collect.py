"""Reading of sources from the disk, within bounds and within their folder."""

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.workshop.cli.models_parser import KINDS as OFFERED
from gateway.workshop.importing.collect import ImportSettings, read_documents
from gateway.workshop.importing.source import Documents, SourceModel, joined
from gateway.workshop.importing.sources import KINDS, choose_source
from tests.simulators.import_sources import (
    documents_of,
    write_hugging_face,
    write_mlflow,
    write_openvino_server,
    write_sums,
    write_triton,
)

SMALL = ImportSettings(document_limit_bytes=100, yaml_limit_bytes=10, entries_limit=3, depth_limit=2)


def test_a_link_out_of_the_source_is_refused(tmp_path):
    (tmp_path / "secret.txt").write_text("root:x:0:0")
    source = tmp_path / "source"
    source.mkdir()
    (source / "labels.txt").symlink_to(tmp_path / "secret.txt")
    with pytest.raises(ConfigurationError, match=r"labels.txt: is a link that leads out .*cp -rL"):
        read_documents(source, ImportSettings())


def test_a_link_inside_the_source_is_followed(tmp_path):
    (tmp_path / "names.txt").write_text("cat")
    (tmp_path / "labels.txt").symlink_to("names.txt")
    assert read_documents(tmp_path, ImportSettings()).text("labels.txt") == "cat"


@pytest.mark.parametrize("target", [".", "..", "1"])
def test_a_link_to_a_folder_is_refused(tmp_path, target):
    (tmp_path / "1").mkdir()
    (tmp_path / "2").symlink_to(target)
    with pytest.raises(ConfigurationError, match="is a link to a folder"):
        read_documents(tmp_path, ImportSettings())


def test_a_dangling_link_is_no_file(tmp_path):
    (tmp_path / "gone.txt").symlink_to("nothing")
    assert read_documents(tmp_path, ImportSettings()).files == frozenset()


def test_hidden_files_are_not_read(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config.json").write_text("{")
    assert read_documents(tmp_path, ImportSettings()).files == frozenset()


def test_limits_are_named(tmp_path):
    (tmp_path / "labels.txt").write_text("x" * 101)
    (tmp_path / "metadata.yaml").write_text("x" * 11)
    documents = read_documents(tmp_path, SMALL)
    for path, limit in (("labels.txt", 100), ("metadata.yaml", 10)):
        with pytest.raises(ConfigurationError, match=f"{path}: has more than {limit} bytes"):
            documents.text(path)
    for number in range(3):
        (tmp_path / f"{number}.bin").touch()
    with pytest.raises(ConfigurationError, match="more than 3 files"):
        read_documents(tmp_path, SMALL)


def test_deep_folders_are_refused(tmp_path):
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="too deep"):
        read_documents(tmp_path, SMALL)


def test_text_that_is_not_utf8_is_refused_when_it_is_needed(tmp_path):
    (tmp_path / "labels.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match=r"labels.txt: is not UTF-8"):
        read_documents(tmp_path, ImportSettings()).text("labels.txt")


def test_what_does_not_exist_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="does not exist"):
        read_documents(tmp_path / "gone", ImportSettings())


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a\\b", "a\nb"])
def test_paths_stay_in_the_source(path):
    with pytest.raises(ConfigurationError, match="leads out of the source"):
        joined("models", path)


@pytest.mark.parametrize(
    ("kind", "write"),
    [
        ("triton", write_triton),
        ("ovms", write_openvino_server),
        ("mlflow", write_mlflow),
        ("huggingface", write_hugging_face),
    ],
)
def test_sources_are_recognised(tmp_path, kind, write):
    assert choose_source(documents_of(write(tmp_path))).name == kind


def test_an_unknown_source_names_the_known_ones(tmp_path):
    write_sums(tmp_path / "m.onnx")
    with pytest.raises(ConfigurationError, match=r"is none of the known sources .triton: model repository"):
        choose_source(documents_of(tmp_path / "m.onnx"))


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("m.pt", "yolo export model=m.pt"),
        ("x/saved_model.pb", "tf2onnx.convert"),
        ("m.safetensors", "optimum-cli export"),
    ],
)
def test_a_source_of_a_training_framework_is_refused_with_the_export(tmp_path, name, command):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(ConfigurationError, match=command):
        choose_source(documents_of(tmp_path))


def test_a_damaged_file_is_named_in_place_of_its_kind():
    model = SourceModel("m.onnx", "onnx", problem="not an ONNX file")
    with pytest.raises(ConfigurationError, match=r"m.onnx: not an ONNX file"):
        choose_source(Documents("m", frozenset({"m.onnx"}), models={"m.onnx": model}))


@pytest.mark.parametrize("kind", ["mlflow", "ultralytics", "huggingface"])
def test_a_source_of_another_kind_is_an_error(tmp_path, kind):
    write_sums(tmp_path / "m.onnx")
    documents = documents_of(tmp_path)
    with pytest.raises(ConfigurationError, match=r"is missing|has no metadata"):
        choose_source(documents, kind).read(documents)


def test_the_command_offers_every_kind():
    assert OFFERED == KINDS
