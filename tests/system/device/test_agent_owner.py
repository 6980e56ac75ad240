"""Root may carry out the agent's verbs: it does so as the owner of the store, and leaves nothing there of its own."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulators.fleet_repository import FleetRepository

ROOT = Path(__file__).parents[3]
OWNER, GROUP = 54_321, 54_322
"""Ids without an account."""
DEVICE = "door-1"
VERBS = (["bootstrap"], ["sync", "--json"], ["status", "--json"], ["verify", "--json"])
SCRIPT = """
import json, os, sys
from gateway.device.agent.cli import main
stores, verbs = json.loads(sys.argv[1])
codes = [main([*verb, "--state", store]) for store in stores for verb in verbs]
print("\\nended", json.dumps([codes, os.geteuid(), os.getgroups()]))
"""
"""Several stores, since what a verb imports lies where only root may look, perhaps: the first store's verbs load it."""


class Place:
    """A folder that every user may pass through: a repository, a bootstrap folder for root only, and stores."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        repository = FleetRepository(folder / "repository")
        profile = repository.add_file("profiles/door.toml", b"schema = 1\n")
        repository.assign(DEVICE, {"reader": repository.add_release("reader", "1")}, [profile])
        self.source = folder / "given"
        self.source.mkdir(mode=0o700)
        url = repository.public.as_uri()
        told = {"schema": 1, "device": DEVICE, "repository": url, "assignment": f"{url}/assignments/{DEVICE}.json"}
        (self.source / "device.json").write_text(json.dumps(told))
        (self.source / "root.json").write_bytes(repository.root_bytes(1))
        subprocess.run(["/bin/chmod", "--recursive", "a+rX", str(repository.workspace.folder)], check=True)

    def store(self, name: str, uid: int, gid: int) -> Path:
        """Make an empty store that belongs to this user and group."""
        folder = self.folder / name
        folder.mkdir()
        os.chown(folder, uid, gid)
        return folder

    def carry_out(self, stores: list[Path], *verbs: list[str], wrap: tuple[str, ...] = ()) -> str:
        """Run each verb for each store, in one process of root's; return what it said."""
        named = [[*verb, str(self.source)] if verb == ["bootstrap"] else verb for verb in verbs]
        asked = json.dumps([[str(store) for store in stores], named])
        command = [*wrap, sys.executable, "-c", SCRIPT, asked]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def place() -> Iterator[Place]:
    """Yield a place that is not below pytest's own folder, which is closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="edge-agent-owner."))
    folder.chmod(0o755)
    yield Place(folder)
    shutil.rmtree(folder)


def _owners(store: Path) -> dict[str, tuple[int, int]]:
    found = ((path, path.lstat()) for path in (store, *store.rglob("*")))
    return {str(path.relative_to(store)): (one.st_uid, one.st_gid) for path, one in found}


def test_everything_in_the_store_is_its_owner_s(place: Place) -> None:
    """A sync without a gateway gets as far as metadata, a profile and what is active."""
    own, other = place.store("own", 0, 0), place.store("other", OWNER, GROUP)
    said = place.carry_out([own, other], *VERBS)
    codes, uid, groups = json.loads(said.rpartition("ended ")[2].splitlines()[0])
    assert (uid, groups) == (OWNER, [GROUP]), said
    assert [code for verb, code in zip(VERBS * 2, codes, strict=True) if verb[0] != "sync"] == [0] * 6, said
    assert "the daemon does not answer" in said
    assert set(_owners(own)) == set(_owners(other))
    assert {"device.json", "root.json", "journal.sqlite", "agent.lock", "metadata/timestamp.json"} <= set(
        _owners(other)
    )
    assert set(_owners(other).values()) == {(OWNER, GROUP)}
    assert set(_owners(own).values()) == {(0, 0)}


def test_the_group_may_read_what_is_verified_and_nobody_else_anything(place: Place) -> None:
    own, other = place.store("own", 0, 0), place.store("other", OWNER, GROUP)
    place.carry_out([own, other], *VERBS)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in other.rglob("*")}
    assert {path.name for path, mode in modes.items() if mode & 0o027} == set()
    assert {name for name in ("root.json", "device.json") if modes[other / name] & 0o040} == {
        "root.json",
        "device.json",
    }
    assert modes[other / "journal.sqlite"] == 0o600


def test_a_store_that_nobody_made_yet_is_root_s(place: Place) -> None:
    """Unless it is the home of the user edge-agent: that is seen where there is one, in the test of the boot."""
    place.carry_out([place.folder / "new" / "store"], ["bootstrap"])
    assert set(_owners(place.folder / "new").values()) == {(0, 0)}


def test_root_that_may_not_become_the_owner_says_so_and_writes_nothing(place: Place) -> None:
    other = place.store("other", OWNER, GROUP)
    said = place.carry_out([other], ["bootstrap"], wrap=("/usr/bin/setpriv", "--bounding-set=-setuid,-setgid"))
    assert f"{other}: belongs to the user id {OWNER}, which this process may not become" in said
    assert set(_owners(other)) == {"."}
