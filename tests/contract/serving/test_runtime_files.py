"""A served file may be overwritten in place: no engine keeps it mapped, where that would end the process (SIGBUS)."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from gateway.common.domain.verdict import SessionBudget
from gateway.serving.runtimes.catalog import get_runtime
from gateway.serving.store.library import scan_version

RELEASE = Path(__file__).resolve().parents[3] / "models" / "meter-reader" / "1"
ROWS = {"image": np.zeros((2, 1, 8, 8), np.float32)}


@pytest.mark.parametrize("name", ["onnx-fp32", "openvino-fp16", "litert-fp32", "litert-int8", "reference"])
def test_a_file_emptied_while_it_serves_changes_nothing(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "meter-reader" / "1"
    shutil.copytree(RELEASE, folder)
    manifest = scan_version(folder).manifest
    assert manifest is not None
    variant = manifest.variant(name)
    assert variant is not None
    session = get_runtime(variant.runtime).open(manifest, variant, folder, SessionBudget())
    before = session.run(ROWS)["scores"].copy()
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    assert mapped == []
    for artifact in variant.artifacts:
        (folder / artifact.path).write_bytes(b"")
    assert np.array_equal(session.run(ROWS)["scores"], before)
    session.close()
