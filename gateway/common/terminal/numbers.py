"""Types of numeric options, for argparse. Each raises argparse.ArgumentTypeError with what is allowed."""

from __future__ import annotations

import argparse
import math

DIGITS = 15
"""Most digits of a whole number, so that it is exact in JSON."""

INTERVAL_MIN_S, INTERVAL_MAX_S = 0.1, 3_600.0
"""Least and most seconds between two outputs."""


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    return _whole(text, 1, "above 0")


def whole(text: str) -> int:
    """Parse a whole number, 0 or more."""
    return _whole(text, 0, "from 0 on")


def _whole(text: str, low: int, words: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= DIGITS and int(text) >= low):
        raise argparse.ArgumentTypeError(f"must be a whole number {words}, not {text!r:.40}")
    return int(text)


def span(text: str) -> float:
    """Parse seconds, hours or days above 0."""
    return _number(text, math.ulp(0.0), "above 0")


def number(text: str) -> float:
    """Parse seconds or percent, 0 or more."""
    return _number(text, 0.0, "from 0 on")


def size(text: str) -> tuple[int, int]:
    """Parse a height and a width in pixels, HxW."""
    height, separator, width = text.partition("x")
    if not separator:
        raise argparse.ArgumentTypeError(f"must be height and width, such as 320x640, not {text!r:.40}")
    return positive(height), positive(width)


def share(text: str) -> float:
    """Parse a share, 0 to 1."""
    found = _number(text, 0.0, "from 0 to 1")
    if found > 1.0:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1, not {text!r:.40}")
    return found


def interval(text: str) -> float:
    """Parse seconds between two outputs: a tenth at least, an hour at most."""
    seconds = _number(text, INTERVAL_MIN_S, f"from {INTERVAL_MIN_S:g} to {INTERVAL_MAX_S:g}")
    if seconds > INTERVAL_MAX_S:
        raise argparse.ArgumentTypeError(f"must be at most {INTERVAL_MAX_S:g} seconds, not {text!r:.40}")
    return seconds


def _number(text: str, low: float, words: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not low <= found < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number {words}, not {text!r:.40}")
    return found
