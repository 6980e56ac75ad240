"""Signed items in the store that the agent passes to the daemon, with the evidence of their signatures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.common.domain.assignment import Target
from gateway.common.domain.manifest_toml import DIGEST_PATTERN
from gateway.common.domain.release_paths import fits_slot, is_slot, parse_path


@dataclass(frozen=True, slots=True)
class Activation:
    """Signed release in a slot (the model's name on this device). All digests are SHA-256 of blobs, as hex.

    `target` is its path in the repository (`models/<owner>/<model>/<version>/release`), `release` the digest of that
    signed document. `variants` are those whose artifacts are in the store. `evidence`: signed metadata from the
    top-level targets role down to the owner's. `root` is the version of the root metadata that verifies the first of
    them.
    """

    slot: str
    target: str
    release: str
    variants: tuple[str, ...]
    evidence: tuple[str, ...]
    root: int

    @property
    def version(self) -> str:
        """Return the release's version, as stated in its path."""
        return self.target.split("/")[-2]


@dataclass(frozen=True, slots=True)
class Installed:
    """Device profile or policy in the store, with the evidence of its signature, as in `Activation`."""

    target: Target
    evidence: tuple[str, ...]
    root: int


def activation_document(activation: Activation) -> dict[str, Any]:
    """Return plain values for JSON."""
    return {
        "slot": activation.slot,
        "target": activation.target,
        "release": activation.release,
        "variants": list(activation.variants),
        "evidence": list(activation.evidence),
        "root": activation.root,
    }


def read_activation(document: Mapping[str, Any]) -> Activation:
    """Read the output of `activation_document`. Slots and digests become paths, so both are checked.

    Raises ValueError, TypeError or KeyError for anything else.
    """
    root, target, slot = document["root"], _text(document["target"]), _text(document["slot"])
    if type(root) is not int or root < 1:
        raise ValueError(f"root must be a version, not {root!r:.80}")
    parse_path(target)
    if not is_slot(slot):
        raise ValueError(f"{slot!r:.80} is no slot: letters, digits, '.', '_' and '-' make its name")
    if not fits_slot(target, slot):
        raise ValueError(f"the slot {slot} cannot hold {target}")
    return Activation(
        slot=slot,
        target=target,
        release=_digest(document["release"]),
        variants=tuple(_text(name) for name in document["variants"]),
        evidence=tuple(_digest(digest) for digest in document["evidence"]),
        root=root,
    )


def _digest(value: Any) -> str:
    if not DIGEST_PATTERN.fullmatch(_text(value)):
        raise ValueError(f"{value!r:.80} is no SHA-256 digest in lower-case hex")
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"must be a string, not {value!r:.80}")
    return value
