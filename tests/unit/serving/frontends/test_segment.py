"""One segment: opened without trust, read in place, written by descriptor, never beyond its bounds."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.frontends.segment import Segment
from tests.simulators.examples import examples
from tests.simulators.segments import descriptors, folder, mappings

ANY = st.one_of(st.integers(-4, 60), st.integers(2**31 - 2, 2**31 + 2), st.integers(2**63 - 2, 2**64 - 1))


@pytest.fixture(scope="module")
def shm() -> Iterator[Path]:
    with folder() as made:
        yield made


def made(shm: Path, content: bytes, name: str = "camera") -> Path:
    (shm / name).unlink(missing_ok=True)
    (shm / name).write_bytes(content)
    return shm / name


def refused(fault: Fault, path: Path, *, offset: int = 0, byte_size: int = 4, uid: int | None = None) -> str:
    with pytest.raises(RequestError) as caught:
        Segment("r", path, offset, byte_size, uid)
    assert caught.value.fault is fault
    return caught.value.message


def test_it_is_read_in_place(shm: Path) -> None:
    path = made(shm, bytes(range(64)))
    view = Segment("r", path, 0, 64).view(8, 4)
    assert (view.readonly, bytes(view)) == (True, bytes([8, 9, 10, 11]))
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"\xff", 8)
    assert view[0] == 255


def test_an_offset_needs_no_page_boundary(shm: Path) -> None:
    path = made(shm, bytes(8000) + b"here" + bytes(100))
    assert bytes(Segment("r", path, 8000, 50).view(0, 4)) == b"here"


def test_nothing_can_be_written_through_a_view(shm: Path) -> None:
    array = np.frombuffer(Segment("r", made(shm, bytes(8)), 0, 8).view(0, 8), "u1")
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@settings(deadline=None, max_examples=examples(100))
@given(
    start=st.integers(0, 80) | st.integers(2**63 - 2, 2**64 - 1),
    size=st.integers(1, 80) | st.integers(2**63 - 2, 2**64 - 1),
)
def test_only_what_lies_within_the_file_is_mapped(shm: Path, start: int, size: int) -> None:
    path = shm / "bounds"
    path.write_bytes(bytes(64))
    if start + size <= 64:
        assert Segment("r", path, start, size).byte_size == size
    else:
        assert "invalid args" in refused(Fault.INVALID, path, offset=start, byte_size=size)


@settings(deadline=None, max_examples=examples(200))
@given(offset=ANY, wanted=ANY)
def test_no_bounds_lead_outside(shm: Path, offset: int, wanted: int) -> None:
    path = shm / "bounds"
    path.write_bytes(bytes(range(64)))
    segment = Segment("r", path, 8, 40)
    if offset >= 0 and wanted >= 0 and offset + wanted <= 40:
        expected = bytes(range(64))[8 + offset : 8 + offset + wanted]
        assert bytes(segment.view(offset, wanted)) == segment.copy(offset, wanted) == expected
        return
    for read in (segment.view, segment.copy):
        with pytest.raises(RequestError, match="Invalid offset \\+ byte size for shared memory region: 'r'"):
            read(offset, wanted)


def test_a_truncated_segment_is_refused_and_not_touched(shm: Path) -> None:
    path = made(shm, bytes(8192))
    segment = Segment("r", path, 4096, 4096)
    os.truncate(path, 4096 + 100)
    assert bytes(segment.view(0, 100)) == bytes(100)
    for act in (segment.view, segment.copy, lambda offset, size: segment.write(offset, bytes(size))):
        with pytest.raises(RequestError, match="was truncated, 100 of 101 bytes are left from offset 0 on"):
            act(0, 101)
    os.truncate(path, 0)
    with pytest.raises(RequestError, match="was truncated, 0 of 1 bytes"):
        segment.view(0, 1)
    assert path.stat().st_size == 0


@pytest.mark.parametrize("copied", [False, True], ids=["in place", "copied"])
def test_what_a_truncation_during_a_run_does(shm: Path, copied: bool) -> None:
    """The documentation says so: what is read in place ends the process, what was copied does not."""
    path = made(shm, bytes(8192))
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from gateway.serving.frontends.segment import Segment\n"
        "segment = Segment('r', Path(sys.argv[1]), 0, 8192)\n"
        "frame = segment.copy(0, 8192) if sys.argv[2] == 'True' else segment.view(0, 8192)\n"
        "os.truncate(sys.argv[1], 0)\n"
        "print(frame[8000])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path), str(copied)], capture_output=True, check=False)
    assert (done.returncode, done.stdout) == ((0, b"0\n") if copied else (-signal.SIGBUS, b""))


def test_missing_pages_are_read_by_copy(shm: Path) -> None:
    """A page that reading in place would have to make may be impossible to allocate: SIGBUS on a full /dev/shm."""
    path = made(shm, b"")
    os.truncate(path, 1 << 20)
    segment = Segment("r", path, 0, 1 << 20)
    assert not isinstance(segment.view(0, 8192).obj, mmap.mmap)
    assert path.stat().st_blocks == 0
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"\x01" * mmap.PAGESIZE, 0)
    assert isinstance(segment.view(0, mmap.PAGESIZE).obj, mmap.mmap)
    assert not isinstance(segment.view(0, mmap.PAGESIZE + 1).obj, mmap.mmap)


def test_it_is_written_by_descriptor(shm: Path) -> None:
    path = made(shm, bytes(16))
    segment = Segment("r", path, 4, 8)
    segment.write(2, b"out")
    assert path.read_bytes() == bytes(6) + b"out" + bytes(7)
    with pytest.raises(RequestError, match="Invalid offset"):
        segment.write(6, b"out")


def test_no_room_is_an_error_and_not_the_end(shm: Path) -> None:
    """A limit on file sizes stands in for a full /dev/shm: through a mapping either would be a signal."""
    path = made(shm, b"")
    os.truncate(path, 1 << 20)
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from gateway.common.domain.errors import RequestError\n"
        "from gateway.serving.frontends.segment import Segment\n"
        "segment = Segment('r', Path(sys.argv[1]), 0, 1 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
        "for offset in (0, 1 << 19):\n"
        "    try:\n"
        "        segment.write(offset, b'x' * (1 << 19))\n"
        "    except RequestError as error:\n"
        "        print(error.fault.value, error.message)\n"
    )
    lines = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True).stdout
    assert lines.splitlines() == [
        "TOO_LARGE Unable to write shared memory region: '/camera': only 65536 of 524288 bytes fitted",
        "TOO_LARGE Unable to write shared memory region: '/camera': File too large",
    ]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "there is no such segment"),
        (lambda path: path.symlink_to("/etc/passwd"), "it is a symbolic link"),
        (os.mkfifo, "it is no segment"),
        (lambda path: path.mkdir(), "it is no segment"),
    ],
    ids=["absent", "symlink", "fifo", "folder"],
)
def test_what_is_no_segment_is_not_opened(tmp_path: Path, make, why: str) -> None:
    make(tmp_path / "x")
    message = refused(Fault.INVALID, tmp_path / "x")
    assert message.startswith("Unable to open shared memory region: '/x'")
    assert why in message


def test_another_users_segment(shm: Path) -> None:
    path = made(shm, bytes(8))
    assert "it belongs to user" in refused(Fault.DENIED, path, uid=path.stat().st_uid + 4321)
    Segment("r", path, 0, 8, uid=path.stat().st_uid or None)


def test_a_segment_that_may_not_be_opened(shm: Path) -> None:
    """The test runs in a child without root's powers."""
    path = made(shm, bytes(8))
    path.chmod(0o600)
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from gateway.common.domain.errors import RequestError\n"
        "from gateway.serving.frontends.segment import Segment\n"
        "path = Path(sys.argv[1]); mode = int(sys.argv[2])\n"
        "if os.geteuid() == 0: os.chmod(path.parent, 0o755); os.setgroups([]); os.setuid(65534)\n"
        "try:\n"
        "    segment = Segment('r', path, 0, 8); print(bytes(segment.view(0, 8))); segment.writer()\n"
        "except RequestError as error:\n"
        "    print(error.fault.value, error.message)\n"
    )

    def child(mode: int) -> str:
        path.chmod(mode)
        command = [sys.executable, "-c", script, str(path), str(mode)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    reason = "INVALID Unable to open shared memory region: '/camera': this gateway's user may not open it"
    assert child(0o000).startswith(reason)
    assert child(0o444).splitlines()[0] == str(bytes(8))
    assert child(0o444).splitlines()[1].startswith(reason)


def test_a_view_outlives_its_segment_and_then_nothing_is_left(shm: Path) -> None:
    path = made(shm, bytes(range(256)) * 64)
    gc.collect()  # what earlier tests of this process left open may be closed at any time
    before = descriptors(shm)
    segment = Segment("r", path, 0, 16384)
    segment.writer()
    array = np.frombuffer(segment.view(0, 256), "u1")
    path.unlink()
    assert not segment.linked
    del segment
    assert mappings(path) == 1
    assert array[7] == 7
    del array
    assert (mappings(path), descriptors(shm)) == (0, before)


def test_an_output_does_not_go_to_what_has_taken_the_name(shm: Path) -> None:
    path = made(shm, bytes(8))
    segment = Segment("r", path, 0, 8)
    made(shm, bytes(8))
    with pytest.raises(RequestError, match="another segment has taken its name"):
        segment.write(0, b"x")
    assert stat.S_ISREG(path.stat().st_mode)
    assert path.read_bytes() == bytes(8)
