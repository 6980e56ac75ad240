"""Options of rollouts on the command line: waves, times, digests."""

from __future__ import annotations

import argparse
import re
from typing import Any

from gateway.common.domain.python310 import from_iso

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
WAVES = "5%,25%,100%"
"""Waves if neither file nor option names them."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_DIGEST = re.compile("[0-9a-f]{64}")
_WAVE = re.compile(r"(\d+(?:\.\d+)?)(%?)(!?)")


def waves(text: str) -> list[dict[str, Any]]:
    """Parse waves such as `5%,25%!,100%`.

    A wave is a percentage of all devices that is then reached, or a number of further devices. `!`: it needs approval.
    """
    found = [_WAVE.fullmatch(part.strip()) for part in text.split(",")]
    made = [_wave(*match.groups()) for match in found if match]
    if len(made) != len(found):
        raise argparse.ArgumentTypeError(f"write waves as 5%,25%!,100% or 10,200,100%, not {text!r:.100}")
    return made


def _wave(number: str, percent: str, approval: str) -> dict[str, Any]:
    size: dict[str, Any] = {"percent": float(number)} if percent else {"count": int(float(number))}
    return size | ({"needs_approval": True} if approval else {})


def digest(text: str) -> str:
    """Parse a SHA-256, as hex."""
    if not _DIGEST.fullmatch(text):
        raise argparse.ArgumentTypeError(f"write the whole spec digest, as rollouts show prints it, not {text!r:.80}")
    return text


def duration(text: str) -> float:
    """Parse 90, 90s, 15m, 2h or 1d. Return seconds."""
    match = _DURATION.fullmatch(text)
    if not match:
        raise argparse.ArgumentTypeError(f"write a time as 90s, 15m, 2h or 1d, not {text!r:.40}")
    return float(match[1]) * UNITS[match[2] or "s"]


def day(text: str) -> str:
    """Parse a date, which means its begin in local time, or a time. Return it in RFC 3339."""
    try:
        return from_iso(text).astimezone().isoformat()
    except (ValueError, OverflowError):
        problem = f"write a date as 2027-01-31 or a time as 2027-01-31T12:00Z, not {text!r:.40}"
        raise argparse.ArgumentTypeError(problem) from None
