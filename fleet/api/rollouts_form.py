"""What is sent to `/v1/rollouts`: the form of a specification (`fleet/rollouts/README.md`); its meaning and bounds are
`fleet.rollouts.spec_form`'s to judge."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, to_builtins

from fleet.api.fields import KEPT, PATH_CHARACTERS, Name, Words

QUERY_CHARACTERS, REASON_CHARACTERS = 4096, 500
WAVES, PERIODS = 100, 1000
Path = Annotated[str, Meta(min_length=1, max_length=PATH_CHARACTERS)]
Reason = Annotated[str, Meta(max_length=REASON_CHARACTERS, pattern=KEPT)]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class TargetForm(Struct, forbid_unknown_fields=True, frozen=True):
    """A published release. Size and digest are filled in; where they are given, they must be right."""

    path: Path
    size_bytes: int | UnsetType = UNSET
    sha256: Words | UnsetType = UNSET


class CanaryForm(Struct, forbid_unknown_fields=True, frozen=True):
    """So many devices of each set of accelerators go first; {}: none do."""

    per_accelerator: int | UnsetType = UNSET
    soak_s: float | UnsetType = UNSET


class WaveForm(Struct, forbid_unknown_fields=True, frozen=True):
    """Either `percent` of all devices that are reached once it is through, or `count` more devices."""

    percent: float | UnsetType = UNSET
    count: int | UnsetType = UNSET
    needs_approval: bool = False


class SuccessForm(Struct, forbid_unknown_fields=True, frozen=True):
    """When a wave is through."""

    min_sample: int
    min_percent: float


class AbortForm(Struct, forbid_unknown_fields=True, frozen=True):
    """When too many failed."""

    min_sample: int
    max_failed_percent: float
    confidence: float | UnsetType = UNSET


class WindowForm(Struct, forbid_unknown_fields=True, frozen=True):
    """Weekly; `zone`: a time zone, or "site"."""

    start: Words
    end: Words
    days: Annotated[list[Words], Meta(max_length=7)] | UnsetType = UNSET
    zone: Words | UnsetType = UNSET


class BlackoutForm(Struct, forbid_unknown_fields=True, frozen=True):
    """Absolute, in UTC."""

    start: Words
    end: Words
    reason: Reason | UnsetType = UNSET


class RetriesForm(Struct, forbid_unknown_fields=True, frozen=True):
    """For devices that failed; {}: none."""

    limit: int | UnsetType = UNSET
    backoff_s: float | UnsetType = UNSET
    backoff_limit_s: float | UnsetType = UNSET


class SpecForm(Struct, forbid_unknown_fields=True, frozen=True):
    """A specification. `target`: a release's path, or its name as acme/meter-reader/2."""

    name: Name
    slot: Name
    target: Path | TargetForm
    query: Annotated[str, Meta(min_length=1, max_length=QUERY_CHARACTERS)]
    waves: Annotated[list[WaveForm], Meta(min_length=1, max_length=WAVES)]
    success: SuccessForm
    abort: AbortForm
    schema: int | UnsetType = UNSET
    canary: CanaryForm | UnsetType = UNSET
    soak_s: float | UnsetType = UNSET
    silence_s: float | UnsetType = UNSET
    deadline_s: float | UnsetType = UNSET
    windows: Annotated[list[WindowForm], Meta(max_length=PERIODS)] | UnsetType = UNSET
    blackouts: Annotated[list[BlackoutForm], Meta(max_length=PERIODS)] | UnsetType = UNSET
    retries: RetriesForm | UnsetType = UNSET
    dynamic: bool | UnsetType = UNSET
    rollback: Words | UnsetType = UNSET


class Approval(Struct, forbid_unknown_fields=True, frozen=True):
    """`spec`: the `spec_digest` of what the approver has seen."""

    spec: Digest


class Motive(Struct, forbid_unknown_fields=True, frozen=True):
    """Why, for whoever reads it later."""

    reason: Reason = ""


def document_of(form: SpecForm) -> dict[str, Any]:
    """As `fleet.rollouts.spec_form` reads it; what was left out is left out."""
    document: dict[str, Any] = to_builtins(form)
    return document
