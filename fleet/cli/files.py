"""`edge-fleet profile add` and `edge-fleet policy add`: files that devices use unchanged."""

from __future__ import annotations

import argparse
from pathlib import Path

from fleet.cli.common import now, save_drafts, writing
from fleet.disk import read_bounded
from fleet.publisher.files import SUFFIXES, check_content, given_back
from fleet.publisher.releases import target_of
from fleet.publisher.roles import POLICY
from fleet.publisher.signing import add_targets
from fleet.publisher.workspace import Workspace
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.domain.policy import Blackout, read_policy
from gateway.common.domain.release_form import TIME_FORMAT


def command(arguments: argparse.Namespace) -> int:
    """Draft the role with this file, which replaces an older one of its name."""
    file, kind, suffix = Path(arguments.file), arguments.kind, SUFFIXES[arguments.kind]
    if file.suffix != suffix or not NAME_PATTERN.fullmatch(file.name):
        problem = f"must be called NAME{suffix}, of letters, digits, '.', '_' and '-'"
        raise ConfigurationError(problem, file=str(file))
    with writing(arguments) as work:
        content = read_bounded(file, work.settings.document_limit_bytes)
        check_content(kind, content, str(file))
        target = target_of(f"{kind}/{file.name}", content)
        draft = add_targets(work.drafting(now()), kind, [(target, content)])
        warnings = _freed(work, target.path, content) if kind == POLICY else []
        work.stage(target, content)
        return save_drafts(work, [draft], as_json=arguments.json, warnings=warnings)


def _freed(work: Workspace, path: str, content: bytes) -> list[str]:
    """Return warnings on blackouts of the published policy that this one ends at once."""
    target = work.published().target(path)
    if target is None:
        return []
    try:
        before = read_policy(work.target_content(target), path)
    except ConfigurationError as error:
        problem = "it is not known which blackouts this one leaves out"
        return [f"{problem}: {error}; make sure that it lists those that have begun"]
    return [_blackout_warning(blackout) for blackout in given_back(before, read_policy(content, path), now())]


def _blackout_warning(blackout: Blackout) -> str:
    name = f"the blackout {blackout.start.strftime(TIME_FORMAT)} to {blackout.end.strftime(TIME_FORMAT)}"
    return (
        f"{name} has begun, and this policy no longer lists it up to now: the hours that did not count in it then do, "
        "which may free the whole fleet at once. Keep it; to end it early, give it an end in the future"
    )
