"""Bodies of requests to `/v1/rollouts`: the form of a specification (`fleet/controller/rollouts/README.md`).

`fleet.controller.rollouts.spec_form` checks its meaning and bounds.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, to_builtins

from fleet.controller.api.fields import (
    DIGEST,
    KEPT,
    NAME_CHARACTERS,
    PATH_CHARACTERS,
    Digest,
    between,
    documented,
)
from fleet.controller.rollouts import spec_form
from fleet.controller.rollouts.query_parser import QUERY_LIMIT_CHARS
from fleet.controller.rollouts.schedule import ZONE_LIMIT_CHARS
from fleet.controller.rollouts.spec import Rollback
from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.domain.policy import BLACKOUTS_LIMIT, REASON_LIMIT_CHARS

REASON_CHARACTERS = 500
WAVES = spec_form.WAVES_LIMIT
MINUTE = "^([01][0-9]|2[0-3]):[0-5][0-9]$"
TIME = "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$"
Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS), documented(pattern=f"^{NAME_PATTERN.pattern}$")]
Path = Annotated[str, Meta(min_length=1, max_length=PATH_CHARACTERS)]
Reason = Annotated[str, Meta(max_length=REASON_CHARACTERS, pattern=KEPT)]
Devices = Annotated[int, between(1, spec_form.DEVICES_LIMIT)]
Percent = Annotated[float, between(spec_form.PERCENT_LOW, 100.0)]
Soak = Annotated[float, between(0.0, spec_form.SOAK_LIMIT_S)]
Backoff = Annotated[float, between(spec_form.BACKOFF_LOW_S, spec_form.SOAK_LIMIT_S)]
Silence = Annotated[float, between(spec_form.SILENCE_LOW_S, spec_form.SILENCE_LIMIT_S)]
Minute = Annotated[str, Meta(max_length=NAME_CHARACTERS), documented(pattern=MINUTE)]
Time = Annotated[str, Meta(max_length=NAME_CHARACTERS), documented(pattern=TIME)]
Zone = Annotated[str, Meta(max_length=ZONE_LIMIT_CHARS)]
Day = Annotated[str, Meta(max_length=NAME_CHARACTERS), documented(enum=list(spec_form.DAYS))]
Ending = Annotated[str, Meta(max_length=NAME_CHARACTERS), documented(enum=[one.value for one in Rollback])]


class TargetForm(Struct, forbid_unknown_fields=True, frozen=True):
    """A published release. Size and digest are filled in; if they are sent, they must match."""

    path: Path
    size_bytes: Annotated[int, between(0, spec_form.TARGET_LIMIT_BYTES)] | UnsetType = UNSET
    sha256: Annotated[str, Meta(max_length=NAME_CHARACTERS), documented(pattern=DIGEST)] | UnsetType = UNSET


class CanaryForm(Struct, forbid_unknown_fields=True, frozen=True):
    """Canaries: so many devices of each set of accelerators go first; {}: none."""

    per_accelerator: Annotated[int, between(1, spec_form.CANARY_LIMIT)] | UnsetType = UNSET
    soak_s: Soak | UnsetType = UNSET


class WaveForm(Struct, forbid_unknown_fields=True, frozen=True):
    """A wave: either `percent` of all devices that are reached after it, or `count` further devices."""

    percent: Percent | UnsetType = UNSET
    count: Devices | UnsetType = UNSET
    needs_approval: bool = False


class SuccessForm(Struct, forbid_unknown_fields=True, frozen=True):
    """Condition under which a wave has passed."""

    min_sample: Devices
    min_percent: Percent


class AbortForm(Struct, forbid_unknown_fields=True, frozen=True):
    """Condition under which too many devices failed."""

    min_sample: Devices
    max_failed_percent: Annotated[float, between(0.0, 100.0)]
    confidence: Annotated[float, between(spec_form.CONFIDENCE_LOW, spec_form.CONFIDENCE_HIGH)] | UnsetType = UNSET


class WindowForm(Struct, forbid_unknown_fields=True, frozen=True):
    """Weekly window. `zone`: a time zone, or "site"."""

    start: Minute
    end: Minute
    days: Annotated[list[Day], Meta(min_length=1, max_length=len(spec_form.DAYS))] | UnsetType = UNSET
    zone: Zone | UnsetType = UNSET


class BlackoutForm(Struct, forbid_unknown_fields=True, frozen=True):
    """Blackout, in UTC."""

    start: Time
    end: Time
    reason: Annotated[str, Meta(max_length=REASON_LIMIT_CHARS, pattern=KEPT)] | UnsetType = UNSET


class RetriesForm(Struct, forbid_unknown_fields=True, frozen=True):
    """Retries of devices that failed; {}: none."""

    limit: Annotated[int, between(0, spec_form.RETRIES_LIMIT)] | UnsetType = UNSET
    backoff_s: Backoff | UnsetType = UNSET
    backoff_limit_s: Backoff | UnsetType = UNSET


class SpecForm(Struct, forbid_unknown_fields=True, frozen=True):
    """A specification. `target`: a release's path, or its name such as acme/meter-reader/2."""

    name: Name
    slot: Name
    target: Path | TargetForm
    query: Annotated[str, Meta(min_length=1, max_length=QUERY_LIMIT_CHARS)]
    waves: Annotated[list[WaveForm], Meta(min_length=1, max_length=WAVES)]
    success: SuccessForm
    abort: AbortForm
    schema: Annotated[int, between(spec_form.SCHEMA, spec_form.SCHEMA)] | UnsetType = UNSET
    canary: CanaryForm | UnsetType = UNSET
    soak_s: Soak | UnsetType = UNSET
    silence_s: Silence | UnsetType = UNSET
    deadline_s: Silence | UnsetType = UNSET
    windows: Annotated[list[WindowForm], Meta(max_length=spec_form.WINDOWS_LIMIT)] | UnsetType = UNSET
    blackouts: Annotated[list[BlackoutForm], Meta(max_length=BLACKOUTS_LIMIT)] | UnsetType = UNSET
    retries: RetriesForm | UnsetType = UNSET
    dynamic: bool | UnsetType = UNSET
    rollback: Ending | UnsetType = UNSET
    standing: bool | UnsetType = UNSET


class Approval(Struct, forbid_unknown_fields=True, frozen=True):
    """Approval. `spec`: the `spec_digest` of what the approver has seen."""

    spec: Digest


class Motive(Struct, forbid_unknown_fields=True, frozen=True):
    """Reason, for the record."""

    reason: Reason = ""


def document_of(form: SpecForm) -> dict[str, Any]:
    """Return the document that `fleet.controller.rollouts.spec_form` reads, without fields that were left out."""
    document: dict[str, Any] = to_builtins(form)
    return document
