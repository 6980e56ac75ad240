"""Challenges of registries in WWW-Authenticate. Pure. Source: RFC 9110, 11.6.1; distribution's token authentication."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PARAMETER = re.compile(r'\s*,?\s*([A-Za-z0-9_-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9-]*)(?:\s+|$)")
CHALLENGE_LIMIT_CHARS = 4096


@dataclass(frozen=True, slots=True)
class Challenge:
    """Authentication that a server wants. `scheme` in lower case; `realm`: URL of the token service for `bearer`."""

    scheme: str
    realm: str = ""
    service: str = ""


def read_challenge(text: str) -> Challenge | None:
    """Return the first challenge of a header, or None."""
    found = _SCHEME.match(text[:CHALLENGE_LIMIT_CHARS])
    if not found:
        return None
    at, values = found.end(), dict[str, str]()
    while parameter := _PARAMETER.match(text[:CHALLENGE_LIMIT_CHARS], at):
        name, quoted, plain = parameter.groups()
        values.setdefault(name.lower(), re.sub(r"\\(.)", r"\1", quoted) if plain is None else plain)
        at = parameter.end()
    return Challenge(found[1].lower(), values.get("realm", ""), values.get("service", ""))
