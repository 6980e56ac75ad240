"""Releases of settings for devices: from TOML text to the document that the settings keys sign, and its words. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from tuf.api.metadata import TargetFile, Targets

from fleet.publisher.releases import Planned, newest_targets, next_floor, target_of
from fleet.publisher.roles import owner_role
from fleet.publisher.signing import Drafting, add_targets
from gateway.common.domain.assignment import SETTINGS_SLOT
from gateway.common.domain.document import read_document
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.python310 import tomllib
from gateway.common.domain.release_form import TIME_FORMAT
from gateway.common.domain.release_paths import ReleasePath, release_prefix, reserved_path
from gateway.common.domain.routing import newest_version, version_order
from gateway.common.domain.settings_layer import NEVER, refused_keys
from gateway.common.domain.settings_release import SettingsRelease, read_settings_release, settings_bytes

COMPARED_LIMIT_LINES = 2_000
"""Longest settings that are compared with others: the time of a comparison grows with the square of the lines."""


def settings_path(drafting: Drafting, name: str, version: str | None) -> ReleasePath:
    """Return the path of the next release of this name; without `version` it gets the next whole number."""
    targets = newest_targets(drafting, owner_role(SETTINGS_SLOT))
    return ReleasePath(SETTINGS_SLOT, name, version or next_version(settings_versions(targets, name)))


def next_version(versions: Iterable[str]) -> str:
    """Return the whole number that follows the newest version ("3" after "2" and "2.5"), or "1"."""
    whole = re.match(r"[0-9]+", newest_version(versions) or "")
    return str(int(whole[0]) + 1) if whole else "1"


def settings_versions(targets: Targets | None, name: str) -> list[str]:
    """Return the versions of the settings of one name."""
    paths, prefix = (targets.targets if targets else {}), release_prefix(SETTINGS_SLOT, name)
    found = {path.removeprefix(prefix).partition("/")[0] for path in paths if path.startswith(prefix)}
    return sorted((one for one in found if reserved_path(SETTINGS_SLOT, name, one) in paths), key=version_order)


def previous_settings(targets: Targets | None, name: str, version: str) -> TargetFile | None:
    """Return the newest older release of the settings of this name, or None."""
    older = [one for one in settings_versions(targets, name) if version_order(one) < version_order(version)]
    return targets.targets[reserved_path(SETTINGS_SLOT, name, older[-1])] if targets and older else None


def plan_settings(
    drafting: Drafting,
    path: ReleasePath,
    text: str,
    floor: str | None,
    documents: Iterable[tuple[TargetFile, bytes]] = (),
) -> Planned[SettingsRelease]:
    """Return the settings `text` as a release at `path`. Raise ConfigurationError if devices could not take it.

    `shown`: earlier releases with their documents, with which the key holders compare it.
    """
    chosen = next_floor(drafting, path, floor, "name another --version")
    release = SettingsRelease(path.model, path.version, chosen, drafting.now.replace(microsecond=0), text)
    content = settings_bytes(release)
    try:
        read_settings_release(content)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    target = target_of(path.path, content, {"floor": chosen})
    draft = add_targets(drafting, owner_role(SETTINGS_SLOT), [*documents, (target, content)])
    return Planned(release, target, content, draft)


def check_tables(text: str, file: str) -> None:
    """Raise ConfigurationError for text that is no TOML, or that has a table that no signed settings may set."""
    for table in read_document(text, file).remaining():
        if table in NEVER:
            raise ConfigurationError("never comes from a fleet; take this table out", file=file, table=table)


def bounded_keys(release: SettingsRelease) -> list[str]:
    """Return the keys, as "table.key", that devices refuse unless a policy of theirs permits them."""
    return list(refused_keys(tomllib.loads(release.toml), ()))


def settings_line(release: SettingsRelease) -> str:
    """Return a release in one line, for its signer."""
    what = "" if tomllib.loads(release.toml) else ", SETS NOTHING: devices go back to their own files"
    at = release.released_at.strftime(TIME_FORMAT)
    return f"{release.name} {release.version}, floor {release.floor}, released {at}{what}"


def settings_lines(release: SettingsRelease, before: SettingsRelease | None) -> Iterator[str]:
    """Yield the text in full, how it differs from the release `before`, and the keys that need a policy."""
    lines = _lines(release)
    yield from (f"  | {line}" for line in lines)
    if before is not None:
        yield f"  compared with {before.target}:"
        yield from (f"  {line}" for line in _differences(_lines(before), lines))
    for key in bounded_keys(release):
        if key.partition(".")[0] in NEVER:
            yield f"  {key}: NO DEVICE TAKES SETTINGS WITH THIS KEY"
        else:
            yield f"  {key}: DEVICES REFUSE THESE SETTINGS unless a policy of theirs permits this key"


def _lines(release: SettingsRelease) -> list[str]:
    text = release.toml.removesuffix("\n")
    return text.split("\n") if text else []


def _differences(before: list[str], after: list[str]) -> list[str]:
    """Return a unified diff without its two lines of file names."""
    if max(len(before), len(after)) > COMPARED_LIMIT_LINES:
        return [f"not shown: more than {COMPARED_LIMIT_LINES} lines"]
    return list(difflib.unified_diff(before, after, lineterm=""))[2:] or ["nothing differs"]
