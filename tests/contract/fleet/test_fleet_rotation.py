"""New online keys under a running controller, by the operator's own commands, while simulated devices poll."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from fleet.cli import main
from fleet.controller.config import FleetConfig
from fleet.controller.control.maintenance import renew_published
from fleet.controller.control.settings import DirectorSettings
from fleet.controller.database import assignments
from fleet.publisher.roles import DIRECTOR, ROOT, TARGETS, TIMESTAMP
from tests.load.settings import Settings
from tests.load.simulate import Run, simulate
from tests.simulators.asking import enrolment_token
from tests.simulators.constants import settings_with
from tests.simulators.controller import RunningController, controlling

DEVICES = 4
LIMIT_S = 60.0
SOON = FleetConfig(director=settings_with(DirectorSettings(), published_every_s=0.0))


def rotate(running: RunningController, role: str, signed_by: str, draft: str) -> None:
    """Rotate as fleet/README.md says: a new key, a draft, the signatures of `signed_by`, publish."""
    folder, keys = str(running.folder), running.folder / "keys"
    running.repository.keep_keys()
    assert main(["keys", "new", f"{role}-2", "--out", str(keys), "--no-passphrase"]) == 0
    assert main(["rotate", role, "--key", str(keys / f"{role}-2.pub"), "--dir", folder]) == 0
    for key in running.repository.keys[signed_by][:2]:
        secret = keys / f"{key.public_key.keyid}.pem"
        assert main(["sign", f"{folder}/drafts/{draft}.json", "--key", str(secret), "--yes"]) == 0
    assert main(["publish", "--dir", folder]) == 0


def signers_of_assignments(running: RunningController) -> dict[str, set[str]]:
    """Return by device the ids of the keys that signed its assignment last."""
    with running.client() as operator:
        names = [one["id"] for one in operator.get("/v1/devices").json()["items"]]
    with running.control.database.read() as connection:
        stored = {name: assignments.current(connection, name) for name in names}
    return {
        name: {signature["keyid"] for signature in json.loads(one.content)["signatures"]}
        for name, one in stored.items()
        if one
    }


async def played(running: RunningController, meanwhile: Callable[[], Any]) -> dict[str, Any]:
    """Let devices poll before, while and after `meanwhile` runs; the simulation's summary."""
    asked: list[int] = [0]
    settings = Settings(running.url, DEVICES, poll_s=0.1, retry_s=0.1, quiet=True, spread=False)
    tokens = [enrolment_token(running) for _ in range(DEVICES)]
    run = Run(settings, tokens=tokens, authority=running.ca_file.read_text(), seconds=LIMIT_S)

    def note(tally: Any) -> None:
        asked[0] = sum(count for (what, _), count in tally.answers.items() if what == "assignment")

    async def more(polls: int) -> None:
        wanted = asked[0] + polls
        while asked[0] < wanted:
            assert not playing.done(), playing
            await asyncio.sleep(0.05)

    playing = asyncio.create_task(simulate(run, note))
    await more(2 * DEVICES)
    await asyncio.to_thread(meanwhile)
    await more(5 * DEVICES)
    playing.cancel()
    return await playing


def test_a_new_directors_key_refuses_no_poll(tmp_path: Path) -> None:
    with controlling(tmp_path / "c", SOON) as running:
        found = asyncio.run(played(running, lambda: rotate(running, DIRECTOR, TARGETS, TARGETS)))
        assert set(found["answers"]["assignment"]) == {"200", "304"}, found["answers"]
        assert (found["problems"], found["distrusted"]) == ({}, 0)
        (new,) = {key.keyid for key in running.control.publications.fresh().director.keys}
        assert list(signers_of_assignments(running).values()) == [{new}] * DEVICES


def test_a_new_key_of_timestamp_renews_what_is_published(tmp_path: Path) -> None:
    with controlling(tmp_path / "c", SOON) as running:
        rotate(running, TIMESTAMP, ROOT, ROOT)
        control = running.control
        life = timedelta(days=control.workspace.settings.timestamp_expiry_d)
        assert renew_published(control.workspace, control.keys, running.clock() + life / 2, 0.9)
        published = running.repository.published
    assert published.root
    assert published.timestamp
    assert list(published.timestamp.signatures) == published.root.signed.roles[TIMESTAMP].keyids
    assert published.timestamp.signed.expires > running.clock() + life
