"""Device × repository × attacker: a device runs only what its owner signed, and it can always be repaired.

This holds whatever is published, rotated, replayed, mixed, withheld and forged, in any order; and no floor falls.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tuf.api.metadata import Metadata

from gateway.common.domain.assignment import Target
from gateway.common.domain.routing import version_order
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.online_thief import LEAP, OWN, Files, OnlineThief
from tests.simulators.trusting_device import REFUSALS, TrustingDevice, folder_files

DEVICE, SLOT, MODEL, OWNER = "device-1", "reader", "reader", "acme"
NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)
MEMORY = Path("/dev/shm")
"""Publishing is durable; a disk that others use makes it slow."""
PLACES = st.integers(0, 100_000)
ONLINE = ("snapshot", "timestamp", "director")
ROTATED = ("root", "targets", "models-acme", *ONLINE)
THRESHOLDS = {"root": 2, "models-acme": 2}


@dataclass(frozen=True)
class Lie:
    """False statement of an assignment. "any": a release that acme signed, whichever."""

    kind: str = "any"
    device: str = DEVICE
    version: int = 0
    issued_h: int = 0
    signer: str = "director"


LIES = (
    *(Lie(kind) for kind in ("unsigned", "swapped", "longer", "any", "own", "none")),
    *(Lie(), Lie(), Lie(version=1)),
    *(Lie(issued_h=hours) for hours in (-48, 240)),
    *(Lie(signer=signer) for signer in ("snapshot", "retired")),
    Lie(device="device-2"),
)


class TrustMachine(RuleBasedStateMachine):
    """State machine of a device, a repository and an attacker.

    `signed`: every release that its owner's threshold signed, by path: what may run. `views`: what was ever served.
    `used`: whether stolen keys were used since the online keys were last rotated.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="trust-machine-", dir=MEMORY if MEMORY.is_dir() else None))
        self.repository = FleetRepository(self.folder / "fleet", now=NOW)
        self.device = TrustingDevice(DEVICE, self.repository.root_bytes(1))
        self.signed: dict[str, str] = {}
        self.floor = "1"
        self.views: list[Files] = []
        self.used = False
        self.before: tuple[dict[str, int], dict[str, str]] = ({}, {})

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    # ---- the repository

    @initialize()
    def begin(self) -> None:
        """Begin: acme signs two of two; the thief is an owner as well."""
        self.repository.add_owner(OWNER, keys=2, threshold=2)
        self.repository.add_release("other", "1", OWN)
        self.thief = OnlineThief(self.repository)
        self.release(floor_too=False)
        self.assign(0)

    @rule(floor_too=st.booleans())
    def release(self, floor_too: bool) -> None:
        """Let acme sign the next version, and perhaps that nothing older may run."""
        version = str(len(self.signed) + 1)
        self.floor = version if floor_too else self.floor
        path = self.repository.add_release(MODEL, version, floor=self.floor)
        self.signed[path] = self._published(path).sha256
        self._view()

    @rule(back=st.integers(0, 3))
    def assign(self, back: int) -> None:
        """Let the director assign a release that is allowed."""
        self.repository.assign(DEVICE, {SLOT: self._choose(back)})
        self._view()

    @rule(role=st.sampled_from(ROTATED))
    def rotate(self, role: str) -> None:
        """Rotate the keys of a role."""
        self.repository.rotate(role, threshold=THRESHOLDS.get(role, 1))
        self._view()

    @rule(hours=st.integers(1, 40))
    def wait(self, hours: int) -> None:
        """Time passes, and the publisher goes on."""
        self.repository.now += timedelta(hours=hours)
        self.repository.publish()
        self._view()

    # ---- the device alone with the repository

    @precondition(lambda self: not self.used)
    @rule(back=st.integers(0, 3))
    def poll(self, back: int) -> None:
        """Accept the honest repository: an attacker that was only in the middle has harmed nothing."""
        self.assign(back)
        self._accept()

    @rule(back=st.integers(0, 3))
    def recover(self, back: int) -> None:
        """Rotate the online keys: whatever was done with the stolen ones, all is well again."""
        for role in ONLINE:
            self.rotate(role)
        self.used = False
        self.poll(back)

    # ---- the attacker, without keys

    @rule(data=st.data())
    def mix(self, data: st.DataObject) -> None:
        """Offer each moving file from another time."""
        everything = {name: content for view in self.views for name, content in view.items()}
        for name in ("metadata/timestamp.json", f"assignments/{DEVICE}.json"):
            everything[name] = data.draw(st.sampled_from(self.views)).get(name, b"")
        newest = data.draw(st.integers(1, 1 + sum(name.endswith(".root.json") for name in everything)))
        held_back = {f"metadata/{version}.root.json" for version in range(newest, len(everything))}
        self._offer({name: content for name, content in everything.items() if name not in held_back})

    @rule(spoilt=st.lists(st.tuples(PLACES, PLACES, st.integers(0, 255)), min_size=1, max_size=3))
    def spoil(self, spoilt: list[tuple[int, int, int]]) -> None:
        """Offer files with a byte changed, or (0) withheld."""
        files = dict(self.views[-1])
        for number, place, change in spoilt:
            name = sorted(files)[number % len(files)]
            content = bytearray(files.pop(name))
            if content and change:
                content[place % len(content)] ^= change
                files[name] = bytes(content)
        self._offer(files)

    # ---- the attacker, with every online key

    @rule(lies=st.lists(st.tuples(st.sampled_from(LIES), PLACES), min_size=1, max_size=6))
    def assign_falsely(self, lies: list[tuple[Lie, int]]) -> None:
        """Assign any target in any document, with the repository's present metadata: so the floor is known, too."""
        for lie, number in lies:
            self._lie(lie, number)

    def _lie(self, lie: Lie, number: int) -> None:
        files, slots = self._slots(lie.kind, number)
        issued = self.repository.now + timedelta(hours=lie.issued_h)
        changes = {"device": lie.device, "issued": issued, "expires": issued + timedelta(days=1)}
        changes |= {"version": lie.version} if lie.version else {}
        self.thief.steal()
        signers = self.repository.retired[-1:] if lie.signer == "retired" else self.thief.stolen[lie.signer]
        if self._use(self.thief.assigning(files, DEVICE, slots, signers=signers, **changes)):
            assert (lie.device, lie.signer) == (DEVICE, "director")
            assert all(self._allowed(activation.target) for activation in self.device.slots.values())

    @rule(leap=st.sampled_from(["snapshot", "timestamp", "director"]), back=st.integers(0, 3))
    def leap(self, leap: str, back: int) -> None:
        """Publish the greatest version there is, so that nothing honest comes after it. It is accepted, and mended."""
        self.assign(back)
        self.thief.steal()
        files = self.thief.listing(self.views[-1], {}, leap=leap)
        slots = {SLOT: self._published(self._choose(back))}
        self._use(self.thief.assigning(files, DEVICE, slots, version=LEAP) if leap == "director" else files)
        self.recover(back)

    @rule(who=st.sampled_from(["online", "one of acme's", "own", "below"]), version=st.integers(1, 9))
    def forge(self, who: str, version: int) -> None:
        """Forge a release of acme's in metadata that acme did not sign, with all that an online key can vouch."""
        self.thief.steal()
        target, document, files = self.thief.forged_release(MODEL, str(version))
        keys = {"online": self.thief.online, "one of acme's": self.repository.keys["models-acme"][:1]}
        if who in keys:
            roles = {"models-acme": self.thief.acme_with(target, document, keys[who])}
        else:
            roles = self.thief.own_with(target, document, below=who == "below")
        self._use(self.thief.assigning(self.thief.listing(files, roles), DEVICE, {SLOT: target}))

    @rule(data=st.data())
    def roll_back_metadata(self, data: st.DataObject) -> None:
        """List true but old metadata of acme's in a new snapshot, and assign an old release."""
        self.thief.steal()
        everything = {name: content for view in self.views for name, content in view.items()}
        old = data.draw(st.sampled_from(sorted(name for name in everything if name.endswith(".models-acme.json"))))
        files = self.thief.listing(everything, {"models-acme": Metadata.from_bytes(everything[old])})
        path = data.draw(st.sampled_from(sorted(self.signed)))
        self._use(self.thief.assigning(files, DEVICE, {SLOT: self._published(path)}))

    # ---- what always holds

    @invariant()
    def only_what_its_owner_signed(self) -> None:
        """Check every slot, and again by the disk alone."""
        for activation in self.device.slots.values():
            if not activation.target.startswith(f"models/{OWN}/"):
                assert self.signed[activation.target] == activation.release
        self.device.boot()

    @invariant()
    def nothing_falls(self) -> None:
        """Check that floors do not fall, nor, under the same keys, the versions of every role and of assignments."""
        numbers, versions = self.before
        assert all(self.device.floors[name] >= value for name, value in numbers.items())
        assert all(version_order(self.device.model_floors[name]) >= version_order(v) for name, v in versions.items())
        self.before = dict(self.device.floors), dict(self.device.model_floors)
        greatest: dict[tuple[str, tuple[str, ...]], int] = {}
        for role, keys, version in self.device.accepted:
            assert version >= greatest.get((role, keys), 0)
            greatest[role, keys] = version

    # ---- how it is done

    def _slots(self, kind: str, number: int) -> tuple[Files, dict[str, Target]]:
        files, path = dict(self.views[-1]), list(self.signed)[number % len(self.signed)]
        true = self._published(path)
        if kind == "none":
            return files, {}
        if kind in {"unsigned", "swapped"}:
            version = path.split("/")[3] if kind == "swapped" else "999"
            target, _, files = self.thief.forged_release(MODEL, version)
            return files, {SLOT: target}
        if kind == "longer":
            return files, {SLOT: Target(path, true.size_bytes + 1, true.sha256)}
        return files, {SLOT: true if kind == "any" else self._published(f"models/{OWN}/other/1/release")}

    def _choose(self, back: int) -> str:
        allowed = [path for path in self.signed if self._allowed(path)]
        return allowed[-1 - back % len(allowed)]

    def _published(self, path: str) -> Target:
        found = self.repository.published.target(path)
        assert found
        return Target(path, found.length, found.hashes["sha256"])

    def _allowed(self, path: str) -> bool:
        """Return whether acme's present floor allows it."""
        return path.startswith(f"models/{OWN}/") or version_order(path.split("/")[3]) >= version_order(self.floor)

    def _view(self) -> None:
        self.views.append(folder_files(self.repository.public))

    def _accept(self) -> None:
        assignment = self.device.sync(self.views[-1].__getitem__, self.repository.now)
        assert {slot: activation.release for slot, activation in self.device.slots.items()} == {
            slot: target.sha256 for slot, target in assignment.slots.items()
        }
        assert all(self._allowed(activation.target) for activation in self.device.slots.values())

    def _use(self, files: Files) -> bool:
        self.used = True
        return self._offer(files)

    def _offer(self, files: Files) -> bool:
        """Return whether the device accepts this.

        If so, it has not expired, and is below no floor that the device knows.
        """
        try:
            assignment = self.device.sync(files.__getitem__, self.repository.now)
        except REFUSALS:
            return False
        assert assignment.device == DEVICE
        assert assignment.expires > self.repository.now
        known = self.device.model_floors.get(f"{OWNER}/{MODEL}", "1")
        for activation in self.device.slots.values():
            if activation.target.startswith(f"models/{OWNER}/"):
                assert version_order(activation.version) >= version_order(known)
        return True


BOUNDED = settings(max_examples=8, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.timeout(600)
class TestTrust(TrustMachine.TestCase):
    """Six seconds of processor time; far more by the clock where others want the disk and the cores."""

    settings = BOUNDED


@pytest.mark.long
@pytest.mark.timeout(3600)
class TestTrustLong(TrustMachine.TestCase):
    """The same for 36,000 steps: a quarter of an hour of processor time."""

    settings = settings(BOUNDED, max_examples=600, stateful_step_count=60)
