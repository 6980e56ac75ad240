"""What the fleet's director assigns to one device: which releases in which slots. Values; `trust` verifies them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Target:
    """A signed file of the repository: its path, size and SHA-256 (hex)."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """`slots`: release by slot, the model's name on the device; `files`: device profiles and policies.

    `version` grows with every change of what is assigned or re-signing; times are UTC; `nonce` repeats what the device
    sent ("": none). `poll_s`: how long to wait before asking again (None: as the device is configured).
    """

    device: str
    version: int
    issued: datetime
    expires: datetime
    slots: Mapping[str, Target]
    files: tuple[Target, ...] = ()
    nonce: str = ""
    poll_s: float | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
