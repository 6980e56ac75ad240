"""Chain of trust between the pinned root and a release on the disk: every link is verified."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from securesystemslib.signer import CryptoSigner, SSlibKey
from tuf.api.metadata import DelegatedRole, Delegations, Metadata, TargetFile, Targets

from gateway.common.domain.activation import activation_document, read_activation
from gateway.common.domain.assignment import Target
from gateway.common.trust.chain import Chain
from gateway.common.trust.distrust import Distrust, Reason
from tests.simulators.fleet_repository import FleetRepository, new_key
from tests.simulators.trusting_device import TrustingDevice, folder_files

DEVICE, SLOT = "device-1", "reader"
TWO = "models/acme/reader/2/release"


@pytest.fixture
def installed(repository: FleetRepository, device: TrustingDevice) -> TrustingDevice:
    """Return the device with release 2, the root rotated twice on the way."""
    repository.rotate("root")
    repository.rotate("root")
    repository.assign(DEVICE, {SLOT: TWO})
    device.sync(folder_files(repository.public).__getitem__, repository.now)
    return device


def reason(device: TrustingDevice, **changes: Any) -> Reason:
    """Return why the daemon refuses the device's release after these changes to its activation."""
    with pytest.raises(Distrust) as caught:
        verify(device, **changes)
    return caught.value.reason


def verify(device: TrustingDevice, **changes: Any) -> Any:
    activation = replace(device.slots[SLOT], **changes)
    return Chain(device.pinned, device.roots, device.blobs.__getitem__).activation(activation)


def keep(device: TrustingDevice, content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    device.blobs[digest] = content
    return digest


def evidence(device: TrustingDevice, position: int) -> Metadata[Targets]:
    return Metadata.from_bytes(device.blobs[device.slots[SLOT].evidence[position]])


def test_a_release_is_verified_from_the_disk_alone(installed: TrustingDevice) -> None:
    release = verify(installed)
    assert (release.owner, release.model, release.version) == ("acme", "reader", "2")
    assert [root["signed"]["version"] for root in map(_json, installed.roots)] == [2, 3]
    assert len(installed.slots[SLOT].evidence) == 2


def _json(content: bytes) -> Any:
    return Metadata.from_bytes(content).to_dict()


def test_expiry_is_not_asked(installed: TrustingDevice, repository: FleetRepository) -> None:
    """All of it has expired long ago, and the device still boots."""
    for position in (0, 1):
        assert evidence(installed, position).signed.expires < repository.now + timedelta(days=400)
    verify(installed)


@pytest.mark.parametrize("position", [0, 1])
def test_evidence_signed_by_others_is_forged(installed: TrustingDevice, position: int) -> None:
    metadata = evidence(installed, position)
    metadata.sign(new_key())
    digests = list(installed.slots[SLOT].evidence)
    digests[position] = keep(installed, metadata.to_bytes())
    assert reason(installed, evidence=tuple(digests)) is Reason.FORGED


@pytest.mark.parametrize("stolen", [0, 1])
def test_one_signature_of_two_is_not_enough(
    installed: TrustingDevice, repository: FleetRepository, stolen: int
) -> None:
    metadata = evidence(installed, 1)
    forged, document = repository.forge_release(SLOT, "2", b"the attacker's")
    metadata.signed.targets[TWO] = TargetFile.from_data(TWO, document, ["sha256"])
    old = metadata.signatures
    metadata.sign(repository.keys["models-acme"][stolen])
    metadata.signatures |= {keyid: signature for keyid, signature in old.items() if keyid not in metadata.signatures}
    digests = (installed.slots[SLOT].evidence[0], keep(installed, metadata.to_bytes()))
    keep(installed, document)
    assert reason(installed, evidence=digests, release=forged.sha256) is Reason.FORGED
    metadata.signatures.clear()
    for key in repository.keys["models-acme"]:
        metadata.sign(key, append=True)
    digests = (digests[0], keep(installed, metadata.to_bytes()))
    assert verify(installed, evidence=digests, release=forged.sha256).version == "2"


def test_a_signature_given_twice_counts_once(installed: TrustingDevice, repository: FleetRepository) -> None:
    document = evidence(installed, 1).to_dict()
    document["signatures"] = document["signatures"][:1] * 2
    content = json.dumps(document).encode()
    digests = (installed.slots[SLOT].evidence[0], keep(installed, content))
    assert reason(installed, evidence=digests) is Reason.DAMAGED


def test_one_key_under_two_ids_counts_once(installed: TrustingDevice, repository: FleetRepository) -> None:
    """Targets' own holders name acme's first key twice: a threshold of two is still two keys."""
    first = repository.keys["models-acme"][0]
    again = replace_id(first)
    targets = evidence(installed, 0)
    assert targets.signed.delegations
    keyids = [first.public_key.keyid, again.public_key.keyid]
    role = DelegatedRole("models-acme", keyids, 2, terminating=True, paths=["models/acme/*/*/*"])
    public = {key.public_key.keyid: key.public_key for key in (first, again)}
    targets.signed.delegations = Delegations(public, {"models-acme": role})
    targets.sign(repository.keys["targets"][0])
    owner = evidence(installed, 1)
    owner.sign(first)
    owner.sign(again, append=True)
    digests = tuple(keep(installed, metadata.to_bytes()) for metadata in (targets, owner))
    assert reason(installed, evidence=digests) is Reason.FORGED


def replace_id(signer: Any) -> Any:
    public = signer.public_key
    return CryptoSigner(signer._private_key, SSlibKey("other-id", public.keytype, public.scheme, dict(public.keyval)))


def test_the_targets_role_alone_vouches_for_nothing(installed: TrustingDevice, repository: FleetRepository) -> None:
    """A holder of the keys of targets, but of none of acme's, signs acme's release there."""
    targets = evidence(installed, 0)
    targets.signed.targets[TWO] = evidence(installed, 1).signed.targets[TWO]
    targets.sign(repository.keys["targets"][0])
    digest = keep(installed, targets.to_bytes())
    assert reason(installed, evidence=(digest,)) is Reason.UNSIGNED
    assert reason(installed, evidence=(digest, digest)) is Reason.FORGED
    assert reason(installed, evidence=()) is Reason.UNSIGNED


def chained(
    repository: FleetRepository, device: TrustingDevice, change: Callable[[Targets], Any], *below: Any
) -> tuple[str, ...]:
    """Return evidence in which targets, signed by its true holders, is as `change` makes it; and then `below`."""
    targets = evidence(device, 0)
    change(targets.signed)
    targets.sign(repository.keys["targets"][0])
    return tuple(keep(device, metadata.to_bytes()) for metadata in (targets, *below))


def roles(*made: tuple[str, Any, str, bool]) -> Callable[[Targets], None]:
    """Return a change that delegates to (name, key, pattern, terminating), in this order."""

    def change(targets: Targets) -> None:
        public = {key.public_key.keyid: key.public_key for _, key, _, _ in made}
        delegated = {
            name: DelegatedRole(name, [key.public_key.keyid], 1, terminating=ends, paths=[pattern])
            for name, key, pattern, ends in made
        }
        targets.delegations = Delegations(public, delegated)

    return change


@pytest.mark.parametrize(
    ("pattern", "verified"),
    [
        ("models/acme/*/*/*", True),
        ("models/*/reader/?/release", True),
        ("models/acme/*", False),
        ("models/acme/*/*", False),
        ("models/globex/*/*/*", False),
        ("models/acme/*/*/*/*", False),
        ("**", False),
    ],
)
def test_a_delegation_must_be_of_the_targets_path(
    installed: TrustingDevice, repository: FleetRepository, pattern: str, verified: bool
) -> None:
    key = new_key()
    owner = evidence(installed, 1)
    owner.sign(key)
    digests = chained(repository, installed, roles(("models-acme", key, pattern, True)), owner)
    if verified:
        assert verify(installed, evidence=digests)
    else:
        assert reason(installed, evidence=digests) is Reason.FORGED


@pytest.mark.parametrize("ends", [True, False])
def test_nobody_is_asked_after_a_terminating_delegation(
    installed: TrustingDevice, repository: FleetRepository, ends: bool
) -> None:
    first, second = new_key(), new_key()
    change = roles(("first", first, "models/acme/*/*/*", ends), ("second", second, "models/*/*/*/*", True))
    owner = evidence(installed, 1)
    owner.sign(second)
    digests = chained(repository, installed, change, owner)
    if ends:
        assert reason(installed, evidence=digests) is Reason.FORGED
    else:
        assert verify(installed, evidence=digests)


def test_an_owner_may_delegate_its_own_and_nothing_else(installed: TrustingDevice, repository: FleetRepository) -> None:
    keys = {"acme": new_key(), "globex": new_key(), "below": new_key()}
    named = [(f"models-{owner}", keys[owner], f"models/{owner}/*/*/*", True) for owner in ("acme", "globex")]
    signed_last = evidence(installed, 1)
    signed_last.sign(keys["below"])
    for owner in ("acme", "globex"):
        between = Metadata(Targets())
        roles(("mine", keys["below"], "models/acme/*/*/*", True))(between.signed)
        between.sign(keys[owner])
        digests = chained(repository, installed, roles(*named), between, signed_last)
        if owner == "acme":
            assert verify(installed, evidence=digests)
        else:
            assert reason(installed, evidence=digests) is Reason.FORGED


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"release": "00" * 32}, Reason.SWAPPED),
        ({"target": "models/acme/reader/3/release"}, Reason.UNSIGNED),
        ({"target": "models/globex/reader/2/release"}, Reason.FORGED),
        ({"target": "models/acme/../2/release"}, Reason.BAD_PATH),
        ({"target": "profiles/x.toml"}, Reason.BAD_PATH),
        ({"evidence": ("../../../../etc/passwd", "00" * 32)}, Reason.DAMAGED),
        ({"evidence": ("ab" * 32,) * 9}, Reason.UNSIGNED),
        ({"root": 4}, Reason.DAMAGED),
    ],
)
def test_an_activation_that_says_otherwise(
    installed: TrustingDevice, changes: dict[str, Any], expected: Reason
) -> None:
    assert reason(installed, **changes) is expected


def test_evidence_of_an_older_root_needs_that_roots_word(installed: TrustingDevice) -> None:
    """Root 1's keys are gone from root 3; targets did not change hands, so both vouch for it."""
    assert verify(installed, root=1)


@pytest.mark.parametrize("which", ["release", "targets", "owner"])
def test_a_blob_that_the_disk_spoilt(installed: TrustingDevice, which: str) -> None:
    activation = installed.slots[SLOT]
    digest = {"release": activation.release, "targets": activation.evidence[0], "owner": activation.evidence[1]}[which]
    content = bytearray(installed.blobs[digest])
    content[len(content) // 2] ^= 1
    installed.blobs[digest] = bytes(content)
    assert reason(installed) is Reason.DAMAGED


def test_a_blob_that_is_too_large(installed: TrustingDevice) -> None:
    with pytest.raises(Distrust) as caught:
        Chain(installed.pinned, installed.roots, lambda _: bytes(5_000_000)).activation(installed.slots[SLOT])
    assert caught.value.reason is Reason.TOO_LARGE


def test_a_release_document_of_another_release(installed: TrustingDevice, repository: FleetRepository) -> None:
    """Its owner signs, under version 2, what says that it is version 1."""
    path = "models/acme/reader/1/release"
    found = repository.published.target(path)
    assert found
    owner = evidence(installed, 1)
    owner.signed.targets[TWO] = TargetFile(found.length, found.hashes, TWO)
    owner.signatures.clear()
    for key in repository.keys["models-acme"]:
        owner.sign(key, append=True)
    document = (repository.public / f"targets/models/acme/reader/1/{found.hashes['sha256']}.release").read_bytes()
    digests = (installed.slots[SLOT].evidence[0], keep(installed, owner.to_bytes()))
    assert reason(installed, evidence=digests, release=keep(installed, document)) is Reason.SWAPPED


def test_a_length_that_its_owner_signed_falsely(installed: TrustingDevice, repository: FleetRepository) -> None:
    owner = evidence(installed, 1)
    owner.signed.targets[TWO].length += 1
    content = repository.sign(owner, repository.keys["models-acme"])
    digests = (installed.slots[SLOT].evidence[0], keep(installed, content))
    assert reason(installed, evidence=digests) is Reason.SWAPPED


# ---- profiles and policies


def test_a_file_is_verified_as_a_release_is(repository: FleetRepository, device: TrustingDevice) -> None:
    content = b'{"schema": 1}'
    path = repository.add_file("policy/night.json", content)
    state = repository.published
    assert state.targets
    digests = tuple(keep(device, metadata.to_bytes()) for metadata in (state.targets, state.roles["policy"]))
    target = Target(path, len(content), keep(device, content))

    def verified(target: Target, blobs: dict[str, bytes] = device.blobs) -> bytes:
        return Chain(device.pinned, device.roots, blobs.__getitem__).file(target, digests, 1)

    assert verified(target) == content
    longer = state.roles["policy"]
    longer.signed.targets[path].length += 1
    digests = (digests[0], keep(device, repository.sign(longer, repository.keys["policy"])))
    with pytest.raises(Distrust, match="bytes are not those"):
        verified(replace(target, size_bytes=len(content) + 1))
    longer.signed.targets[path].length -= 1
    digests = (digests[0], keep(device, repository.sign(longer, repository.keys["policy"])))
    for changed, expected in (
        (replace(target, sha256=keep(device, b"{}"), size_bytes=2), Reason.SWAPPED),
        (replace(target, size_bytes=14), Reason.SWAPPED),
        (replace(target, path="policy/day.json"), Reason.UNSIGNED),
        (replace(target, path="profiles/night.json"), Reason.UNSIGNED),
        (replace(target, path="policy/../night.json"), Reason.BAD_PATH),
        (replace(target, path=TWO), Reason.BAD_PATH),
    ):
        with pytest.raises(Distrust) as caught:
            verified(changed)
        assert caught.value.reason is expected


def test_an_activation_that_was_written_and_read(installed: TrustingDevice) -> None:
    activation = read_activation(activation_document(installed.slots[SLOT]))
    assert Chain(installed.pinned, installed.roots, installed.blobs.__getitem__).activation(activation)
