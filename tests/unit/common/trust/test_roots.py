"""The chain of roots: each is signed by its predecessor and by itself, from the pinned one on."""

from __future__ import annotations

import pytest
from tuf.api.metadata import Metadata, Root

from gateway.common.trust.chain import trusted_root
from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.settings import TrustSettings
from tests.simulators.constants import settings_with
from tests.simulators.fleet_repository import FleetRepository


def chain_reason(pinned: bytes, roots: list[bytes], version: int, **settings: int) -> Reason:
    with pytest.raises(Distrust) as caught:
        trusted_root(pinned, roots, version, settings_with(TrustSettings(), **settings))
    return caught.value.reason


def test_each_root_is_signed_by_its_predecessor_and_by_itself(repository: FleetRepository) -> None:
    for _ in range(3):
        repository.rotate("root")
    one, *later = [repository.root_bytes(version) for version in range(1, 5)]
    assert trusted_root(one, later, 4).version == 4
    assert trusted_root(one, later, 2).version == 2
    assert trusted_root(later[1], [one, *later], 4).version == 4  # pinned at 3: what is older is not asked
    assert trusted_root(later[2], later, 1).version == 4  # the pinned root is the oldest that counts
    assert chain_reason(one, later[1:], 4) is Reason.DAMAGED
    assert chain_reason(one, later[:2], 4) is Reason.DAMAGED
    assert chain_reason(one, later, 4, roots_limit=2) is Reason.TOO_LARGE


def test_a_root_that_only_one_side_signed(repository: FleetRepository) -> None:
    one, old = repository.root_bytes(1), list(repository.keys["root"])
    repository.rotate("root")
    true = Metadata[Root].from_bytes(repository.root_bytes(2))
    for holders in (old[:2], repository.keys["root"], [old[0], repository.keys["root"][0]], old[:1]):
        forged = repository.sign(Metadata(true.signed), holders)
        assert chain_reason(one, [forged], 2) is Reason.FORGED
    unsigned = Metadata[Root].from_bytes(one)
    unsigned.signatures.clear()
    assert chain_reason(unsigned.to_bytes(), [], 1) is Reason.FORGED
    assert chain_reason(b"", [], 1) is Reason.DAMAGED
