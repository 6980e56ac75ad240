"""Requests of the agent, one JSON line each: install a version, or confirm that the new one works."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gateway.common.domain.manifest_toml import DIGEST_PATTERN, NAME_PATTERN

REQUEST_LIMIT_BYTES = 16_384
"""Longest request that is read."""
EVIDENCE_LIMIT = 8
PACKAGES_OWN = (
    "Debian packages own the programs of this device: upgrade those with apt-get, or remove them and run make install "
    "(EG-810)"
)
"""Refusal of the installer of new versions: who installed a version owns it."""


@dataclass(frozen=True, slots=True)
class InstallRequest:
    """Request to install. `target`: path of the release; `release`: its digest; `evidence`: digests of its metadata."""

    target: str
    release: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Confirm:
    """Request to confirm: the agent that runs in `environment` completed a poll."""

    environment: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Request to give up the version under way."""

    reason: str


Request = InstallRequest | Confirm | GiveUp
_VERBS: Mapping[str, type[Request]] = {"install": InstallRequest, "confirm": Confirm, "give-up": GiveUp}


def request_line(request: Request) -> bytes:
    """Return the line of a request."""
    verb = next(verb for verb, kind in _VERBS.items() if isinstance(request, kind))
    return (json.dumps({"do": verb, **asdict(request)}) + "\n").encode()


def parse_request(line: bytes) -> Request:
    """Return the inverse of `request_line`. Raises ValueError."""
    try:
        document = json.loads(line)
        verb = document["do"]
        if verb == "install":
            return _install(document)
        if verb == "confirm":
            return Confirm(_text(document["environment"], NAME_PATTERN.fullmatch))
        if verb == "give-up":
            return GiveUp(str(document["reason"])[:500])
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is no request: {type(error).__name__} {error!s:.100}") from None
    raise ValueError(f"{verb!r:.40} is not known; ask for one of {', '.join(_VERBS)}")


def _install(document: Mapping[str, Any]) -> InstallRequest:
    evidence = document["evidence"]
    if not isinstance(evidence, list) or len(evidence) > EVIDENCE_LIMIT:
        raise ValueError(f"evidence must be a list of at most {EVIDENCE_LIMIT} digests")
    digests = tuple(_text(one, DIGEST_PATTERN.fullmatch) for one in evidence)
    if not isinstance(document["target"], str):
        raise TypeError("target must be a path")
    return InstallRequest(document["target"], _text(document["release"], DIGEST_PATTERN.fullmatch), digests)


def _text(value: Any, matches: Any) -> str:
    if not isinstance(value, str) or not matches(value):
        raise ValueError(f"{value!r:.80} is neither a digest nor a name")
    return value
