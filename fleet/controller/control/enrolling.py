"""Enrolment of devices: by a one-time token, or by a serial that an operator registered.

The device's name is the token's, else that under which its serial was registered, else the one it asks for (the common
name of its certificate request, its serial), else one derived from its key.

A token that names no device enrols new devices, and pre-registered devices by their serial. A device that is already
enrolled needs a token made for it alone, so a token that leaks never takes over a device. A token is valid for the
device that existed, or did not exist, when it was made. A token for an unused name is void once a device gets that
name, regardless of which operator made the token.

A second request with the same token and the same key comes from the device whose answer was lost. It is answered for as
long as the token would have been valid. A device that enrols again with another key loses its earlier certificates.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fleet.controller.audit import Deed
from fleet.controller.authority.ca import Authority
from fleet.controller.authority.certificate import DeviceCertificate
from fleet.controller.authority.request import requested_key, requested_name
from fleet.controller.control.authentication import admitted
from fleet.controller.control.settings import DirectorSettings
from fleet.controller.database import audit, certificates, devices, enrolment
from fleet.controller.database.certificates import Certificate
from fleet.controller.database.devices import Device, EnrolmentState
from fleet.controller.database.engine import Connection, Database
from fleet.controller.database.enrolment import EnrolmentToken, TokenRefusedError
from fleet.controller.database.errors import AbsentError, ConflictError
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest_toml import NAME_PATTERN

NAMED_BY_KEY = "device-"
KEY_CHARACTERS = 12
DAY = timedelta(days=1)
SUPERSEDED = "the device was enrolled again with another key"


@dataclass(frozen=True, slots=True)
class EnrolmentRequest:
    """Request for enrolment. `token` or `serial` may be empty. `request_pem`: the certificate request."""

    request_pem: bytes
    token: str = field(default="", repr=False)
    serial: str = ""
    agent: str = ""


@dataclass(frozen=True, slots=True)
class EnrolmentDecision:
    """Decision to enrol a device: its name, and why.

    `known`: the record of a device that exists already. `again`: a repetition, because the answer was lost.
    """

    device: str
    by: str
    token: EnrolmentToken | None = None
    known: Device | None = None
    again: bool = False


class Enrolling:
    """Enrols devices and renews certificates, for any thread. `believed`: the trusted time if the clock shows `now`."""

    def __init__(
        self,
        database: Database,
        authority: Authority,
        settings: DirectorSettings,
        counts: Counter[str],
        believed: Callable[[datetime], datetime] = lambda now: now,
    ) -> None:
        self._database, self._authority, self._settings, self._counts = database, authority, settings, counts
        self._believed = believed
        self._backdated = timedelta(seconds=authority.settings.backdate_s + 1.0)  # certificates know whole seconds

    def enrol(self, asked: EnrolmentRequest, now: datetime) -> DeviceCertificate:
        """Issue a certificate for the device.

        Raise RequestError: INVALID or TOO_LARGE for the certificate request, UNAUTHENTICATED, ConflictError for a name
        or serial that is taken, a revoked or suspended device, OVERLOADED.
        """
        try:
            name, digest = self._requested(asked)
            with self._database.read() as connection:
                self._admit(connection, asked, name, digest, now)  # a refusal costs no write
            with self._database.write() as connection:
                enrolment.hold(connection)
                let_in = self._admit(connection, asked, name, digest, now)
                device, fresh = let_in.device, let_in.token if not let_in.again else None
                if fresh:
                    enrolment.redeem(connection, asked.token, device, now)
                new = let_in.known is None
                void = enrolment.void(connection, device) if new else 0
                if new and asked.serial:
                    devices.register(connection, device, asked.serial, now)
                devices.enrol(connection, device, now)
                if fresh and (fresh.tags or fresh.site):
                    tags = fresh.tags | (let_in.known.tags if let_in.known else frozenset())
                    devices.label(connection, device, tags, fresh.site or (let_in.known.site if let_in.known else ""))
                certificates.revoke_other_keys(connection, device, digest, SUPERSEDED, now)
                made = self._given(connection, device, asked.request_pem, digest, now)
                details = {"by": let_in.by, "certificate": made.serial, "agent": asked.agent, "again": let_in.again}
                details |= {"enrolments_void": void} if void else {}
                details |= {"token": let_in.token.id} if let_in.token else {"serial": asked.serial}
                audit.append(connection, Deed(f"device:{device}", "devices.enrol", device, details), now)
        except RequestError as error:
            self._counts[f"enrolment_refused_{error.fault.value}"] += 1
            raise
        self._counts["enrolled"] += 1
        return made

    def renew(self, serial: str, request_pem: bytes, now: datetime) -> DeviceCertificate:
        """Issue another certificate, for another key, to the device that presents this certificate.

        The presented certificate stays valid until it expires, because the answer may be lost. Raise RequestError:
        UNAUTHENTICATED, INVALID, TOO_LARGE, OVERLOADED.
        """
        digest = key_digest(request_pem, self._authority)
        with self._database.write() as connection:
            presented = certificates.find(connection, serial)
            if presented:
                devices.lock(connection, presented.device)
            device = admitted(connection, serial, now, suspended=True).device
            if presented and presented.key_digest == digest:
                raise RequestError(Fault.INVALID, "a renewed certificate needs another key; create one and try again")
            made = self._given(connection, device, request_pem, digest, now)
            details = {"certificate": made.serial, "before": serial}
            audit.append(connection, Deed(f"device:{device}", "certificates.renew", device, details), now)
            return made

    def _requested(self, asked: EnrolmentRequest) -> tuple[str, str]:
        """Return the name that the device asks for, and the digest of its key."""
        digest = key_digest(asked.request_pem, self._authority)
        wanted = (requested_name(asked.request_pem), asked.serial, f"{NAMED_BY_KEY}{digest[:KEY_CHARACTERS]}")
        return next(name for name in wanted if NAME_PATTERN.fullmatch(name)), digest

    # ---- admission ---------------------------------------------------------------------------------------------------
    def _admit(
        self, connection: Connection, asked: EnrolmentRequest, name: str, digest: str, now: datetime
    ) -> EnrolmentDecision:
        if not asked.token:
            since = now - timedelta(hours=self._settings.enrolment_token_h) - self._backdated
            return _by_serial(connection, asked.serial, digest, since)
        token = enrolment.find(connection, asked.token)
        if token is None or token.expires <= now:
            raise TokenRefusedError
        if token.used is not None:
            since = token.used - self._backdated
            if not certificates.has_key(connection, token.used_by, digest, since):
                raise TokenRefusedError
            return EnrolmentDecision(token.used_by, "token", token, _known(connection, token.used_by), again=True)
        if token.device:
            return EnrolmentDecision(token.device, "token", token, _known(connection, token.device))
        registered = devices.by_serial(connection, asked.serial)
        if registered is not None and registered.state is EnrolmentState.PRE_REGISTERED:
            return EnrolmentDecision(registered.id, "token", token, registered)
        taken = registered or _known(connection, name)
        if taken is not None:
            problem = f"the device {taken.id:.140} is {taken.state} already, and this token is for new devices"
            raise ConflictError(
                f"{problem}; ask the operator for a token for {taken.id:.140}, or enrol under another name"
            )
        return EnrolmentDecision(name, "token", token)

    def _given(
        self, connection: Connection, device: str, request_pem: bytes, digest: str, now: datetime
    ) -> DeviceCertificate:
        if certificates.issued_since(connection, device, now - DAY) >= self._settings.certificates_per_day:
            problem = f"{device:.140} got {self._settings.certificates_per_day} certificates within a day"
            raise RequestError(Fault.OVERLOADED, f"{problem}; repeat the request later", retry_after_s=3600.0)
        since = self._believed(now)  # a certificate that begins later would shut the device out if the clock is ahead
        made = self._authority.sign_csr(request_pem, device, now, since=since)
        kept = Certificate(made.serial, device, now, made.expires, key_digest=digest)
        certificates.add(connection, kept)
        return made


def key_digest(request_pem: bytes, authority: Authority) -> str:
    """Return the SHA-256 (hex) of the key that a request is for. Raise RequestError INVALID, TOO_LARGE."""
    key = requested_key(request_pem, authority.settings)
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _by_serial(connection: Connection, serial: str, digest: str, since: datetime) -> EnrolmentDecision:
    """Admit a device as the one that its serial was registered for, until that one is enrolled.

    `since`: only certificates issued after it count as a lost answer.
    """
    known = devices.by_serial(connection, serial)
    if known is None or known.state in {EnrolmentState.REVOKED, EnrolmentState.SUSPENDED}:
        raise _unknown_serial()
    if known.state is EnrolmentState.PRE_REGISTERED:
        return EnrolmentDecision(known.id, "serial", known=known)
    if not certificates.has_key(connection, known.id, digest, since):
        raise _unknown_serial()
    return EnrolmentDecision(known.id, "serial", known=known, again=True)


def _known(connection: Connection, device: str) -> Device | None:
    try:
        return devices.get(connection, device)
    except AbsentError:
        return None


def _unknown_serial() -> RequestError:
    """Return the refusal. It does not reveal whether the serial is unknown, in use or revoked."""
    problem = "the request has neither a token nor a serial that waits for enrolment; ask the operator for one"
    return RequestError(Fault.UNAUTHENTICATED, problem)
