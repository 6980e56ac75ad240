"""`kill -9` at every step of a publication and of rollouts: devices and people go on where they were, nothing is lost.

The controller dies once at each write transaction, before and after its commit, and at each file that it renames or
removes (`killed_steps`), while devices enrol, poll and report, and commands of `edge-fleet` are repeated until they
succeed.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet.client.client import Json
from fleet.controller.rollouts.replay import replay
from fleet.controller.rollouts.spec_form import read_spec
from fleet.publisher.verify import verify
from gateway.common.terminal.program import FINDING, UNREACHABLE
from tests.simulators.databases import KINDS
from tests.simulators.played_fleet import QUICK, Asked, Played, simulating
from tests.simulators.postgres import FAST, own_cluster
from tests.simulators.publisher import MODELS, Publisher
from tests.simulators.rolled_fleet import SLOT
from tests.simulators.served_fleet import ServedFleet, answered, served_fleet, wait_until

DEVICES, WAIT_S = 10, 900.0
TABLES = QUICK | {"director": {"poll_s": 1.0, "published_every_s": 0.2}, "database": {"lease_s": 1.0}}
RELEASES = ("acme/door-reader/1", "acme/meter-reader/1")
LENIENT = ("--failed-percent", "90", "--success-percent", "50")
KILLED = "tests.simulators.killed_steps"
LIMIT = 50
"""Repetitions of one command."""


class Patient(httpx.HTTPTransport):
    """Repeats what is read until there is an answer."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        end = time.monotonic() + WAIT_S
        while True:
            with suppress(httpx.TransportError):
                answer = super().handle_request(request)
                answer.read()
                if answer.status_code != 503:
                    return answer
                answer.close()
            assert time.monotonic() < end, request.url
            time.sleep(0.2)


class Operator:
    """A person at a shell, with the key of acme's releases."""

    def __init__(self, fleet: ServedFleet, folder: Path) -> None:
        self.shell, self.repeated = Publisher(folder), Counter[str]()
        self.known = {"EDGE_FLEET_URL": fleet.replicas[0].url, "EDGE_FLEET_CA": str(fleet.ca_file)}
        self.known["EDGE_FLEET_TOKEN"] = fleet.token

    def run(self, *words: str | Path) -> str:
        """Run a command again and again until it succeeds, or is refused as done: the answer before was lost."""
        for attempt in range(LIMIT):
            done = self.shell.run(*words, environment=self.known, code=None)
            if done.returncode == 0 or (
                attempt and done.returncode == FINDING and "for that it has to be" in done.stderr
            ):
                return done.stdout
            self.repeated[f"{' '.join(map(str, words[:2]))}: {done.returncode} {done.stderr.strip()[-200:]}"] += 1
            assert done.returncode == UNREACHABLE, self.repeated
            if words[:2] == ("rollouts", "create") and (made := self._created(str(words[3]))):
                return json.dumps(made)
        raise AssertionError(self.repeated)

    def _created(self, target: str) -> Json | None:
        """Return the rollout that a command created whose answer was lost."""
        listed = json.loads(self.run("rollouts", "list", "--json"))["rollouts"]
        return next((one for one in listed if one["target"] == f"models/{target}/release"), None)

    def create(self, target: str, waves: str, soak: str) -> str:
        """Create, approve and start a rollout. Return its id."""
        words = ("--target", target, "--waves", waves, "--soak", soak, *LENIENT, "--json")
        made = json.loads(self.run("rollouts", "create", *words))
        self.run("rollouts", "approve", made["id"], "--yes")
        self.run("rollouts", "start", made["id"])
        return str(made["id"])


@contextmanager
def kept_alive(fleet: ServedFleet, folder: Path, part: int) -> Iterator[Path]:
    """Start the controller again whenever it was killed. Yield the file of the steps at which it was."""
    replica, steps, over = fleet.replicas[0], folder / "steps", threading.Event()
    steps.touch()
    replica.words = [
        word
        for each in replica.words
        for word in ([str(steps), str(part), each] if each == "serve" else [each.replace("'fleet'", repr(KILLED))])
    ]

    def keep() -> None:
        while not over.is_set():
            with suppress(RuntimeError):  # it was killed before it served
                replica.start()
            assert replica.process
            while replica.process.poll() is None and not over.wait(0.05):
                pass
            if not over.is_set() and replica.process.stdout:
                replica.process.stdout.close()

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        wait_until(fleet.ca_file.exists, WAIT_S)
        yield steps
    finally:
        over.set()
        thread.join()


def go_through(fleet: ServedFleet, folder: Path, part: int) -> None:
    """Publish, roll out, pause, resume, abort, take back, and roll out to the end; check what is left."""
    repository = fleet.repository
    repository.add_release("door-reader", "1")
    began = time.monotonic()
    with kept_alive(fleet, folder, part) as steps:
        ann = Operator(fleet, folder / "ann")
        headers = {"authorization": f"Bearer {fleet.token}"}
        client = httpx.Client(
            base_url=fleet.replicas[0].url,
            headers=headers,
            transport=Patient(verify=ssl.create_default_context(cafile=str(fleet.ca_file))),
            timeout=60,
        )
        fleet.clients.append(client)
        (folder / "tokens").write_text("\n".join(fleet.tokens(DEVICES)))
        asked = Asked([fleet.replicas[0].url], fleet.ca_file, fleet.token, client, fleet.database)
        words = ("--tokens", str(folder / "tokens"), "--poll", "1")
        with simulating(asked, folder, DEVICES, {"failing": 10.0}, *words, limit_s=WAIT_S) as played:
            _published(ann, repository.keys["models-acme"][0].private_bytes)
            wait_until(lambda: len(client.get("/v1/releases").json()["items"]) == len(RELEASES), WAIT_S)
            first = ann.create(RELEASES[0], "3,100%", "1h")
            wait_until(lambda: played.states(first)["committed"] + played.states(first)["rolled_back"] == 3, WAIT_S)
            for verb in ("pause", "resume"):
                ann.run("rollouts", verb, first)
            ann.run("rollouts", "abort", first, "--because", "enough")
            ann.run("rollouts", "rollback", first)
            second = ann.create(RELEASES[1], "30%,100%", "0s")
            wait_until(lambda: played.rollout(second)["state"] == "finished", WAIT_S)
            found = played.stopped(60)
            took_s, died = time.monotonic() - began, steps.read_text().splitlines()
            _check(fleet, played, (first, second), found)
    print(f"\nkilled at {len(died)} steps in {took_s:.0f} s; commands repeated: {ann.repeated}")
    print(found["problems"], found["answers"])
    assert len(died) >= (60 if part == 1 else 1)


def _published(ann: Operator, key: bytes) -> None:
    (ann.shell.folder / "acme.pem").write_bytes(key)
    (ann.shell.folder / "acme.pem").chmod(0o600)
    add = ("model", "add", MODELS / SLOT / "1", "--owner", "acme", "--edge-gateway", ann.shell.gateway, "--remote")
    ann.run(*add)
    ann.run("drafts", "sign", "models-acme", "--key", "acme.pem", "--yes")
    ann.run("publish", "--remote")


def _check(fleet: ServedFleet, played: Played, rollouts: tuple[str, str], found: dict[str, Any]) -> None:
    work, (first, second) = fleet.repository.workspace, rollouts
    assert verify(work.public, datetime.now(UTC), work.settings).findings == ()
    assert [*(work.folder / "drafts").iterdir(), *(work.folder / "uploads").glob("[!.]*")] == []
    assert not [*work.public.rglob("*.part")]
    assert found["distrusted"] == 0
    listed = answered(played.operator.get("/v1/rollouts"))["items"]
    assert {one["id"]: one["state"] for one in listed} == {first: "aborted", second: "finished"}
    played.check_rollout(second, DEVICES)
    assert replay(read_spec(played.rollout(first)["spec"]), played.facts(first)).difference is None
    played.check_rows(found)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kind", "part"), [("sqlite", 36), *(pytest.param(kind, 1, marks=pytest.mark.long) for kind in KINDS)]
)
def test_a_controller_that_is_killed_at_every_step(kind: str, part: int, tmp_path: Path) -> None:
    """In `make test` at a few of them."""
    with (
        place(kind) as database,
        served_fleet(tmp_path / "fleet", database=database, tables=TABLES) as fleet,
    ):
        go_through(fleet, tmp_path, part)


@contextmanager
def place(kind: str) -> Iterator[str]:
    """Yield the URL of an empty database."""
    if kind == "sqlite":
        yield ""
        return
    with own_cluster(FAST) as server:
        yield server.url("postgres")
