"""`edge-fleet profile add` and `edge-fleet policy add`: files that devices take as they are."""

from __future__ import annotations

import argparse
from pathlib import Path

from fleet.cli.common import now, save_drafts, writing
from fleet.disk import read_bounded
from fleet.files import SUFFIXES, check_content
from fleet.releases import target_of
from fleet.signing import add_targets
from gateway.domain.errors import ConfigurationError
from gateway.domain.manifest_toml import NAME_PATTERN


def command(arguments: argparse.Namespace) -> int:
    """Draft the role with this file in place of an older one of its name."""
    file, kind, suffix = Path(arguments.file), arguments.kind, SUFFIXES[arguments.kind]
    if file.suffix != suffix or not NAME_PATTERN.fullmatch(file.name):
        problem = f"must be called NAME{suffix}, of letters, digits, '.', '_' and '-'"
        raise ConfigurationError(problem, file=str(file))
    with writing(arguments) as work:
        content = read_bounded(file, work.settings.document_limit_bytes)
        check_content(kind, content, str(file))
        target = target_of(f"{kind}/{file.name}", content)
        draft = add_targets(work.drafting(now()), kind, [(target, content)])
        work.stage(target, content)
        return save_drafts(work, [draft], as_json=arguments.json)
