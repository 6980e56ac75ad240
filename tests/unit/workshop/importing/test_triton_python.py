"""Models of Triton's Python backend: what becomes a pipeline, and what is skipped with the reason."""

import pytest

from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.workshop.importing.release_writer import pipeline_text, write_releases
from gateway.workshop.importing.triton import read_triton
from tests.simulators.import_sources import documents_of

CONFIG = """
name: "fuse"
backend: "python"
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "word" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_INT64 dims: [ -1, 2 ] } ]
instance_group [ { kind: KIND_CPU } ]
parameters { key: "unit" value { string_value: "mm" } }
"""
CODE = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return []
"""


def read(folder, config=CONFIG, code=CODE, **files):
    version = folder / "fuse" / "1"
    version.mkdir(parents=True)
    (folder / "fuse" / "config.pbtxt").write_text(config)
    (version / "model.py").write_text(code)
    for name, text in files.items():
        (version / f"{name}.csv").write_text(text)
    return read_triton(documents_of(folder))


def test_a_model_becomes_a_pipeline_with_its_files(tmp_path):
    found = read(tmp_path, table="1,2")
    assert found.skipped == ()
    (imported,) = found.pipelines
    pipeline = read_pipeline(pipeline_text(imported, "here"), "pipeline.toml")
    (step,) = pipeline.python
    assert (step.file, step.entry, step.files, step.batch) == ("model.py", "TritonPythonModel", ("table.csv",), True)
    assert [(each.name, each.kind, each.shape) for each in pipeline.inputs] == [
        ("X", "tensor", (4,)),
        ("word", "text", ()),
    ]
    assert [(each.name, each.datatype.label, each.shape) for each in step.outputs] == [("Y", "INT64", (-1, 2))]
    assert dict(step.parameters) == {"unit": "mm"}
    (written,) = write_releases(found.releases, tmp_path, tmp_path / "models", "here")
    assert sorted(file.name for file in written.iterdir()) == ["model.py", "pipeline.toml", "table.csv"]
    assert (written / "model.py").read_text() == CODE


def test_without_rows_the_code_gets_them_one_by_one(tmp_path):
    (imported,) = read(tmp_path, CONFIG.replace("max_batch_size: 8", "")).pipelines
    assert not read_pipeline(pipeline_text(imported, "here"), "pipeline.toml").python[0].batch
    assert "clients send the shape [1, 4]" in "".join(each.text for each in imported.findings)


@pytest.mark.parametrize(
    ("config", "code", "why"),
    [
        (CONFIG, CODE + "pb_utils.InferenceRequest().exec()", "model.py:6: uses exec: it calls other models (BLS)"),
        (CONFIG, CODE + "request.get_response_sender()", "answers in parts (decoupled)"),
        (CONFIG, CODE + "pb_utils.MetricFamily()", "has metrics of its own"),
        (CONFIG, "x = 1", "has no class TritonPythonModel"),
        (CONFIG, "def", "is no Python"),
        (CONFIG, "-" * 100_000 + "1", "is no Python"),
        (CONFIG + "model_transaction_policy { decoupled: true }", CODE, "only language models answer in parts"),
        (CONFIG + 'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "x" } }', CODE, "EXECUTION_ENV_PATH"),
        (CONFIG.replace("dims: [ 1 ]", "dims: [ 1 ] optional: true"), CODE, "word is optional"),
        (CONFIG.replace("dims: [ 1 ]", "dims: [ 3 ]"), CODE, "several texts for a row"),
        (CONFIG.replace('"X"', '"a b"'), CODE, "needs a name of letters"),
        ('name: "fuse" backend: "python"', CODE, "names no inputs, or no outputs"),
        (CONFIG + "sequence_batching { }", CODE, "sequence_batching is not offered for Python code"),
    ],
)
def test_what_no_step_can_do_is_skipped_with_the_reason(tmp_path, config, code, why):
    found = read(tmp_path, config, code)
    assert found.pipelines == ()
    assert [why in each.why for each in found.skipped] == [True], found.skipped


def test_folders_next_to_the_code_are_refused(tmp_path):
    (tmp_path / "fuse" / "1" / "weights").mkdir(parents=True)
    (tmp_path / "fuse" / "1" / "weights" / "a.txt").write_text("1")
    (tmp_path / "fuse" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "fuse" / "1" / "model.py").write_text(CODE)
    (skipped,) = read_triton(documents_of(tmp_path)).skipped
    assert "plain files" in skipped.why
