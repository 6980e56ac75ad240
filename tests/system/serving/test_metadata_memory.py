"""Agent memory that a repository's metadata may use: bounded before it is parsed, one by one and together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tuf.api.metadata import DelegatedRole

from gateway.common.trust.distrust import Distrust, Reason
from gateway.device.agent.fetch.folder import FolderSource
from gateway.device.agent.fetch.repository import SignedRepository
from gateway.device.agent.settings import RepositorySettings
from tests.conformance.publisher import Publisher
from tests.simulators.constants import settings_with

OWNERS = ("acme", "zeta")
UNIT_LIMIT_BYTES = 256 * 1024 * 1024
"""MemoryMax of systemd/edge-agent.service."""
PROGRAM = """
import sys
from datetime import datetime
from pathlib import Path
from gateway.device.agent.fetch.folder import FolderSource
from gateway.device.agent.fetch.repository import SignedRepository
from gateway.common.trust.distrust import Distrust
folder, now, *paths = sys.argv[1:]
public = Path(folder) / "public"
pinned = (public / "metadata/1.root.json").read_bytes()
repository = SignedRepository(Path(folder) / "trusted", FolderSource(public), pinned, datetime.fromisoformat(now))
try:
    repository.refresh()
    for path in paths:
        repository.find(path)
except Distrust as error:
    print(error.reason.value)
print(*(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line))
"""


def published(folder: Path, count: int) -> Publisher:
    """Return a publisher with two owners, the metadata of each with `count` empty lists in it."""
    publisher = Publisher()
    for owner in OWNERS:
        role = f"models-{owner}"
        delegated = publisher.delegate(DelegatedRole(role, [], 1, True, [f"models/{owner}/*/*/*"]))
        delegated.unrecognized_fields["pad"] = [[] for _ in range(count)]
        publisher.add(f"models/{owner}/m/1/release", b"x", role)
    publisher.refresh()
    for place, content in publisher.files.items():
        file = folder / "public" / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return publisher


@pytest.mark.parametrize("count", [120_000, 1_300_000])
def test_the_largest_metadata_that_is_read_stays_within_what_the_unit_gives(tmp_path: Path, count: int) -> None:
    publisher = published(tmp_path, count)
    paths = [f"models/{owner}/m/1/release" for owner in OWNERS]
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), publisher.now.isoformat(), *paths]
    *refused, peak_kib = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert refused == (["too-large"] if count > 250_000 else [])
    assert int(peak_kib) * 1024 < UNIT_LIMIT_BYTES


def test_documents_are_bounded_together(tmp_path: Path) -> None:
    publisher = published(tmp_path, 20_000)
    pinned = publisher.files["metadata/1.root.json"]
    settings = settings_with(RepositorySettings(), values_limit=60_000)
    source = FolderSource(tmp_path / "public")
    repository = SignedRepository(tmp_path / "trusted", source, pinned, publisher.now, settings=settings)
    repository.refresh()
    repository.find("models/acme/m/1/release")
    with pytest.raises(Distrust, match="together") as caught:
        repository.find("models/zeta/m/1/release")
    assert caught.value.reason is Reason.TOO_LARGE
