"""What must not leave the device, taken out of what does: keys, certificates, tokens, passwords, wherever they stand.

Nothing that is told is meant to hold any. Logs are written by others, though, and a path or a message may quote one.
"""

from __future__ import annotations

import re
from typing import Any

WITHHELD = "[withheld]"
_BLOCK = re.compile(r"-----BEGIN [^-]{1,60}-----.*?(?:-----END [^-]{1,60}-----|\Z)", re.DOTALL)
_NAMED = re.compile(
    r"""(?ix) ((?:token|passw(?:or)?d|passphrase|secret|authorization|credentials?|api[-_]?key|private[-_]?key)
    \\?["']? \s* [:=] \s*) (?: (?:bearer|basic) \s+ )? (?: \\?"[^"\\]*\\?" | '[^']*' | [^\s,;&}"']+ )"""
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_USER = re.compile(r"(?<=://)[^/\s@]+@")
_LONG = re.compile(r"[A-Za-z0-9+/_=-]{40,}")
_OPAQUE = (re.compile("[a-z]"), re.compile("[A-Z]"), re.compile("[0-9]"))
"""A line of PEM, a random token: long, of both cases and with digits. Digests in hex have one case and are told."""


def without_secrets(text: str) -> str:
    """The text, every secret in it replaced by `WITHHELD`."""
    text = _BLOCK.sub(WITHHELD, text)
    text = _NAMED.sub(rf"\1{WITHHELD}", text)
    text = _BEARER.sub(rf"\1 {WITHHELD}", text)
    return _LONG.sub(_without_opaque, _USER.sub(f"{WITHHELD}@", text))


def value_without_secrets(value: Any) -> Any:
    """A JSON value, all of its texts (keys of objects, too) without secrets."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {without_secrets(key): value_without_secrets(inner) for key, inner in value.items()}
    return [value_without_secrets(inner) for inner in value] if isinstance(value, list) else value


def _without_opaque(found: re.Match[str]) -> str:
    """Decided here: one expression would take the square of its length for a long text."""
    return WITHHELD if all(kind.search(found[0]) for kind in _OPAQUE) else found[0]
