"""Decision which release may take which slot, by what is signed offline: releases and policies. Pure.

Without this check the director alone would decide, and its key is online: an attacker with that key could serve another
owner's model under the name of an occupied slot.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.common.domain.audio import PCM_FORMATS, AudioPreprocess
from gateway.common.domain.manifest import ModelManifest, Preprocess, TensorSpec
from gateway.common.domain.policy import Policy
from gateway.common.domain.signed_release import SignedRelease
from gateway.common.trust.distrust import Distrust, Reason


def check_slot(
    slot: str, release: SignedRelease, running: SignedRelease | None, policies: Iterable[Policy] = ()
) -> None:
    """Raise Distrust (WRONG_SLOT) unless `release` may take `slot`, which holds `running` (None: nothing).

    A policy that names the slot decides. Otherwise, a release of another model must be signed by its owner for this
    slot, and a model of another owner is refused.
    """
    where, named = f"the release {release.target}", False
    for allowed in filter(None, (policy.models(slot) for policy in policies)):
        if release.name not in allowed:
            raise Distrust(Reason.WRONG_SLOT, where, f"the policy allows {', '.join(allowed):.200} in the slot {slot}")
        named = True
    if release.slots and slot not in release.slots:
        signed_for = ", ".join(release.slots)
        raise Distrust(Reason.WRONG_SLOT, where, f"its owner signed it for {signed_for:.200}, not for the slot {slot}")
    if running is None or named or release.name == running.name:
        return
    if release.owner != running.owner or slot not in release.slots:
        raise Distrust(Reason.WRONG_SLOT, where, f"the slot {slot} runs {running.name}")


def check_signature(
    release: SignedRelease, manifest: ModelManifest, running: SignedRelease, present: ModelManifest
) -> None:
    """Raise Distrust (INCOMPATIBLE) if clients of `running` could not call `release` or read its answers.

    Nothing is checked if the owner signed, in either release, that the tensors change. `manifest` and `present` belong
    to `release` and `running`.
    """
    if release.changes_signature or running.changes_signature:
        return
    problem = incompatibility(present, manifest)
    if problem:
        raise Distrust(Reason.INCOMPATIBLE, f"the release {release.target}", problem)


def incompatibility(before: ModelManifest, after: ModelManifest) -> str:
    """Return what a client of `before` would miss in `after`, or ""."""
    given = {spec.name: spec for spec in before.inputs}
    for spec in after.inputs:
        old = given.pop(spec.name, None)
        if old is None:
            return f"it requires the input {tensor_text(spec)}, which {before.version} does not have"
        if not _accepts(spec, old):
            return f"its input is {tensor_text(spec)}, that of {before.version} is {tensor_text(old)}"
        if problem := _refused_values(spec, old):
            return f"its input {spec.name} {problem}, that of {before.version} does not"
    if given:
        return f"it has no input {', '.join(sorted(given)):.200}, which {before.version} has"
    return _fewer_rows(before, after) or _lost_output(before, after)


def tensor_text(spec: TensorSpec) -> str:
    """Return name, datatype, shape and layout of a tensor, as "image FP32[-1,3,224,224] NCHW"."""
    return f"{spec.name} {spec.datatype.label}[{','.join(map(str, spec.shape))}] {spec.layout}".rstrip()


def _refused_values(new: TensorSpec, old: TensorSpec) -> str:
    """Return which values, of equal datatype and shape, `new` refuses and `old` takes, or ""."""
    problem = _refused_images(new.preprocess, old.preprocess) or _refused_recordings(new.audio, old.audio)
    if problem:
        return problem
    return "refuses NaN and infinity" if new.finite and not old.finite else ""


def _refused_images(new: Preprocess | None, old: Preprocess | None) -> str:
    lost = set(old.decode if old else ()) - set(new.decode if new else ())
    if lost:
        return f"refuses images of {', '.join(sorted(lost))}"
    if old and new and old.frame and old.frame != new.frame:
        return f"takes raw frames of [height, width] {list(new.frame or ())}"
    return ""


def _refused_recordings(new: AudioPreprocess | None, old: AudioPreprocess | None) -> str:
    lost = set(old.decode if old else ()) - set(new.decode if new else ())
    if lost:
        return f"refuses recordings of {', '.join(sorted(lost))}"
    if not old or not new:
        return ""
    source = new.source_rate_hz, new.source_channels
    if set(old.decode) & set(PCM_FORMATS) and source != (old.source_rate_hz, old.source_channels):
        return f"takes raw samples of {source[0]} Hz and {source[1]} channels"
    return f"refuses recordings of more than {new.limit_s:g} s" if new.limit_s < old.limit_s else ""


def _fewer_rows(before: ModelManifest, after: ModelManifest) -> str:
    """Return why a request of `before` may have too many rows for `after`, or ""; 0 is the limit of the engine."""
    most, most_before = after.max_batch_rows, before.max_batch_rows
    if not most or (most_before and most_before <= most):
        return ""
    return f"it takes {most} rows at most, {before.version} takes {most_before or 'as many as [limits] max_batch_rows'}"


def _lost_output(before: ModelManifest, after: ModelManifest) -> str:
    for old in before.outputs:
        new = after.output(old.name)
        if new is None:
            return f"it has no output {old.name}, which {before.version} has"
        if not _accepts(old, new):
            return f"its output is {tensor_text(new)}, that of {before.version} is {tensor_text(old)}"
    return ""


def _accepts(wide: TensorSpec, narrow: TensorSpec) -> bool:
    """Return True if each value that fits `narrow` fits `wide`."""
    if (wide.datatype, wide.layout) != (narrow.datatype, narrow.layout) or len(wide.shape) != len(narrow.shape):
        return False
    return all(size in {-1, other} for size, other in zip(wide.shape, narrow.shape, strict=True))
