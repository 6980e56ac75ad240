"""What must not leave the device, taken out of what does: keys, certificates, tokens, passwords, wherever they stand.

Nothing that is told is meant to hold any. Logs are written by others, though, and a path or a message may quote one.
Where it is not clear how far a secret goes, more is withheld.
"""

from __future__ import annotations

import re
from typing import Any

WITHHELD = "[withheld]"
_BEHEADED = re.compile(r"\A(?:(?!-----BEGIN ).)*?-----END [^-]{1,60}-----", re.DOTALL)
"""The end of a block whose beginning was cut off with the lines before."""
_BLOCK = re.compile(r"-----BEGIN [^-]{1,60}-----.*?(?:-----END [^-]{1,60}-----|\Z)", re.DOTALL)
_NAME = r"""(?: token | passw(?:or)?d | passphrase | passcode | secret | credential | signature
    | (?:api|access|private)[-_]?key ) (?: s | [-_][\w-]{1,40} )?"""
_KEY = re.compile(rf"(?ix) {_NAME} $")
_QUOTED = r"""[bru]{0,2} (?: (?P<deep>\\{0,16})" .*? (?: (?<!\\)(?P=deep)" | $ ) | ' .*? (?: (?<!\\)' | $ ) )"""
"""To its own end, however deep in JSON in JSON it stands, or to that of the line."""
_NAMED = re.compile(
    rf"""(?imx) ({_NAME} \\*["']? [ \t]* [:=] [ \t]*) (?: (?:bearer|basic) [ \t]+ )? (?: {_QUOTED} | [^\s&]+ )"""
)
_HEADER = re.compile(rf"""(?imx) ((?:authorization|cookie) \\*["']? [ \t]* [:=] [ \t]*) (?: {_QUOTED} | .+ )""")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_USER = re.compile(r"(?<=://)[^/\s]+@")
_KNOWN = re.compile(r"\bef[a-z]_[A-Za-z0-9_-]{8,}|\beyJ[\w-]{5,500}\.[\w-]{5,}(?:\.[\w-]*)?")
"""A fleet's own tokens, and JSON web tokens."""
_LONG = re.compile(r"[A-Za-z0-9+/_=-]{40,}")
_OPAQUE = (re.compile("[a-z]"), re.compile("[A-Z]"), re.compile("[0-9]"))
"""A line of PEM, a random token: long, of both cases and with digits. Digests in hex have one case and are told."""


def without_secrets(text: str) -> str:
    """The text, every secret in it replaced by `WITHHELD`."""
    for block in (_BEHEADED, _BLOCK):
        text = block.sub(WITHHELD, text)
    for named in (_HEADER, _NAMED):
        text = named.sub(rf"\1{WITHHELD}", text)
    text = _BEARER.sub(rf"\1 {WITHHELD}", text)
    text = _KNOWN.sub(WITHHELD, _USER.sub(f"{WITHHELD}@", text))
    return _LONG.sub(_without_opaque, text)


def value_without_secrets(value: Any) -> Any:
    """A JSON value, all of its texts (keys of objects, too) without secrets, and without what a key names as one."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {without_secrets(key): _named(key, inner) for key, inner in value.items()}
    return [value_without_secrets(inner) for inner in value] if isinstance(value, list) else value


def _named(key: str, inner: Any) -> Any:
    return WITHHELD if isinstance(inner, str) and _KEY.search(key) else value_without_secrets(inner)


def _without_opaque(found: re.Match[str]) -> str:
    """Decided here: one expression would take the square of its length for a long text."""
    return WITHHELD if all(kind.search(found[0]) for kind in _OPAQUE) else found[0]
