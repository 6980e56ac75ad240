"""Paths of targets that are accepted. TUF matches patterns by parts; this module checks the parts."""

from __future__ import annotations

from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.domain.release_paths import ReleasePath, parse_path
from gateway.common.trust.distrust import Distrust, Reason

FILE_KINDS = ("profiles", "policy")
"""First part of the paths of targets that are single files."""


def release_path(path: str) -> ReleasePath:
    """Return the parts of a release's path. Raise Distrust for any other path, such as one with `..` in it."""
    try:
        return parse_path(path)
    except ValueError:
        raise Distrust(Reason.BAD_PATH, f"the target {path!r:.200}", "it is no release's path") from None


def is_file(path: str) -> bool:
    """Return True if `path` is the path of a profile or policy."""
    kind, _, name = path.partition("/")
    return kind in FILE_KINDS and NAME_PATTERN.fullmatch(name) is not None


def check_path(path: str) -> None:
    """Raise Distrust unless `path` is the path of a release, profile or policy."""
    if not is_file(path):
        release_path(path)
