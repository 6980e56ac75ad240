"""Merge of signed releases and releases in the model directory: which may serve, and why others may not."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from gateway.common.domain.release import Release
from gateway.serving.committed.store import Committed, CommittedSlot


@dataclass(frozen=True, slots=True)
class MergedReleases:
    """Merged releases.

    `signed`: releases of the slots, including refused ones. `admitted` and `denied`: releases in the model directory
    that may serve, and those that may not, with the reason. `unlisted`: problems that the index, with one line per
    version, cannot show.
    """

    signed: tuple[Release, ...]
    admitted: tuple[Release, ...]
    denied: tuple[Release, ...]
    unlisted: tuple[str, ...]

    @property
    def every(self) -> tuple[Release, ...]:
        """All releases."""
        return (*self.signed, *self.admitted, *self.denied)


def merge_releases(
    committed: Committed, hand: Iterable[Release], *, unsigned: bool, serving: Collection[tuple[str, str]] = ()
) -> MergedReleases:
    """Merge `committed` with `hand`, the releases in the model directory.

    `unsigned`: whether the latter may serve at all. `serving`: names and versions of signed releases that are loaded;
    they continue whatever happened to their files.
    """
    signed, unlisted = [], []
    for slot in committed.slots.values():
        if slot.previous is not None and slot.previous.version == slot.release.version:
            unlisted.append(f"{slot.release.name} {slot.release.version}: {slot.release.problem}")
        signed += _chosen(slot, serving)
    taken = {(release.name, release.version) for release in signed}
    admitted, denied = [], []
    for release in hand:
        problem = _denial(release, committed, unsigned=unsigned)
        if not problem:
            admitted.append(release)
        elif (release.name, release.version) not in taken:
            denied.append(replace(release, manifest=None, bare=None, problem=problem))
        else:
            unlisted.append(f"{release.name} {release.version} in the model directory: {problem}")
    return MergedReleases(tuple(signed), tuple(admitted), tuple(denied), tuple(unlisted))


def _denial(release: Release, committed: Committed, *, unsigned: bool) -> str:
    if release.name in committed.slots:
        return "unsigned, and the fleet serves a signed model of this name here; give it another name"
    if not unsigned and not release.problem:
        return "unsigned: its owner must sign and publish it, or set [fleet] unsigned = true"
    return ""


def _chosen(slot: CommittedSlot, serving: Collection[tuple[str, str]]) -> list[Release]:
    """Return a slot's release; also the previous one if that release is refused or undecided, and not loaded."""
    release, previous = slot.release, slot.previous
    if previous is None or (release.name, release.version) in serving:
        return [release]
    if previous.version == release.version:
        return [previous]
    if not release.problem:
        return [release, previous]
    remark = f"{release.problem}; the previous release, version {previous.version}, serves instead"
    return [replace(release, problem=remark), previous]
