"""Redaction of keys, certificates, tokens and passwords in everything that leaves the device.

Reports are not meant to contain secrets. But logs are written by other programs, and a path or a message may quote a
secret. If the end of a secret is unclear, more text is withheld.
"""

from __future__ import annotations

import re
from typing import Any

WITHHELD = "[withheld]"
_BEHEADED = re.compile(r"\A(?:(?!-----BEGIN ).)*?-----END [^-]{1,60}-----", re.DOTALL)
"""End of a PEM block whose beginning was cut off with earlier lines."""
_BLOCK = re.compile(r"-----BEGIN [^-]{1,60}-----.*?(?:-----END [^-]{1,60}-----|\Z)", re.DOTALL)
_NAME = r"""(?: token | passw(?:or)?[dt] | passphrase | passcode | kennwort | secret | credential | signature
    | (?:api|access|private)[-_]?key | (?<![a-z])(?:pass|pwd|psw)
    | login[-_]?pas ) (?: s | [-_][\w-]{1,40} )?"""
_KEY = re.compile(rf"(?ix) {_NAME} $")
SECRET_SETTING = re.compile(rf"""(?ix) {_NAME} ["']? [ \t]* [:=]""")
"""Name and sign of a setting that has a secret, or the file of one, as its value."""
_QUOTED = r"""[bru]{0,2} (?: (?P<deep>\\{0,16})" .*? (?: (?<!\\)(?P=deep)" | $ ) | ' .*? (?: (?<!\\)' | $ ) )"""
"""Quoted value up to its closing quote, at any depth of JSON within JSON, or up to the end of the line."""
_NAMED = re.compile(
    rf"""(?imx) ({_NAME} \\*["']? [ \t]* [:=] [ \t]*) (?: (?:bearer|basic) [ \t]+ )? (?: {_QUOTED} | \[.* | [^\s&]+ )"""
)
_HEADER = re.compile(rf"""(?imx) ((?:authorization|cookie) \\*["']? [ \t]* [:=] [ \t]*) (?: {_QUOTED} | .+ )""")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_USER = re.compile(r"(?<=://)[^/\s]+@")
_ADDRESS = re.compile(r"""(?<=://)[^\s'"]+""")
"""Rest of a URL: a password may contain "/" and "@", so that all before the last "@" is withheld."""
IN_PATH = re.compile(r"""(?<=/)[A-Za-z][\w.-]*:[^/?&\s'"]+""")
"""Name and password as a part of a URL's path, as some cameras take them. Paths of registries have `name:tag`."""
_CAMERA = re.compile(r"""(?i)(\brtsps?://[^/\s'"]+)(/[^\s'"]+)""")
_KNOWN = re.compile(r"\bef[a-z]_[A-Za-z0-9_-]{8,}|\beyJ[\w-]{5,500}\.[\w-]{5,}(?:\.[\w-]*)?")
"""Tokens of a fleet, and JSON web tokens."""
_LONG = re.compile(r"[A-Za-z0-9+/_=-]{40,}")
_OPAQUE = (re.compile("[a-z]"), re.compile("[A-Z]"), re.compile("[0-9]"))
"""Signs of PEM lines and random tokens: long, both cases, digits. Hex digests have one case and are not withheld."""


def without_secrets(text: str) -> str:
    """Return the text with every secret replaced by `WITHHELD`."""
    for block in (_BEHEADED, _BLOCK):
        text = block.sub(WITHHELD, text)
    for named in (_HEADER, _NAMED):
        text = named.sub(rf"\1{WITHHELD}", text)
    text = _BEARER.sub(rf"\1 {WITHHELD}", text)
    text = _ADDRESS.sub(_without_user, _USER.sub(f"{WITHHELD}@", text))
    text = _CAMERA.sub(lambda found: found[1] + IN_PATH.sub(WITHHELD, found[2]), text)
    text = _KNOWN.sub(WITHHELD, text)
    return _LONG.sub(_without_opaque, text)


def value_without_secrets(value: Any) -> Any:
    """Return a JSON value without secrets: in all texts, in keys of objects, and in values whose key names a secret."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {
            without_secrets(key): WITHHELD
            if isinstance(inner, str | list | dict) and inner and _KEY.search(key)
            else value_without_secrets(inner)
            for key, inner in value.items()
        }
    return [value_without_secrets(inner) for inner in value] if isinstance(value, list) else value


def _without_user(found: re.Match[str]) -> str:
    """Withhold name and password of a URL. A single regular expression would take quadratic time on long texts."""
    return f"{WITHHELD}@{found[0].rpartition('@')[2]}" if "@" in found[0] else found[0]


def _without_opaque(found: re.Match[str]) -> str:
    """Withhold opaque texts. A single regular expression would take quadratic time on long texts."""
    return WITHHELD if all(kind.search(found[0]) for kind in _OPAQUE) else found[0]
