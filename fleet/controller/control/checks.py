"""Checks of a controller's environment, on values that `fleet.cli.observed` gathers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.publisher.roles import DIRECTOR
from fleet.publisher.verify import Finding

CLOCK_TOLERANCE = timedelta(minutes=5)
"""Largest lead of the newest record over this clock: the clocks of replicas differ a little."""
PLAIN = "http://"
OLDEST_SERVER = (14,)
"""The oldest PostgreSQL with which edge-fleet works."""


@dataclass(frozen=True, slots=True)
class BlobUrls:
    """URLs of files. `repository_url` is given to devices; `endpoint` is where redirects lead ("": none)."""

    repository_url: str
    endpoint: str


@dataclass(frozen=True, slots=True)
class Clock:
    """Time of this machine.

    `synchronised` None: the kernel may not be asked. `newest`: time of the newest record in the database, if any.
    """

    now: datetime
    synchronised: bool | None
    newest: datetime | None


@dataclass(frozen=True, slots=True)
class Tables:
    """Schema revision of the database and of this program. `problem`: why the database cannot be used ("": it can).

    `server`: version of PostgreSQL, () for SQLite.
    """

    revision: str
    newest: str
    problem: str = ""
    server: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Validity of a certificate. `notice`: how long before its end it is to be replaced."""

    where: str
    begins: datetime
    ends: datetime
    notice: timedelta
    remedy: str


@dataclass(frozen=True, slots=True)
class HeldRoleKeys:
    """Keys of a role: `threshold` of its published keys must sign; the secret parts of `here` of them are here."""

    role: str
    threshold: int
    here: int


@dataclass(frozen=True, slots=True)
class StartFacts:
    """Everything that is checked. `unpublished`: why no published keys are known ("": they are)."""

    blobs: BlobUrls
    clock: Clock
    tables: Tables
    certificates: Sequence[Lifetime]
    keys: Sequence[HeldRoleKeys]
    unpublished: str = ""


def findings(observed: StartFacts) -> tuple[Finding, ...]:
    """Return what is wrong, in a fixed order."""
    return (
        *_tables(observed.tables),
        *_clock(observed.clock),
        *(finding for one in observed.certificates for finding in _certificate(one, observed.clock.now)),
        *_keys(observed),
        *_blobs(observed.blobs),
    )


def _tables(tables: Tables) -> Iterator[Finding]:
    if tables.problem:
        yield Finding("database", tables.problem, "check the database, and [database] url in fleet.toml")
    elif not tables.revision:
        yield Finding("database", "holds no tables yet", "edge-fleet serve creates them")
    elif tables.revision != tables.newest:
        problem = f"its tables are of {tables.revision}, this program works with {tables.newest}"
        yield Finding("database", problem, "edge-fleet migrate, or start edge-fleet serve")
    if tables.server and tables.server < OLDEST_SERVER:
        problem = f"is PostgreSQL {_dotted(tables.server)}, older than {_dotted(OLDEST_SERVER)}"
        yield Finding("database", problem, "upgrade the server, or move: edge-fleet migrate --to URL")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _clock(clock: Clock) -> Iterator[Finding]:
    if clock.synchronised is False:
        yield Finding("clock", "is not synchronised", "let systemd-timesyncd or chrony reach a time server")
    if clock.newest and clock.newest - clock.now > CLOCK_TOLERANCE:
        problem = f"says {clock.now:%Y-%m-%d %H:%M} UTC, but the newest record is of {clock.newest:%Y-%m-%d %H:%M} UTC"
        yield Finding("clock", problem, "set the clock: signatures by a clock that is behind expire early")


def _certificate(one: Lifetime, now: datetime) -> Iterator[Finding]:
    if now < one.begins:
        yield Finding(one.where, f"does not hold before {one.begins:%Y-%m-%d %H:%M} UTC", "set the clock")
    elif one.ends <= now:
        yield Finding(one.where, f"expired at {one.ends:%Y-%m-%d %H:%M} UTC", one.remedy)
    elif one.ends - now < one.notice:
        left_d = (one.ends - now) / timedelta(days=1)
        yield Finding(one.where, f"expires in {left_d:.1f} days, at {one.ends:%Y-%m-%d %H:%M} UTC", one.remedy)


def _keys(observed: StartFacts) -> Iterator[Finding]:
    if observed.unpublished:
        yield Finding("repository", observed.unpublished, "sign the drafts, then edge-fleet publish")
    for role in observed.keys:
        if role.here < role.threshold:
            problem = f"{role.threshold} of its published keys must sign, and {role.here} are in keys"
            yield Finding(role.role, problem, _remedy(role.role))


def _remedy(role: str) -> str:
    put = "put NAME.pem and NAME.pub into keys"
    if role == DIRECTOR:
        return f"devices are assigned nothing: {put}; if lost: edge-fleet keys new, then edge-fleet rotate {role}"
    return f"{put}; otherwise edge-fleet publish elsewhere, before it expires"


def _blobs(blobs: BlobUrls) -> Iterator[Finding]:
    if blobs.endpoint.startswith(PLAIN) and not blobs.repository_url.startswith(PLAIN):
        problem = f"{blobs.endpoint} is plain http: devices use https and refuse such a redirect"
        yield Finding("[blobs.s3]", problem, "set endpoint, or public_endpoint, to an https address")
