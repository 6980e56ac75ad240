"""Many releases on few proofs: each document is read and verified once, and none of the answers is another's."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tuf.api.metadata import Metadata
from tuf.api.serialization.json import CanonicalJSONSerializer

from gateway.common.trust.chain import Chain
from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.reading import check_values
from gateway.common.trust.settings import TrustSettings
from tests.simulators.constants import settings_with
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.trusting_device import TrustingDevice, folder_files

DEVICE = "device-1"
SLOTS = {"reader": "models/acme/reader/2/release", "older": "models/acme/reader/1/release"}


@pytest.fixture
def installed(repository: FleetRepository, device: TrustingDevice) -> TrustingDevice:
    """Return a device with two slots on the same evidence."""
    repository.assign(DEVICE, SLOTS)
    device.sync(folder_files(repository.public).__getitem__, repository.now)
    return device


def test_documents_of_a_proof_are_read_once(installed: TrustingDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Metadata[Any]] = []

    def payload(metadata: Metadata[Any]) -> bytes:
        made.append(metadata)
        return CanonicalJSONSerializer().serialize(metadata.signed)

    monkeypatch.setattr(Metadata, "signed_bytes", property(payload))
    read: Counter[str] = Counter()

    def blob(digest: str) -> bytes:
        read[digest] += 1
        return installed.blobs[digest]

    chain = Chain(installed.pinned, installed.roots, blob)
    for _ in range(50):
        for slot, activation in installed.slots.items():
            assert chain.activation(activation).target == SLOTS[slot]
    (evidence,) = {activation.evidence for activation in installed.slots.values()}
    assert [read[digest] for digest in evidence] == [1, 1]
    assert len(made) < 10


def refusal(chain: Chain, activation: Any) -> Reason:
    with pytest.raises(Distrust) as caught:
        chain.activation(activation)
    return caught.value.reason


def test_what_was_verified_vouches_for_nothing_else(installed: TrustingDevice) -> None:
    chain = Chain(installed.pinned, installed.roots, installed.blobs.__getitem__)
    reader, older = installed.slots["reader"], installed.slots["older"]
    chain.activation(reader)
    assert refusal(chain, replace(reader, release=older.release)) is Reason.SWAPPED
    assert refusal(chain, replace(reader, target="models/mallory/reader/2/release")) is Reason.FORGED
    assert refusal(chain, replace(reader, target="models/acme/reader/9/release")) is Reason.UNSIGNED
    assert refusal(chain, replace(reader, evidence=reader.evidence[:1])) is Reason.UNSIGNED
    assert refusal(chain, replace(reader, evidence=reader.evidence[::-1])) is Reason.FORGED
    assert refusal(chain, replace(reader, root=7)) is Reason.DAMAGED
    assert chain.activation(older).version == "1"


@pytest.mark.parametrize("content", [b"[" + b"[]," * 50, b'{"a":{},' * 50])
def test_a_document_of_too_many_values_is_not_parsed(content: bytes) -> None:
    with pytest.raises(Distrust, match="values, at most 99 are read"):
        check_values(content, "x", settings_with(TrustSettings(), values_limit=99))
    assert check_values(content, "x", settings_with(TrustSettings(), values_limit=200)) > 99
