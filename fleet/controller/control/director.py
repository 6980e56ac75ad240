"""Assignments, signed on demand.

A device's assignment is signed when the device polls and something in it changed, half of its life is over, or a nonce
asks for a document of its own. Most polls end with what the device has already.

Two replicas never issue one version twice: the database says which is next, and stores the document before a device
gets it. A release that its owner withdrew, or that is below the floor, is not assigned to a device that does not run
it. The assignment names what the device runs instead, or leaves the slot out. A device goes on with what it runs in a
slot that is left out; a removal is an explicit order.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from securesystemslib.signer import Signer

from fleet.controller.control.authentication import admitted, refuse_suspended
from fleet.controller.control.concurrency_limit import ConcurrencyLimit
from fleet.controller.control.director_before import by_hand
from fleet.controller.control.director_published import Publications, PublishedMetadata
from fleet.controller.control.online_keys import OnlineKeys
from fleet.controller.control.settings import DirectorSettings
from fleet.controller.database import assignments, desired, devices, events
from fleet.controller.database.assignments import StoredAssignment
from fleet.controller.database.desired import Desired, DesiredState
from fleet.controller.database.engine import Connection, Database
from fleet.controller.database.events import Event
from fleet.controller.database.polling import PollingDevice
from fleet.controller.database.seen import LastSeenBuffer
from fleet.publisher.assignments import next_assignment
from fleet.publisher.roles import DIRECTOR, add_signature
from fleet.publisher.settings import FleetSettings
from gateway.common.domain.assignment import Assignment, Target
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.trust.assignment_form import NONCE, assignment_metadata
from gateway.common.trust.settings import DEFAULTS

BARRED = "release-barred"
"""Kind of the event: a device's desired release must not be assigned."""
FIRST = 1
"""Version of a device's first assignment by a controller that was never restored."""
ASKED = "+diagnostics"
"""Suffix of a basis if the assignment says that a request for diagnostics waits."""

ANOTHER = (
    "where they are lost, edge-fleet keys new NAME --out keys --no-passphrase makes another, "
    "and edge-fleet rotate director --key keys/NAME.pub drafts who is to trust it"
)
CLOCKS_APART = timedelta(hours=1)
"""Largest difference between replicas' clocks; a greater one means that a clock was set."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Answer to a poll. `digest`: the ETag. `content` None: the device has it already."""

    digest: str
    content: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Slots:
    """Slots of an assignment: `targets` and `attempts` by slot, `removed` slots to empty.

    `barred`: what is left out or replaced, and why. `carried`: what no assignment carried before.
    """

    targets: Mapping[str, Target]
    attempts: Mapping[str, int]
    barred: Sequence[tuple[Desired, str]]
    removed: Sequence[str] = ()
    carried: Sequence[Desired] = ()

    @property
    def extra(self) -> dict[str, object]:
        """Return the fields of the assignment on slots that are not releases."""
        extra = {"attempts": dict(self.attempts), "removed": list(self.removed)}
        return {name: value for name, value in extra.items() if value}


class Director:
    """Signs assignments. One per process; any thread may call it.

    `keys`: the online keys that are here; those of the director sign.
    """

    def __init__(
        self,
        database: Database,
        publications: Publications,
        keys: OnlineKeys,
        settings: tuple[DirectorSettings, FleetSettings],
        *,
        seen: LastSeenBuffer,
        counts: Counter[str],
    ) -> None:
        self._database, self._publications, self._online = database, publications, keys
        (self._settings, self._documents), self._seen, self._counts = settings, seen, counts
        self._limit = ConcurrencyLimit(self._settings.signings_at_once, self._settings.signing_wait_s)
        self._signing = threading.Lock()

    def assigned(self, serial: str, now: datetime, *, etag: str = "", nonce: str = "") -> Answered:
        """Return what the device with this certificate is to run.

        `etag`: the digest that the device has. `nonce`: the device wants a document that repeats it.

        Raise RequestError: UNAUTHENTICATED, INVALID for a malformed nonce, UNAVAILABLE if nothing is published or the
        director's keys are not here, OVERLOADED; ProblemError for a suspended device.
        """
        if not NONCE.fullmatch(nonce):
            raise RequestError(Fault.INVALID, "a nonce has at most 128 letters, digits, '-' and '_'")
        with self._database.glance() as connection:
            polled = admitted(connection, serial, now, suspended=True)
        self._seen.note(polled.device, now)
        refuse_suspended(polled)
        if nonce or not self._stands(polled, self._publications.current(), now):
            with self._limit.entered(polled.device) as free:
                if free:
                    made = self._signed(polled, now, nonce)
                    return Answered(made.digest, None if made.digest == etag else made.content)
            self._counts["signing_overloaded"] += 1
            if nonce or polled.expires is None or polled.expires <= now:
                wait_s = self._settings.poll_s * (0.5 + _place(polled.device, str(now)))
                problem = "too many assignments are being signed now; repeat the request later"
                raise RequestError(Fault.OVERLOADED, problem, retry_after_s=wait_s)
        if etag == polled.digest:
            return Answered(etag, None)
        with self._database.glance() as connection:
            stored = assignments.current(connection, polled.device)
        if stored is None:
            raise RequestError(Fault.UNAVAILABLE, "the assignment is being signed; repeat the request")
        return Answered(stored.digest, stored.content)

    def obstacle(self) -> str:
        """Return why this replica cannot sign assignments now, and what to do; "" if it can."""
        try:
            self._keys(self._publications.current())
        except RequestError as error:
            return error.message
        return ""

    # ---- validity of the current assignment --------------------------------------------------------------------------
    def _stands(self, polled: PollingDevice, publication: PublishedMetadata, now: datetime) -> bool:
        if polled.issued is None or polled.revision != polled.signed_revision or _was_ahead(polled.issued, now):
            return False
        return polled.basis == _basis(publication, polled) and now < self._renewal(polled)

    def _renewal(self, polled: PollingDevice) -> datetime:
        """Return when to sign again. It is spread, so that devices signed for together are not renewed together."""
        if polled.issued is None or polled.expires is None:
            return datetime.min.replace(tzinfo=polled.certificate_expires.tzinfo)
        life, spread = polled.expires - polled.issued, _place(polled.device, polled.digest)
        return polled.issued + life * self._settings.renew_share * (0.75 + 0.25 * spread)

    # ---- signing -----------------------------------------------------------------------------------------------------
    def _signed(self, polled: PollingDevice, now: datetime, nonce: str) -> StoredAssignment:
        publication = self._publications.fresh()
        signers = self._keys(publication)
        before = None if polled.version else by_hand(self._publications.workspace, publication, polled.device)
        with self._database.write() as connection:
            version = assignments.next_version(connection, polled.device)
            if version > FIRST:
                before = None
            elif before:
                version = before.adopt(connection, now, self._database.settings)
            wanted = desired.of_device(connection, polled.device)
            basis = _basis(publication, polled)
            standing = assignments.current(connection, polled.device)
            if standing and not nonce and self._as_wanted(standing, wanted.revision, basis, now):
                return standing
            slots = _chosen(connection, publication, polled.device, wanted)
            made = self._document(polled, publication, slots, version=version, now=now, nonce=nonce)
            metadata = assignment_metadata(made)
            with self._signing:
                for signer in signers:
                    add_signature(metadata, signer)
            content = metadata.to_bytes()
            signed = StoredAssignment(
                polled.device,
                version,
                hashlib.sha256(content).hexdigest(),
                content,
                made.issued,
                made.expires,
                wanted.revision,
                basis,
            )
            assignments.put(connection, signed)
            desired.mark_signed(connection, slots.carried, version)
            events.record(connection, _events(polled.device, slots, now), now, self._database.settings)
            if before:
                before.note(connection, now)
        self._counts["assignments_signed"] += 1
        return signed

    def _as_wanted(self, standing: StoredAssignment, revision: int, basis: str, now: datetime) -> bool:
        """Return whether another replica, or another poll of this device, signed it in the meantime."""
        age, life = now - standing.issued, standing.expires - standing.issued
        young = age < life * self._settings.renew_share * 0.75 and not _was_ahead(standing.issued, now)
        return standing.revision == revision and standing.basis == basis and young

    def _document(
        self,
        polled: PollingDevice,
        publication: PublishedMetadata,
        slots: Slots,
        *,
        version: int,
        now: datetime,
        nonce: str,
    ) -> Assignment:
        if len(slots.targets) + len(publication.files) > DEFAULTS.slots_limit:
            counted = f"{len(slots.targets)} releases, and {len(publication.files)} profiles and policies, are too many"
            problem = f"{counted} for one assignment: devices read {DEFAULTS.slots_limit}; publish fewer profiles"
            raise RequestError(Fault.UNAVAILABLE, problem)
        made = next_assignment(
            polled.device,
            slots.targets,
            publication.files,
            version=version,
            now=now,
            settings=self._documents,
            nonce=nonce,
            poll_s=self.poll_s(polled.device),
        )
        return replace(made, extra=slots.extra | ({"diagnostics": True} if polled.asked else {}))

    def poll_s(self, device: str) -> int:
        """Return how long a device waits between two polls.

        It differs between devices, so that those that begin together do not stay together.
        """
        spread = self._settings.poll_spread * (2 * _place(device, "poll") - 1)
        return min(max(round(self._settings.poll_s * (1 + spread)), DEFAULTS.poll_low_s), DEFAULTS.poll_high_s)

    def _keys(self, publication: PublishedMetadata) -> list[Signer]:
        """Return the director's signers. Raise RequestError UNAVAILABLE if too few of its keys are here."""
        threshold = publication.director.threshold
        found = self._online.signers(DIRECTOR, [key.keyid for key in publication.director.keys], threshold)
        if len(found) < threshold:
            counted = f"{threshold} key(s) of the director must sign and {len(found)} are here"
            problem = f"{counted}; put them into the controller's folder keys, which is read again when devices ask"
            raise RequestError(Fault.UNAVAILABLE, f"{problem}; {ANOTHER}")
        return found


def _was_ahead(issued: datetime, now: datetime) -> bool:
    """Return whether the clock was set back since: what was signed before would be valid for too long."""
    return issued > now + CLOCKS_APART


def _chosen(connection: Connection, publication: PublishedMetadata, device: str, wanted: DesiredState) -> Slots:
    """Return what may be assigned of what is wanted; in place of what may not be, what the device reports to run."""
    targets: dict[str, Target] = {}
    attempts: dict[str, int] = {}
    barred: list[tuple[Desired, str]] = []
    for one in wanted.slots:
        problem = publication.refusal(connection, one.target, one.digest)
        if not problem and _is_taken(one.target, targets):
            problem = "it is to run in two slots; a release serves in one"
        if problem:
            barred.append((one, problem))
            continue
        targets[one.slot] = publication.assigned(one.target)
        attempts |= {one.slot: one.attempt} if one.attempt else {}
    for slot, target in _running(connection, publication, device, [one.slot for one, _ in barred]):
        if not _is_taken(target.path, targets):
            targets[slot] = target
    out = [one for one, _ in barred]
    carried = [one for one in wanted.slots if not one.signed and one not in out]
    return Slots(targets, attempts, barred, sorted(wanted.removed - targets.keys()), carried)


def _is_taken(path: str, targets: Mapping[str, Target]) -> bool:
    return any(target.path == path for target in targets.values())


def _running(
    connection: Connection, publication: PublishedMetadata, device: str, slots: Collection[str]
) -> Iterator[tuple[str, Target]]:
    """Yield what the device reports as committed in these slots, also if a device without it would refuse it."""
    for one in devices.get(connection, device).running if slots else ():
        if one.slot in slots and publication.signs(one.target, one.digest):
            yield one.slot, publication.assigned(one.target)


def _events(device: str, slots: Slots, now: datetime) -> list[Event]:
    """Return the events on barred releases. Their keys keep each to once for a slot and release."""
    return [
        Event(device, f"barred {one.digest} {one.slot}", now, BARRED, one.slot, one.target, one.rollout, {"why": why})
        for one, why in slots.barred
    ]


def _basis(publication: PublishedMetadata, polled: PollingDevice) -> str:
    return publication.basis + (ASKED if polled.asked else "")


def _place(*parts: str) -> float:
    """Return a number from 0 up to 1 that depends only on the words."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48
