"""Checks of a target: the signature of its owner, floors and withdrawals."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, TypeVar

from gateway.common.domain.assignment import SETTINGS_SLOT, SOFTWARE_SLOT, Target
from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.domain.release_documents import ReleaseDocument
from gateway.common.domain.release_paths import release_prefix, reserved_slot
from gateway.common.domain.routing import version_order
from gateway.common.domain.settings_release import SettingsRelease, read_settings_release
from gateway.common.domain.signed_release import SignedRelease, read_release
from gateway.common.domain.software_release import PROGRAM, SoftwareRelease, read_software
from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.paths import check_path, release_path
from gateway.common.trust.settings import DEFAULTS, TrustSettings

if TYPE_CHECKING:
    from tuf.api.metadata import TargetFile, Targets

ROOT, TARGETS = "root", "targets"
ONLINE = frozenset({"timestamp", "snapshot"})
"""Roles whose keys are on a server. All other roles are signed offline, for longer."""
WITHDRAWN = "withdrawn"
"""Name of the owner's withdrawal in the `custom` field of a release (TUF)."""


class Withdrawal(enum.Enum):
    """Ways in which an owner withdraws a release. The values are signed: they never change."""

    OFFER = "offer"
    """Not offered any more; devices that run it continue."""
    REMOVE = "remove"
    """Order for emergencies: devices that run it stop at once, regardless of policies."""


Role = Callable[[str, str], "Targets | None"]
"""Function from (role, its delegator's name; "root" for the top one) to the verified role; None: absent."""
Floor = Callable[[str, str], str]
"""Function from (owner, model) to the oldest version that is still allowed; "": any (see `floor_of`)."""
Document = TypeVar("Document", bound=ReleaseDocument)


def check_offer(target: Target, found: TargetFile | None, floor: Floor) -> None:
    """Raise Distrust unless the repository signs exactly this release, at or above its floor and not withdrawn."""
    check_target(target, found)
    check_floor(target.path, floor)
    if found is not None and read_withdrawal(found) is not None:
        raise Distrust(Reason.WITHDRAWN, f"the target {target.path}", "its owner withdrew it")


def check_target(target: Target, found: TargetFile | None) -> None:
    """Raise Distrust unless the repository signs exactly this file."""
    where = f"the target {target.path}"
    if found is None:
        raise Distrust(Reason.UNSIGNED, where, "no role that may sign it has done so")
    if found.length != target.size_bytes or found.hashes.get("sha256") != target.sha256:
        signed = f"{found.hashes.get('sha256', 'no SHA-256')!s:.12} of {found.length} bytes"
        raise Distrust(
            Reason.SWAPPED, where, f"{target.sha256:.12} of {target.size_bytes} bytes is assigned, {signed} is signed"
        )


def floor_of(role: Targets, owner: str, model: str, persisted: str = "") -> str:
    """Return the greatest floor of a model in all releases of its owner's `role`, and the `persisted` one.

    Raise Distrust if a floor is not a version.
    """
    floors = [persisted] if persisted else []
    for path, file in role.targets.items():
        if path.startswith(release_prefix(owner, model)) and isinstance(file.custom, dict) and "floor" in file.custom:
            value = file.custom["floor"]
            if not (isinstance(value, str) and NAME_PATTERN.fullmatch(value)):
                raise Distrust(Reason.DAMAGED, f"the target {path}", f"its floor is {value!r:.80}, not a version")
            floors.append(value)
    return max(floors, key=version_order, default="")


def read_withdrawal(file: TargetFile) -> Withdrawal | None:
    """Return the owner's withdrawal of a release, or None. Raise Distrust if it is not readable."""
    custom = file.custom.get(WITHDRAWN) if isinstance(file.custom, dict) else None
    if custom is None:
        return None
    try:
        return Withdrawal(custom)
    except ValueError:
        known = ", ".join(one.value for one in Withdrawal)
        raise Distrust(
            Reason.DAMAGED, f"the target {file.path}", f"its withdrawal is {custom!r:.80}, not one of {known}"
        ) from None


def check_release(content: bytes, target: Target) -> SignedRelease:
    """Return the release document of `target`. Raise Distrust if it is another file or names another release."""
    return _checked(content, target, f"the release document {target.path}", read_release)


def check_software(content: bytes, target: Target) -> SoftwareRelease:
    """Return the release document of the programs. Raise Distrust as `check_release` does."""
    where = f"the software release {target.path}"
    release = _checked(content, target, where, read_software)
    if release.name != PROGRAM:
        raise Distrust(Reason.SWAPPED, where, f"it is the document of {release.target}; {PROGRAM} runs here")
    return release


def check_settings(content: bytes, target: Target) -> SettingsRelease:
    """Return the release document of settings. Raise Distrust as `check_release` does."""
    return _checked(content, target, f"the settings {target.path}", read_settings_release)


_CHECKS: Mapping[str, Callable[[bytes, Target], ReleaseDocument]] = {
    "": check_release,
    SOFTWARE_SLOT: check_software,
    SETTINGS_SLOT: check_settings,
}
"""Check of a release's document by its reserved slot; "" for models."""


def check_document(content: bytes, target: Target) -> ReleaseDocument:
    """Return the release document of `target`, of any kind. Raise Distrust as `check_release` does."""
    return _CHECKS[reserved_slot(target.path)](content, target)


def _checked(content: bytes, target: Target, where: str, read: Callable[[bytes], Document]) -> Document:
    """Return the document of `target` that `read` parses. Raise Distrust unless it is the signed one, of its path."""
    release_path(target.path)
    check_content(content, target, where)
    try:
        release = read(content)
    except ValueError as error:
        raise Distrust(Reason.DAMAGED, where, str(error)) from error
    if release.target != target.path:
        raise Distrust(Reason.SWAPPED, where, f"it is the document of {release.target}")
    return release


def check_content(content: bytes, target: Target, where: str) -> None:
    """Raise Distrust unless these bytes are the target's."""
    if len(content) != target.size_bytes or hashlib.sha256(content).hexdigest() != target.sha256:
        raise Distrust(Reason.SWAPPED, where, "its bytes are not those that were signed")


def check_hardware(release: SignedRelease, eligible: Collection[str]) -> None:
    """Raise Distrust unless a variant of the release is in `eligible`, the variants that this device can run."""
    offered = [variant.name for variant in release.variants]
    if not set(offered) & set(eligible):
        listed = ", ".join(offered) or "none at all"
        raise Distrust(Reason.WRONG_HARDWARE, f"the release {release.target}", f"no variant fits, of {listed:.300}")


def find_target(path: str, role: Role, settings: TrustSettings = DEFAULTS) -> tuple[tuple[str, ...], TargetFile] | None:
    """Return the roles from the top to the one that signs `path`, and its target; None if no role does.

    The metadata of these roles, in this order, prove the target: `Activation.evidence`.

    The search is TUF's (5.6.7): in order of delegation, depth first, up to a terminating delegation. The top-level
    targets role only delegates: a target that it signs itself has no owner and does not count.
    """
    check_path(path)
    waiting: list[tuple[str, ...]] = [(ROOT, TARGETS)]
    seen: set[tuple[str, ...]] = set()
    while waiting and len(seen) < settings.delegations_limit:
        chain = waiting.pop()
        found = None if chain[-2:] in seen else role(chain[-1], chain[-2])
        seen.add(chain[-2:])
        if found is None:
            continue
        if len(chain) > 2 and path in found.targets:
            return chain[1:], found.targets[path]
        names, ends = delegates(found, path)
        waiting = [*([] if ends else waiting), *((*chain, name) for name in reversed(names))]
    return None


def delegates(targets: Targets, path: str) -> tuple[list[str], bool]:
    """Return roles that may sign `path`, in order, up to the first terminating one, and whether there is one."""
    names = []
    for name, terminating in targets.delegations.get_roles_for_target(path) if targets.delegations else ():
        names.append(name)
        if terminating:
            return names, True
    return names, False


def check_floor(path: str, floor: Floor) -> None:
    """Raise Distrust if a release is older than its owner allows."""
    release = release_path(path)
    least = floor(release.owner, release.model)
    if least and version_order(release.version) < version_order(least):
        rule = f"its owner allows {least} and newer versions"
        raise Distrust(Reason.BELOW_FLOOR, f"the target {path}", rule)
