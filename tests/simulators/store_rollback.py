"""Scenario for `power`: release 3 is assigned, fails its probation and is rolled back; release 2 keeps serving."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.common.domain.update import Failure, Step
from gateway.common.files import durable
from gateway.common.store.blobs import LocalBlobs
from gateway.device.store.journal import Journal
from tests.simulators import store_update
from tests.simulators.store_update import NOW, SETTINGS, SLOT, accept, activation, collect, digest, take

prepare = store_update.prepare


def run(folder: Path, claim: Callable[[str], None]) -> None:
    """Try release 3 if it was not rejected. In the end nothing of it is on disk."""
    blobs = LocalBlobs(folder / "blobs", SETTINGS)
    blobs.prepare()
    durable.sweep(folder)
    with contextlib.closing(Journal.open(folder)) as journal:
        accept(journal, "3", lambda _: None)
        if journal.update(SLOT) is None and not journal.rejected(SLOT, digest("3")):
            journal.begin(activation("3"), 3, NOW)
        while update := journal.update(SLOT):
            if update.step is Step.ROLL_BACK:
                journal.finish(SLOT, NOW)
            elif update.step is Step.PROBATION:
                journal.fail(SLOT, Failure(Step.PROBATION, "slower than before", {"p99_us": 9.5}), NOW)
                claim(json.dumps({"rejected": "slower than before"}))
            else:
                take(update.step, folder, journal, blobs, claim)
        collect(folder, blobs)


def inspect(folder: Path) -> dict[str, Any]:
    """Return the same as after an update, why release 3 was rejected, and how each update ended."""
    with contextlib.closing(Journal.open(folder)) as journal:
        ended = [f"{update.activation.version} {update.step.value}" for update in journal.finished(10)]
        rejected = journal.rejected(SLOT, digest("3"))
    return {**store_update.inspect(folder), "rejected": rejected, "ended": ended}
