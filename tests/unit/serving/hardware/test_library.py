"""Real children: libraries that load, that are absent, and children that hang, die or print garbage."""

from __future__ import annotations

import ctypes.util
import os
import select
import sys
from pathlib import Path

import pytest

from gateway.serving.hardware.library import LibraryAnswer, ask_libraries
from gateway.serving.hardware.settings import HardwareSettings
from tests.simulators.constants import settings_with

NAMES = ("libfirst.so", "libsecond.so", "libthird.so")
SHORT = settings_with(HardwareSettings(), child_deadline_s=1.0, child_output_bytes=4096)
PATIENT = settings_with(HardwareSettings(), child_deadline_s=30.0, child_output_bytes=4096)
FIRST = """
import json, os, signal, sys, time
print(json.dumps({"name": sys.argv[1], "problem": ""}), flush=True)
"""


def child(source: str) -> list[str]:
    """Return the command of a fake child that answers for the first library and then does what `source` says."""
    return [sys.executable, "-I", "-c", FIRST + source]


def libc() -> str:
    return ctypes.util.find_library("c") or "libc.so.6"


def test_a_library_that_loads_and_one_that_is_absent() -> None:
    answers = ask_libraries([(libc(), "libno-such-vendor.so.1")])
    assert answers[libc()] == LibraryAnswer(True)
    assert answers["libno-such-vendor.so.1"].loaded is False
    assert "libno-such-vendor.so.1" in answers["libno-such-vendor.so.1"].problem


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    path = tmp_path / "libgarbage.so"
    path.write_bytes(b"\x7fELF garbage")
    assert ask_libraries([(str(path),)])[str(path)].loaded is False


def test_nothing_to_ask_starts_no_child() -> None:
    assert ask_libraries([], child=["/no/such/program"]) == {}


def test_a_hang_costs_that_library_and_keeps_the_answers_before_it() -> None:
    answers = ask_libraries([NAMES], SHORT, child=child("time.sleep(600)"))
    assert answers["libfirst.so"] == LibraryAnswer(True)
    assert answers["libsecond.so"] == LibraryAnswer(False, "libsecond.so hung for 1 s")
    assert answers["libthird.so"].loaded is None
    assert "libsecond.so hung" in answers["libthird.so"].problem


@pytest.mark.parametrize(("number", "name"), [(11, "SIGSEGV"), (4, "SIGILL"), (6, "SIGABRT"), (33, "signal 33")])
def test_a_death_is_named_by_its_signal(number: int, name: str) -> None:
    answers = ask_libraries([NAMES], PATIENT, child=child(f"os.kill(os.getpid(), {number})"))
    assert answers["libfirst.so"].loaded is True
    assert answers["libsecond.so"] == LibraryAnswer(False, f"libsecond.so died by {name}")
    assert answers["libthird.so"].loaded is None


def test_an_early_end_is_named_by_its_code() -> None:
    answers = ask_libraries([NAMES], PATIENT, child=child("sys.exit(3)"))
    assert answers["libsecond.so"] == LibraryAnswer(False, "libsecond.so ended with code 3 before it answered")


def test_each_set_has_its_own_child() -> None:
    answers = ask_libraries([("liba.so", "libb.so"), ("libc2.so",)], PATIENT, child=child("os.abort()"))
    assert {name: answer.loaded for name, answer in answers.items()} == {
        "liba.so": True,
        "libb.so": False,
        "libc2.so": True,
    }


def test_garbage_between_the_answers_is_ignored() -> None:
    garbage = r"""
lines = (b"\xff\x00", b"[1, 2]", b"{", b"[" * 2000, b'{"name": 1, "problem": ""}')
sys.stdout.buffer.write(b"\n".join(lines) + b"\n")
print(json.dumps({"name": "libother.so", "problem": ""}))
sys.stdout.flush()
print(json.dumps({"name": sys.argv[2], "problem": "refused"}))
"""
    answers = ask_libraries([NAMES[:2]], PATIENT, child=child(garbage))
    assert answers == {
        "libfirst.so": LibraryAnswer(True),
        "libsecond.so": LibraryAnswer(False, "libsecond.so: refused"),
    }


def test_endless_output_is_cut_off() -> None:
    answers = ask_libraries([NAMES], PATIENT, child=child("while True: print('x' * 1000)"))
    assert answers["libfirst.so"].loaded is True
    assert answers["libsecond.so"] == LibraryAnswer(False, "libsecond.so printed more than 4096 bytes")


def test_a_child_that_closes_its_output_and_stays_is_ended() -> None:
    answers = ask_libraries([NAMES], SHORT, child=child("os.close(1); time.sleep(600)"))
    assert answers["libsecond.so"] == LibraryAnswer(False, "libsecond.so hung for 1 s")


def test_a_grandchild_that_holds_the_pipe_does_not_outlive_the_deadline(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    source = f"""
pid = os.fork()
if pid == 0:
    time.sleep(600)
open({str(note)!r}, "w").write(str(pid))
"""
    answers = ask_libraries([NAMES[:1]], SHORT, child=child(source))
    assert answers["libfirst.so"].loaded is True
    _await_end(int(note.read_text()))


def test_a_child_that_cannot_start_breaks_every_rung_of_its_set() -> None:
    answers = ask_libraries([NAMES], child=["/no/such/program"])
    assert [answer.loaded for answer in answers.values()] == [False] * 3
    assert "could not start" in answers["libfirst.so"].problem


def _await_end(pid: int) -> None:
    """Wait until the process is gone; the signal that ends it may still be on its way."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with os.fdopen(descriptor) as process:
        assert select.select([process], [], [], 30.0)[0], f"process {pid} still runs"
