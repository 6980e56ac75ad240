"""`edge-fleet repo init`: the first root and the first targets, as drafts."""

from __future__ import annotations

import argparse

from fleet.cli.common import now, public_keys, save_drafts, writing
from fleet.publisher.roles import default_threshold
from fleet.publisher.signing import Beginning, begin


def command(arguments: argparse.Namespace) -> int:
    """Draft root and targets in an empty folder."""
    with writing(arguments) as work:
        online, targets = public_keys(arguments.online), public_keys(arguments.targets)
        beginning = Beginning(
            root=public_keys(arguments.root),
            targets=targets,
            online=online,
            director=public_keys(arguments.director) if arguments.director else online,
            root_threshold=arguments.root_threshold,
            targets_threshold=arguments.targets_threshold or default_threshold(targets),
        )
        return save_drafts(work, begin(work.drafting(now()), beginning), as_json=arguments.json)
