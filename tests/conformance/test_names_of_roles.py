"""Two roles that delegate to one name, each to keys of its own: each use of the document checks whose it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tuf.api.metadata import DelegatedRole, Delegations, Metadata, TargetFile, Targets

from gateway.common.transfer.source import FetchError, SourceDocument
from gateway.common.trust.distrust import Distrust
from gateway.device.agent.fetch.repository import SignedRepository
from tests.conformance.publisher import Publisher, key

ACME, ZETA, OWN = "models/acme/m/1/release", "models/acme/m/2/release", "models/mallory/m/1/release"


class Thief:
    """A source that serves what mallory signed under acme's name while `lies`. Snapshot states versions only."""

    name = "the thief's"

    def __init__(self, files: dict[str, bytes], forged: bytes) -> None:
        self.files, self.forged, self.lies = files, forged, False

    def read(self, path: str, limit_bytes: int, *, etag: str = "", query: object = None) -> SourceDocument:
        if self.lies and path == "metadata/1.models-acme.json":
            return SourceDocument(self.forged)
        if path not in self.files:
            raise FetchError(path, status=404)
        return SourceDocument(self.files[path])

    def copy(self, path: str, receiver: object, size_bytes: int) -> None:
        """Fail: no blob is asked for."""
        raise NotImplementedError


def test_a_name_that_two_roles_give_is_verified_for_each(tmp_path: Path) -> None:
    publisher = Publisher()
    publisher.delegate(DelegatedRole("models-acme", [], 1, False, ["models/acme/*/*/*"]))
    mallory = publisher.delegate(DelegatedRole("models-mallory", [], 1, False, ["models/mallory/*/*/*"]))
    publisher.add(ACME, b"acme's", "models-acme")
    publisher.refresh()
    forged = Metadata(Targets(1, None, mallory.expires, {ZETA: TargetFile.from_data(ZETA, b"mallory's", ["sha256"])}))
    forged.sign(key(7))
    thief = Thief(publisher.files, forged.to_bytes())
    pinned = publisher.files["metadata/1.root.json"]

    public = key(7).public_key
    role = DelegatedRole("models-acme", [public.keyid], 1, False, ["models/mallory/*/*/*"])
    mallory.delegations = Delegations({public.keyid: public}, {"models-acme": role})
    publisher.publish("models-mallory", "snapshot", "timestamp")

    repository = SignedRepository(tmp_path / "trusted", thief, pinned, publisher.now)
    repository.refresh()
    assert repository.find(ACME).target.length == len(b"acme's")
    thief.lies = True
    with pytest.raises(Distrust):
        repository.find(OWN)
    with pytest.raises(Distrust):
        repository.find(ZETA)
