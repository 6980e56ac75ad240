"""Format of an assignment: TUF targets metadata with the device, the time of issue and a slot for each release.

Devices read it and the controller writes it, both by this module. Canonical JSON has no floats, so `poll_s` is an
integer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from gateway.common.domain.assignment import Assignment, Target
from gateway.common.domain.manifest_toml import DIGEST_PATTERN, NAME_PATTERN
from gateway.common.domain.release_form import TIME_FORMAT
from gateway.common.domain.release_paths import fits_slot, is_slot
from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.paths import check_path, is_file
from gateway.common.trust.settings import TrustSettings

if TYPE_CHECKING:
    from tuf.api.metadata import Metadata, TargetFile, Targets

NONCE = re.compile(r"[A-Za-z0-9_-]{0,128}")
_OWN_FIELDS = ("device", "issued", "nonce", "poll_s")


def assignment_metadata(assignment: Assignment) -> Metadata[Targets]:
    """Return the document of an assignment, unsigned."""
    from tuf.api.metadata import Metadata, Targets

    fields: dict[str, Any] = {
        **assignment.extra,
        "device": assignment.device,
        "issued": assignment.issued.strftime(TIME_FORMAT),
    }
    if assignment.nonce:
        fields["nonce"] = assignment.nonce
    if assignment.poll_s is not None:
        fields["poll_s"] = math.ceil(assignment.poll_s)
    files = [_file(target) for target in assignment.files]
    files += [_file(target, slot) for slot, target in assignment.slots.items()]
    targets = {file.path: file for file in files}
    if len(targets) < len(files):
        raise ValueError("an assignment names each target once; here one is in two slots")
    return Metadata(Targets(assignment.version, None, assignment.expires, targets, unrecognized_fields=fields))


def read_assignment(signed: Targets, where: str, settings: TrustSettings) -> Assignment:
    """Return the value of a signed document. Raise Distrust if it violates the format."""
    fields = signed.unrecognized_fields
    if signed.delegations is not None:
        raise Distrust(Reason.DAMAGED, where, "it delegates; an assignment only assigns")
    if len(signed.targets) > settings.slots_limit:
        counted = f"{len(signed.targets)} targets, at most {settings.slots_limit} are read"
        raise Distrust(Reason.TOO_LARGE, where, f"it has {counted}")
    targets = dict(sorted(signed.targets.items()))  # the order of the bytes is not signed
    return Assignment(
        device=_text(fields, "device", NAME_PATTERN, where),
        version=signed.version,
        issued=_time(fields, where),
        expires=signed.expires,
        slots=_slots(targets, where),
        files=tuple(_target(path, file, where) for path, file in targets.items() if is_file(path)),
        nonce=_text(fields, "nonce", NONCE, where) if "nonce" in fields else "",
        poll_s=_pause(fields, where, settings) if "poll_s" in fields else None,
        extra={name: value for name, value in fields.items() if name not in _OWN_FIELDS},
    )


def _file(target: Target, slot: str = "") -> TargetFile:
    from tuf.api.metadata import TargetFile

    custom = {"custom": {"slot": slot}} if slot else {}
    return TargetFile(target.size_bytes, {"sha256": target.sha256}, target.path, custom)


def _slots(targets: Mapping[str, TargetFile], where: str) -> dict[str, Target]:
    slots: dict[str, Target] = {}
    for path, file in targets.items():
        target, slot = _target(path, file, where), _slot(path, file, where)
        if slot and slot in slots:
            raise Distrust(Reason.SLOT_TWICE, where, f"the slot {slot} is assigned both {slots[slot].path} and {path}")
        if slot:
            slots[slot] = target
    return slots


def _slot(path: str, file: TargetFile, where: str) -> str:
    """Return the slot of a release; "" for a profile or policy, which have none."""
    custom = file.custom
    slot = custom.get("slot") if isinstance(custom, dict) else None
    if is_file(path):
        if slot is not None:
            raise Distrust(Reason.DAMAGED, where, f"{path} is no model, yet it has a slot")
        return ""
    if not (isinstance(slot, str) and is_slot(slot)):
        raise Distrust(Reason.DAMAGED, where, f"{path} needs a slot that is a name, not {slot!r:.80}")
    if not fits_slot(path, slot):
        raise Distrust(Reason.WRONG_SLOT, where, f"{path} is to take the slot {slot}, which is for another kind")
    return slot


def _target(path: str, file: TargetFile, where: str) -> Target:
    check_path(path)
    digest = file.hashes.get("sha256", "")
    if set(file.hashes) != {"sha256"} or not DIGEST_PATTERN.fullmatch(digest):
        raise Distrust(Reason.DAMAGED, where, f"{path} needs a SHA-256 digest and no other")
    if type(file.length) is not int:
        raise Distrust(Reason.DAMAGED, where, f"{file.length!r:.40} of {path} is no size in bytes")
    return Target(path, file.length, digest)


def _text(fields: Mapping[str, Any], name: str, form: re.Pattern[str], where: str) -> str:
    value = fields.get(name)
    if not (isinstance(value, str) and form.fullmatch(value)):
        raise Distrust(Reason.DAMAGED, where, f"its {name} is {value!r:.80}")
    return value


def _time(fields: Mapping[str, Any], where: str) -> datetime:
    try:
        return datetime.strptime(fields["issued"], TIME_FORMAT).replace(tzinfo=timezone.utc)
    except (KeyError, TypeError, ValueError):
        value = fields.get("issued")
        raise Distrust(
            Reason.DAMAGED, where, f"its time of issue is {value!r:.80}, not as 2031-05-09T12:00:00Z"
        ) from None


def _pause(fields: Mapping[str, Any], where: str, settings: TrustSettings) -> float:
    value, low, high = fields["poll_s"], settings.poll_low_s, settings.poll_high_s
    if type(value) is not int or not low <= value <= high:
        raise Distrust(Reason.DAMAGED, where, f"its poll_s is {value!r:.40}, not an integer from {low} to {high}")
    return float(value)
