"""Locks of stores with one writer: one process at a time, named to the others, released by any end of the process."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.common.domain.errors import UnreachableError
from gateway.common.files.locks import sole_writer

HOLD = """
import sys
from pathlib import Path
from gateway.common.files.locks import sole_writer
with sole_writer(Path(sys.argv[1]), "daemon", "stop it"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_killed_holder_leaves_the_lock_and_a_living_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(file)]
    for _ in range(2):
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            named = rf"^{tmp_path}: another daemon uses this folder: process {holder.pid} \(.* -c .*\); stop it$"
            with pytest.raises(UnreachableError, match=f"(?s){named}"), sole_writer(file, "daemon", "stop it"):
                pass
            holder.kill()
    with sole_writer(file, "daemon", "stop it"):
        pass


def test_a_holder_in_another_container_is_named_by_its_number_alone(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with file.open("w") as held:
        held.write("4194304        \n")
        held.flush()
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UnreachableError, match="process 4194304; stop it"), sole_writer(file, "daemon", "stop it"):
            pass


def test_a_file_system_without_locks_is_an_error_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without(_file: object, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without)
    with pytest.raises(OSError, match="No locks available"), sole_writer(tmp_path / "lock", "daemon", "stop it"):
        pass
