"""Variants that are kept between runs, the child process that makes them, and publication."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.installation import HERE
from gateway.common.domain.manifest import Artifact, ModelManifest, TensorSpec, Variant
from gateway.common.domain.tensor import Datatype
from gateway.workshop.making import quantize_files
from gateway.workshop.making.choices import VARIANT_KINDS
from gateway.workshop.making.quantize_files import (
    CACHE,
    QuantizeRecord,
    ReleaseEdit,
    ToolError,
    check_tools,
    forget_others,
    link_file,
    make_variant,
    publish,
    read_record,
    scratch,
    store_runs,
    variant_key,
)
from gateway.workshop.making.quantizer_child import QuantizerJob, StoredRuns
from gateway.workshop.making.samples import SampleSet

KIND = VARIANT_KINDS[0]
SOURCE = Variant("onnx-fp32", "onnx", "fp32", (Artifact("m.onnx", "0" * 64, 1),))
MANIFEST = ModelManifest("m", "1", (TensorSpec("x", Datatype.FP32, (-1, 2)),), (), (SOURCE,), batch=True)
SAMPLES = SampleSet({"x": np.arange(6, dtype=np.float32).reshape(3, 2)}, None, "digest", 3)
JOB = QuantizerJob("onnx-int8", "absent.onnx", "model.onnx", {}, 0)


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_the_key_changes_with_all_that_the_variant_depends_on() -> None:
    keys = {
        variant_key(KIND, SOURCE, MANIFEST, SAMPLES, 0),
        variant_key(KIND, SOURCE, MANIFEST, SAMPLES, 1),
        variant_key(KIND, SOURCE, MANIFEST, replace(SAMPLES, digest="other"), 0),
        variant_key(KIND, replace(SOURCE, artifacts=(Artifact("m.onnx", "1" * 64, 1),)), MANIFEST, SAMPLES, 0),
        variant_key(KIND, SOURCE, replace(MANIFEST, inputs=()), SAMPLES, 0),
        variant_key(VARIANT_KINDS[1], SOURCE, MANIFEST, SAMPLES, 0),
    }
    assert len(keys) == 6
    assert variant_key(KIND, SOURCE, MANIFEST, SAMPLES, 0) in keys


def test_runs_are_read_as_they_were_stored(tmp_path: Path) -> None:
    runs = StoredRuns(store_runs(MANIFEST, SOURCE, SAMPLES, tmp_path / "runs"))
    assert [run["x"].tolist() for run in runs] == [[[0, 1]], [[2, 3]], [[4, 5]]]
    assert (len(runs), runs[1]["x"].shape) == (3, (1, 2))
    with pytest.raises(IndexError):
        runs[3]


def test_a_variant_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    (tmp_path / "onnx-int8-1").mkdir()
    assert asyncio.run(make_variant(JOB, tmp_path / "onnx-int8-1"))


def test_a_tool_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"absent\.onnx"):
        asyncio.run(make_variant(JOB, tmp_path / "onnx-int8-1"))
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("code", "said"),
    [("import os; os.kill(os.getpid(), 11)", "ended by SIGSEGV"), ("raise SystemExit('the reason')", "the reason")],
)
def test_a_tool_that_crashes_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, said: str) -> None:
    monkeypatch.setattr(quantize_files, "COMMAND", (quantize_files.COMMAND[0], "-c", code))
    with pytest.raises(ToolError, match=said):
        asyncio.run(make_variant(JOB, tmp_path / "onnx-int8-1"))


def test_a_child_ends_with_its_parents_interest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    monkeypatch.setattr(quantize_files, "COMMAND", (quantize_files.COMMAND[0], "-c", code))

    async def interrupted() -> None:
        making = asyncio.create_task(make_variant(JOB, tmp_path / "place"))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            await asyncio.sleep(0.02)
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)

    asyncio.run(interrupted())
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert names(tmp_path) == ["pid"]


def test_absent_tools_are_named_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize_files.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=re.escape(HERE.adding("workshop"))):
        check_tools(VARIANT_KINDS)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"golden": 1, "made": []}', '{"golden": []}'])
def test_a_damaged_record_is_none(tmp_path: Path, text: str) -> None:
    assert read_record(tmp_path) == QuantizeRecord()
    (tmp_path / CACHE).mkdir()
    (tmp_path / CACHE / "record.json").write_text(text)
    assert read_record(tmp_path) == QuantizeRecord()


def test_publication_replaces_files_and_manifest_and_drops_variants(tmp_path: Path) -> None:
    (tmp_path / "manifest.toml").write_text("old")
    (tmp_path / "manifest.toml").chmod(0o644)
    for name in ("onnx-int8", "litert-int8"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model").write_text("old")
    with scratch(tmp_path) as staged:
        (staged / "onnx-int8").mkdir()
        (staged / "onnx-int8" / "model").write_text("new")
        record = QuantizeRecord(("1",), ("onnx-int8",))
        publish(tmp_path, ReleaseEdit(staged, ("onnx-int8/model",), "new", record, ("litert-int8",)))
    assert names(tmp_path) == [CACHE, "manifest.toml", "onnx-int8"]
    assert (tmp_path / "onnx-int8" / "model").read_text() == (tmp_path / "manifest.toml").read_text() == "new"
    assert (tmp_path / "manifest.toml").stat().st_mode & 0o777 == 0o644
    assert read_record(tmp_path) == record
    assert names(tmp_path / CACHE) == ["record.json"]


def test_a_link_of_a_link_is_of_the_file_itself(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("content")
    (tmp_path / "link").symlink_to("blob")
    link_file(tmp_path / "link", tmp_path / "deep" / "copy")
    assert not (tmp_path / "deep" / "copy").is_symlink()
    assert (tmp_path / "deep" / "copy").read_text() == "content"
    with pytest.raises(FileNotFoundError):
        link_file(tmp_path / "absent", tmp_path / "deep" / "other")
    assert names(tmp_path / "deep") == ["copy"]


def test_variants_of_other_data_are_forgotten(tmp_path: Path) -> None:
    for name in ("onnx-int8-1", "onnx-int8-2"):
        (tmp_path / CACHE / name).mkdir(parents=True)
    (tmp_path / CACHE / "record.json").write_text("{}")
    forget_others(tmp_path, ["onnx-int8-2"])
    assert names(tmp_path / CACHE) == ["onnx-int8-2", "record.json"]
