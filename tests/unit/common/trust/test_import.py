"""The room is cheap to import: who only asks whether a document is believed pays for tuf when asking."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_importing_the_room_loads_no_tuf() -> None:
    modules = [f"gateway.common.trust.{file.stem}" for file in sorted((ROOT / "gateway/common/trust").glob("[!_]*.py"))]
    assert len(modules) > 8
    heavy = {"tuf", "securesystemslib", "cryptography", "urllib3", "sqlite3", "ssl", "socket", "asyncio"}
    script = f"import sys\nimport {', '.join(modules)}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())
