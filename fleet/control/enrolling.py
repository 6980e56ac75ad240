"""How a device comes into the fleet: by a one-time token, or by a serial that an operator registered.

Its name is the token's, else that under which its serial was registered, else the one it asks for (the common name of
its certificate request, its serial), else one made of its key. A token that names no device lets in new devices, and
those that wait to be let in by their serial; who is enrolled already comes again with a token made for it alone. So a
token that leaks makes nobody another device. And a token is for the device that was there, or not there, when it was
made: one for a name that nobody has is void once a device is called so, whoever made it.

Once more with the same token and the same key is the device whose answer was lost, for as long as the token would have
been valid. A device that comes again with another key loses its earlier certificates.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fleet.audit import Deed
from fleet.authority.ca import Authority
from fleet.authority.certificate import DeviceCertificate
from fleet.authority.request import requested_key, requested_name
from fleet.control.callers import admitted
from fleet.control.settings import DirectorSettings
from fleet.database import audit, certificates, devices, enrolment
from fleet.database.certificates import Certificate
from fleet.database.devices import Device, State
from fleet.database.engine import Connection, Database
from fleet.database.enrolment import EnrolmentToken, TokenRefusedError
from fleet.database.errors import AbsentError, ConflictError
from gateway.domain.errors import Fault, RequestError
from gateway.domain.manifest_toml import NAME_PATTERN

NAMED_BY_KEY = "device-"
KEY_CHARACTERS = 12
DAY = timedelta(days=1)
SUPERSEDED = "the device was enrolled again with another key"


@dataclass(frozen=True, slots=True)
class Application:
    """What a device that wants in says. `token` or `serial` may be empty; `request_pem`: its certificate request."""

    request_pem: bytes
    token: str = field(default="", repr=False)
    serial: str = ""
    agent: str = ""


@dataclass(frozen=True, slots=True)
class Admission:
    """As whom a device is let in, and why. `known`: it is there already; `again`: its answer was lost."""

    device: str
    by: str
    token: EnrolmentToken | None = None
    known: Device | None = None
    again: bool = False


class Enrolling:
    """One per process; any thread may ask."""

    def __init__(
        self, database: Database, authority: Authority, settings: DirectorSettings, counts: Counter[str]
    ) -> None:
        self._database, self._authority, self._settings, self._counts = database, authority, settings, counts
        self._backdated = timedelta(seconds=authority.settings.backdate_s + 1.0)  # certificates know whole seconds

    def enrol(self, asked: Application, now: datetime) -> DeviceCertificate:
        """A certificate for the device. Raises RequestError: INVALID or TOO_LARGE for the certificate request,
        UNAUTHENTICATED, ConflictError for a name or serial that is taken or a revoked device, OVERLOADED."""
        try:
            name, digest = self._requested(asked)
            with self._database.read() as connection:
                self._admit(connection, asked, name, digest, now)  # who is refused costs no write
            with self._database.write() as connection:
                made = self._enrolled(connection, asked, name, digest, now)
        except RequestError as error:
            self._counts[f"enrolment_refused_{error.fault.value}"] += 1
            raise
        self._counts["enrolled"] += 1
        return made

    def renew(self, serial: str, request_pem: bytes, now: datetime) -> DeviceCertificate:
        """Another certificate for the device that shows this one, for another key. The one that it shows holds until
        it expires: the answer may be lost.

        Raises RequestError: UNAUTHENTICATED, INVALID, TOO_LARGE, OVERLOADED.
        """
        digest = key_digest(request_pem, self._authority)
        with self._database.write() as connection:
            device = self._renewing(connection, serial, digest, now)
            made = self._given(connection, device, request_pem, digest, now)
            details = {"certificate": made.serial, "before": serial}
            audit.append(connection, Deed(f"device:{device}", "certificates.renew", device, details), now)
            return made

    def _requested(self, asked: Application) -> tuple[str, str]:
        """The name that the device asks for, and the digest of its key."""
        digest = key_digest(asked.request_pem, self._authority)
        wanted = (requested_name(asked.request_pem), asked.serial, f"{NAMED_BY_KEY}{digest[:KEY_CHARACTERS]}")
        return next(name for name in wanted if NAME_PATTERN.fullmatch(name)), digest

    # ---- who may -----------------------------------------------------------------------------------------------------
    def _admit(self, connection: Connection, asked: Application, name: str, digest: str, now: datetime) -> Admission:
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
            return Admission(token.used_by, "token", token, _known(connection, token.used_by), again=True)
        if token.device:
            return Admission(token.device, "token", token, _known(connection, token.device))
        return _by_open_token(connection, token, asked.serial, name)

    def _enrolled(
        self, connection: Connection, asked: Application, name: str, digest: str, now: datetime
    ) -> DeviceCertificate:
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
        if fresh:
            _label(connection, fresh, let_in.known, device)
        certificates.revoke_other_keys(connection, device, digest, SUPERSEDED, now)
        made = self._given(connection, device, asked.request_pem, digest, now)
        details = {"by": let_in.by, "certificate": made.serial, "agent": asked.agent, "again": let_in.again}
        details |= {"enrolments_void": void} if void else {}
        details |= {"token": let_in.token.id} if let_in.token else {"serial": asked.serial}
        audit.append(connection, Deed(f"device:{device}", "devices.enrol", device, details), now)
        return made

    def _renewing(self, connection: Connection, serial: str, digest: str, now: datetime) -> str:
        shown = certificates.find(connection, serial)
        if shown:
            devices.lock(connection, shown.device)
        device = admitted(connection, serial, now).device
        if shown and shown.key_digest == digest:
            raise RequestError(Fault.INVALID, "a certificate is renewed for another key; make a new one and ask again")
        return device

    def _given(
        self, connection: Connection, device: str, request_pem: bytes, digest: str, now: datetime
    ) -> DeviceCertificate:
        if certificates.issued_since(connection, device, now - DAY) >= self._settings.certificates_per_day:
            problem = f"{device:.140} was given {self._settings.certificates_per_day} certificates within a day"
            raise RequestError(Fault.OVERLOADED, f"{problem}; ask again later", retry_after_s=3600.0)
        made = self._authority.sign_csr(request_pem, device, now)
        kept = Certificate(made.serial, device, made.issued, made.expires, key_digest=digest)
        certificates.add(connection, kept)
        return made


def key_digest(request_pem: bytes, authority: Authority) -> str:
    """SHA-256 (hex) of the key that a request is for. Raises RequestError INVALID, TOO_LARGE."""
    key = requested_key(request_pem, authority.settings)
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _by_serial(connection: Connection, serial: str, digest: str, since: datetime) -> Admission:
    """Who knows a serial becomes the device that it was registered for, until that is enrolled. `since`: so old may
    an answer be that was lost."""
    known = devices.by_serial(connection, serial)
    if known is None or known.state is State.REVOKED:
        raise _unknown_serial()
    if known.state is State.PRE_REGISTERED:
        return Admission(known.id, "serial", known=known)
    if not certificates.has_key(connection, known.id, digest, since):
        raise _unknown_serial()
    return Admission(known.id, "serial", known=known, again=True)


def _by_open_token(connection: Connection, token: EnrolmentToken, serial: str, name: str) -> Admission:
    registered = devices.by_serial(connection, serial)
    if registered is not None and registered.state is State.PRE_REGISTERED:
        return Admission(registered.id, "token", token, registered)
    taken = registered or _known(connection, name)
    if taken is not None:
        problem = f"the device {taken.id:.140} is {taken.state} already, and this token is for new devices"
        raise ConflictError(f"{problem}; ask the operator for a token for {taken.id:.140}, or enrol under another name")
    return Admission(name, "token", token)


def _known(connection: Connection, device: str) -> Device | None:
    try:
        return devices.get(connection, device)
    except AbsentError:
        return None


def _label(connection: Connection, token: EnrolmentToken, known: Device | None, device: str) -> None:
    """What the token gives comes to what the device has."""
    if token.tags or token.site:
        tags = token.tags | (known.tags if known else frozenset())
        devices.label(connection, device, tags, token.site or (known.site if known else ""))


def _unknown_serial() -> RequestError:
    """Whoever presents it is not told whether it is unknown, in use or revoked."""
    problem = "neither a token nor a serial that waits to be enrolled came with the request; ask the operator for one"
    return RequestError(Fault.UNAUTHENTICATED, problem)
