"""A publisher whose power fails while `edge-fleet publish` runs (a scenario of `power_machine`).

Waiting to be published are a release with its files and a new key of the timestamp: every kind of file is written.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tuf.api.exceptions import RepositoryError

from fleet.cli import main, publish
from fleet.repository import metadata_file, root_versions
from fleet.settings import FleetSettings
from fleet.verify import verify
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.stock_client import StockClient

OLD, NEW = "models/acme/reader/1/release", "models/acme/reader/2/release"
PUBLISHED = "published"
assert publish.command  # imported before power is on: not a part of what is cut


class Unpublished(FleetRepository):
    """What it does waits as drafts."""

    def write(self, _: object) -> None:
        """Nothing: `edge-fleet publish` will."""


def prepare(folder: Path) -> None:
    """Release 1 is published and a client has seen it; release 2 and a new timestamp key wait."""
    repository = FleetRepository(folder / "fleet")
    repository.add_release("reader", "1")
    StockClient(folder / "client", repository.public, repository.root_bytes()).refresh()
    repository.__class__ = Unpublished
    repository.add_release("reader", "2", variants={"big": bytes(300_000), "small": b"small"})
    repository.draft_rotation("timestamp")
    repository.keep_keys()


def run(folder: Path, claim: Callable[[str], None]) -> None:
    """The command itself; done a second time there is nothing left but a new timestamp."""
    if main(["publish", "--dir", str(folder / "fleet")]) == 0:
        claim(PUBLISHED)


def inspect(folder: Path) -> dict[str, Any]:
    """What clients make of the repository, what `verify` says, what is left lying about."""
    public = folder / "fleet" / "public"
    report = verify(public, datetime.now(UTC), FleetSettings())
    drafts = folder / "fleet" / "drafts"
    return {
        "old client": _asked(folder / "client", public),
        "new client": _asked(None, public),
        "findings": [f"{finding.where} {finding.problem}" for finding in report.findings],
        "root": root_versions(public)[-1],
        "drafts": sorted(file.name for file in drafts.iterdir()),
        "parts": sorted(file.name for file in public.rglob("*.part")),
    }


def _asked(known: Path | None, public: Path) -> str:
    """The newest release that a client gets, or why it gets none. Its own files lie apart from what is cut."""
    with TemporaryDirectory() as place:
        device = Path(place) / "device"
        if known:
            shutil.copytree(known, device)
        client = StockClient(device, public, (public / metadata_file("root", 1)).read_bytes())
        try:
            found = client.refresh().get_targetinfo(NEW)
            return NEW if found and client.download(NEW) else OLD if client.download(OLD) else "neither"
        except RepositoryError as error:
            return f"{type(error).__name__}: {error}"
