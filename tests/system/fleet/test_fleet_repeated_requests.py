"""A controller that is killed with SIGKILL in the middle of a request: it is done once, and its answer arrives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from fleet.client.client import Access, Client, Json
from tests.simulators import databases
from tests.simulators.served_fleet import Replica, ServedFleet, answered, served_fleet

pytestmark = pytest.mark.timeout(180)


@contextmanager
def _asked(fleet: ServedFleet, restarted: threading.Event) -> Iterator[Future[Json]]:
    """Send a request like commands do; it waits for the restart before it is sent again."""
    access = Access(fleet.replicas[0].url, fleet.token, str(fleet.ca_file))
    client = Client(access, sleep=lambda _: restarted.wait(90))
    with ThreadPoolExecutor(1) as threads:
        yield threads.submit(client.ask, "POST", "/v1/tokens", body={"name": "ben", "role": "viewer"})


def _start_to_be_killed(replica: Replica, when: str) -> None:
    usual = replica.words
    killed = [part if part != "fleet" else "tests.simulators.killed_serve" for part in usual]
    replica.words = [*killed[: killed.index("serve")], when, *killed[killed.index("serve") :]]
    replica.start()
    replica.words = usual


def _start_again(replica: Replica) -> None:
    assert replica.process
    assert replica.process.stdout
    assert replica.process.wait(90) == -9
    replica.process.stdout.close()
    replica.start()


@pytest.mark.parametrize(
    ("kind", "when"),
    [
        ("sqlite", "before"),
        ("postgresql", "after"),
        pytest.param("sqlite", "after", marks=pytest.mark.long),
        pytest.param("postgresql", "before", marks=pytest.mark.long),
    ],
)
def test_a_token_is_made_once_and_its_secret_arrives(tmp_path: Path, kind: str, when: str) -> None:
    restarted = threading.Event()
    with databases.url(kind, tmp_path) as url, served_fleet(tmp_path / "fleet", database=url) as fleet:
        _start_to_be_killed(fleet.replicas[0], when)
        with _asked(fleet, restarted) as answer:
            _start_again(fleet.replicas[0])
            restarted.set()
            secret = answer.result(90)["token"]
        operator = fleet.operator()
        assert [entry["action"] for entry in answered(operator.get("/v1/audit"))["items"]] == ["tokens.create"]
        assert answered(operator.get("/v1/audit/verify"))["ok"]
        assert operator.get("/v1/devices", headers={"authorization": f"Bearer {secret}"}).status_code == 200
