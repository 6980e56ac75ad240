"""No engine reports usage to its vendor: neither a queue on disk nor a socket."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
RUN = """
import os
import sys
from pathlib import Path
import numpy as np
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.runtimes.catalog import get_runtime
from gateway.serving.store.library import scan_version
release = scan_version(Path("models/meter-reader/1"))
for name in ("onnx-fp32", "openvino-fp16", "litert-fp32"):
    variant = release.manifest.variant(name)
    session = get_runtime(variant.runtime).open(release.manifest, variant, release.folder, SessionBudget())
    session.run({"image": np.zeros((1, 1, 8, 8), np.float32)})
descriptors = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
files = [os.readlink(entry) for entry in descriptors if os.path.lexists(entry)]
sockets = [file for file in files if file.startswith("socket:")]
sys.exit(f"open sockets: {sockets}" if sockets else 0)
"""


def test_running_every_engine_leaves_no_queue_and_no_socket(tmp_path: Path) -> None:
    kept = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", RUN], cwd=ROOT, env=kept, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == []
