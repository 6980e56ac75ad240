"""Watch of model directories, with the kernel's own events."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest

from gateway.serving.store import folder_watch
from gateway.serving.store.folder_watch import FolderWatch

pytestmark = pytest.mark.asyncio
SETTLE_S, LIMIT_S = 0.1, 20.0
QUEUE = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


class Watched:
    """Watch of one folder, which it follows again at each change, as the daemon does."""

    def __init__(self, folder):
        self.folder, self.changes, self._changed = folder, 0, asyncio.Event()
        self.watch = FolderWatch(self._note)

    def _note(self):
        self._following = asyncio.create_task(self._follow())

    async def _follow(self):
        await self.watch.follow([self.folder])
        self.changes += 1
        self._changed.set()

    async def change(self):
        """Wait for the next change, or for one that nobody has waited for."""
        await asyncio.wait_for(self._changed.wait(), LIMIT_S)
        self._changed.clear()

    async def nothing_more(self):
        """Let the events that are there be read, and a report that is due be made."""
        await asyncio.sleep(3 * SETTLE_S)
        assert not self._changed.is_set()


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(folder_watch, "SETTLE_S", SETTLE_S)


@asynccontextmanager
async def watched(folder):
    made = Watched(folder)
    await made.watch.follow([folder])
    try:
        yield made
    finally:
        made.watch.close()


@pytest.fixture
def models(tmp_path):
    folder = tmp_path / "state" / "models"
    (folder / "first" / "1").mkdir(parents=True)
    (folder / "first" / "1" / "model.onnx").write_bytes(b"1")
    return folder


@pytest.fixture
def outside(tmp_path):
    """Return a folder on the same disk with a model in it."""
    (tmp_path / "outside" / "1").mkdir(parents=True)
    (tmp_path / "outside" / "1" / "model.onnx").write_bytes(b"2")
    return tmp_path / "outside"


CHANGES = {
    "file": lambda models, _: (models / "bare.onnx").write_bytes(b"3"),
    "copied folder": lambda models, outside: shutil.copytree(outside, models / "second"),
    "moved folder": lambda models, outside: outside.rename(models / "second"),
    "removed": lambda models, _: shutil.rmtree(models / "first"),
    "written": lambda models, _: (models / "first/1/model.onnx").write_bytes(b"4"),
    "time of a folder": lambda models, _: subprocess.run(["/usr/bin/touch", "-m", models / "first"], check=True),
    "mode": lambda models, _: (models / "first/1/model.onnx").chmod(0o600),
    "link": lambda models, outside: (models / "second").symlink_to(outside),
    "renamed on save": lambda models, outside: (outside / "1/model.onnx").rename(models / "first/1/model.onnx"),
    "moved away": lambda models, outside: (models / "first").rename(outside / "first"),
    "replaced": lambda models, outside: (models.rename(outside / "old"), outside.rename(models)),
    "removed whole": lambda models, _: shutil.rmtree(models),
    "parent moved": lambda models, outside: models.parent.rename(outside / "moved"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_is_reported_once_and_the_next_one_too(models, outside, change):
    async with watched(models) as seen:
        CHANGES[change](models, outside)
        await seen.change()
        await seen.nothing_more()
        shutil.rmtree(models, ignore_errors=True)
        (models / "third" / "1").mkdir(parents=True)
        await seen.change()
        (models / "third" / "1" / "model.onnx").write_bytes(b"5")
        await seen.change()


async def test_names_that_the_scan_skips_and_neighbours_of_the_folder_do_not_count(models, outside):
    async with watched(models) as seen:
        (models / "first/1/.model.onnx.X2b").write_bytes(b"3")
        (models / ".git").mkdir()
        (models / ".git" / "index").touch()
        (models.parent / "state.sqlite").write_bytes(b"4")
        (models.parent / "other").mkdir()
        (models / "first/1/model.onnx").read_bytes()
        await seen.nothing_more()
        (models / "first/1/.model.onnx.X2b").rename(models / "first/1/model.onnx")
        await seen.change()


async def test_a_folder_that_is_made_later_is_found_with_what_is_above_it(tmp_path):
    folder = tmp_path / "a" / "b" / "models"
    async with watched(folder) as seen:
        folder.mkdir(parents=True)
        await seen.change()
        (folder / "bare.onnx").write_bytes(b"1")
        await seen.change()


async def test_a_file_that_is_open_for_writing_is_waited_for(models):
    async with watched(models) as seen:
        with (models / "slow.onnx").open("wb", buffering=0) as file:
            file.write(b"1")
            await seen.nothing_more()
            file.write(b"2")
            await seen.nothing_more()
        await seen.change()
        await seen.nothing_more()


async def test_a_file_that_stays_open_is_reported_after_a_longer_time(models, monkeypatch):
    monkeypatch.setattr(folder_watch, "OPEN_S", 2 * SETTLE_S)
    async with watched(models) as seen:
        with (models / "slow.onnx").open("wb", buffering=0) as file:
            file.write(b"1")
            await seen.change()
            file.write(b"2")
            await seen.change()


async def test_changes_without_an_end_are_reported_now_and_then(models, monkeypatch):
    monkeypatch.setattr(folder_watch, "LONGEST_S", 5 * SETTLE_S)
    async with watched(models) as seen:

        async def change_always():
            for number in range(10_000):
                (models / "log.txt").write_text(str(number))
                await asyncio.sleep(SETTLE_S / 10)

        changing = asyncio.create_task(change_always())
        await seen.change()
        await seen.change()
        changing.cancel()


async def test_links_that_lead_back_end(models):
    (models / "first" / "up").symlink_to(models)
    (models / "first" / "again").symlink_to(models / "first")
    async with watched(models) as seen:
        (models / "first/1/model.onnx").write_bytes(b"2")
        await seen.change()


async def test_a_link_that_is_the_folder_is_followed_and_may_be_replaced(models, outside, tmp_path):
    link = tmp_path / "current"
    link.symlink_to(models)
    async with watched(link) as seen:
        (models / "bare.onnx").write_bytes(b"1")
        await seen.change()
        (tmp_path / "new").symlink_to(outside)
        (tmp_path / "new").rename(link)
        await seen.change()
        (outside / "1/model.onnx").write_bytes(b"3")
        await seen.change()


async def test_any_link_on_the_way_to_the_folder_may_be_replaced(models, outside, tmp_path):
    (tmp_path / "releases").mkdir()
    (tmp_path / "releases" / "a").symlink_to("../state")
    (tmp_path / "releases" / "current").symlink_to("a")
    (tmp_path / "top").symlink_to("releases/current")
    (outside / "models").mkdir()
    async with watched(tmp_path / "top" / "models") as seen:
        for link, target in (("releases/current", "../outside"), ("top", "state"), ("releases/a", "../outside")):
            (tmp_path / "new").symlink_to(target)
            (tmp_path / "new").rename(tmp_path / link)
            if link == "releases/a":  # it is not on the way any more
                await seen.nothing_more()
            else:
                await seen.change()
        (models / "bare.onnx").write_bytes(b"1")
        await seen.change()


async def test_a_link_to_itself_hides_no_folder(models):
    (models / "itself").symlink_to("itself")
    async with watched(models) as seen:
        (models / "first/1/model.onnx").write_bytes(b"2")
        await seen.change()


async def test_a_disk_that_does_not_answer_stops_nothing_else(models, monkeypatch):
    """The watchdog would kill a gateway that serves well."""
    answers, real, asked = threading.Event(), os.scandir, threading.Event()

    def hung(place):
        asked.set()
        assert answers.wait(LIMIT_S)
        return real(place)

    async with watched(models) as seen:
        monkeypatch.setattr(folder_watch.os, "scandir", hung)
        (models / "second").mkdir()
        await asyncio.to_thread(asked.wait, LIMIT_S)
        again = asyncio.create_task(seen.watch.follow([models]))
        await asyncio.sleep(SETTLE_S)
        assert not again.done()
        (models / "second" / "1").mkdir()
        answers.set()
        await again
        await seen.change()
        (models / "second" / "1" / "model.onnx").write_bytes(b"1")
        await seen.change()


async def test_a_folder_that_is_made_while_its_neighbours_are_listed_is_watched(models, monkeypatch):
    answers, real, listed = threading.Event(), os.scandir, threading.Event()

    def slow(place):
        with real(place) as entries:
            found = [*entries]
        if place == models / "first":
            listed.set()
            assert answers.wait(LIMIT_S)
        return nullcontext(found)

    monkeypatch.setattr(folder_watch.os, "scandir", slow)
    seen = Watched(models)
    following = asyncio.create_task(seen.watch.follow([models]))
    await asyncio.to_thread(listed.wait, LIMIT_S)
    (models / "first" / "2").mkdir()
    await asyncio.sleep(SETTLE_S / 2)
    answers.set()
    await following
    await seen.change()
    await seen.nothing_more()
    (models / "first" / "2" / "model.onnx").write_bytes(b"2")
    await seen.change()
    seen.watch.close()


async def test_a_folder_whose_mode_was_wrong_for_a_moment_is_read_again(outside):
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        folder = Path(place, "models")
        folder.mkdir()
        if os.geteuid() == 0:
            os.chown(folder, 65534, -1)
            os.seteuid(65534)
        try:
            async with watched(folder) as seen:
                for mode in (0, 0o755):
                    folder.chmod(mode)
                    await seen.change()
                    await seen.nothing_more()
                (folder / "bare.onnx").write_bytes(b"1")
                await seen.change()
        finally:
            os.seteuid(os.getuid())


async def test_lost_events_are_a_change(models):
    async with watched(models) as seen:
        hidden, others = models / ".a", models / ".b"
        hidden.touch()
        for _ in range(QUEUE // 2 + 10):  # two events each, which do not count; the queue overflows
            hidden.rename(others)
            hidden, others = others, hidden
        await seen.change()


@pytest.mark.parametrize("lack", ["watches", "instances", "folders"])
async def test_without_watches_it_looks_now_and_then(models, monkeypatch, caplog, lack):
    monkeypatch.setattr(folder_watch, "LOOK_S", SETTLE_S / 2)
    real = folder_watch.ctypes.CDLL(None, use_errno=True)

    def refused(*_arguments):
        folder_watch.ctypes.set_errno(errno.ENOSPC if lack == "watches" else errno.EMFILE)
        return -1

    if lack == "folders":
        monkeypatch.setattr(folder_watch, "MOST_FOLDERS", 1)
    else:
        name = {"watches": "inotify_add_watch", "instances": "inotify_init1"}[lack]
        monkeypatch.setattr(real, name, refused, raising=False)
        monkeypatch.setattr(folder_watch.ctypes, "CDLL", lambda *_arguments, **_options: real)
    async with watched(models) as seen:
        await seen.change()  # what changed before the first look
        (models / "first/1/model.onnx").write_bytes(b"22")
        await seen.change()
        await seen.nothing_more()
    assert caplog.text.count("changes of models are found after") == 1
    assert "sysctl" in caplog.text


async def test_it_looks_no_more_once_there_are_watches(models, monkeypatch):
    async with watched(models) as seen:
        with monkeypatch.context() as few:
            few.setattr(folder_watch, "MOST_FOLDERS", 1)
            await seen.watch.follow([models])
        looking = seen.watch._looking
        assert not looking.done()
        await seen.watch.follow([models])
        assert seen.watch._looking is None
        await asyncio.wait({looking})
        assert looking.cancelled()


MOUNTING = """
import asyncio, os, subprocess, sys
from pathlib import Path
from gateway.common.wire import direct_loop
from gateway.serving.store import folder_watch

async def main(folder):
    if isinstance(loop := asyncio.get_running_loop(), direct_loop.DirectLoop):
        loop.direct.serve = print  # as with gRPC: asyncio's epoll is within another one
    folder_watch.SETTLE_S = 0.05
    changed = asyncio.Event()
    watch = folder_watch.FolderWatch(changed.set)
    await watch.follow([folder])
    mount = ["mount", "--bind", sys.argv[2], folder]
    for command in (mount, ["touch", folder / "1" / "model.onnx"], ["umount", folder]):
        await (await asyncio.create_subprocess_exec(*map(str, command))).wait()
        await asyncio.wait_for(changed.wait(), 10)
        changed.clear()
    await (await asyncio.create_subprocess_exec("mount", "--bind", "/usr", "/mnt")).wait()
    await asyncio.sleep(0.3)
    print("other", changed.is_set())
    before = os.times()
    await asyncio.sleep(1)
    after = os.times()
    print("busy", after.user + after.system - before.user - before.system > 0.1)

{"asyncio": asyncio.run, "direct": direct_loop.run}[sys.argv[3]](main(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("loop", ["asyncio", "direct"])
async def test_a_mount_over_the_folder_is_a_change_and_costs_nothing_afterwards(models, outside, loop):
    command = ["unshare", "--mount", sys.executable, "-c", MOUNTING, str(models), str(outside), loop]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["other", "False", "busy", "False"], done.stderr
