"""Scenario of `power_machine`: the power fails while `edge-fleet publish` runs.

A release with its files and a new timestamp key wait for publication, so every kind of file is written.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tuf.api.exceptions import RepositoryError

from fleet.cli import main, publish
from fleet.publisher.repository import metadata_file, root_versions
from fleet.publisher.settings import FleetSettings
from fleet.publisher.verify import verify
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.stock_client import StockClient

OLD, NEW = "models/acme/reader/1/release", "models/acme/reader/2/release"
PUBLISHED = "published"
assert publish.command  # imported before the scenario, so that its imports are not traced


class Unpublished(FleetRepository):
    """Repository whose changes stay drafts."""

    def write(self, _: object) -> None:
        """Do nothing: `edge-fleet publish` will publish."""


def prepare(folder: Path) -> None:
    """Publish release 1, which a client reads; leave release 2 and a new timestamp key as drafts."""
    repository = FleetRepository(folder / "fleet")
    repository.add_release("reader", "1")
    StockClient(folder / "client", repository.public, repository.root_bytes()).refresh()
    repository.__class__ = Unpublished
    repository.add_release("reader", "2", variants={"big": bytes(300_000), "small": b"small"})
    repository.draft_rotation("timestamp")
    repository.keep_keys()


def run(folder: Path, claim: Callable[[str], None]) -> None:
    """Run the command. A second run only makes a new timestamp."""
    if main(["publish", "--dir", str(folder / "fleet")]) == 0:
        claim(PUBLISHED)


def inspect(folder: Path) -> dict[str, Any]:
    """Return what clients read, what `verify` finds, and which files are left."""
    public = folder / "fleet" / "public"
    report = verify(public, datetime.now(timezone.utc), FleetSettings())
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
    """Return the newest release that a client gets, or the error. The client's files are not on the cut disk."""
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
