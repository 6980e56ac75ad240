"""`edge-fleet delegate`: keys and threshold of an owner's role, or of the role of software."""

from __future__ import annotations

import argparse

from fleet.cli.common import now, public_keys, save_drafts, writing
from fleet.roles import SOFTWARE, default_threshold, owner_role
from fleet.signing import delegate
from gateway.domain.errors import ConfigurationError


def command(arguments: argparse.Namespace) -> int:
    """Draft targets with the delegation, and the owner's published document, to be signed with the new keys."""
    if arguments.software == bool(arguments.owner):
        raise ConfigurationError("name an OWNER of models, or --software")
    role = SOFTWARE if arguments.software else owner_role(arguments.owner)
    with writing(arguments) as work:
        drafting = work.drafting(now())
        keys = public_keys(arguments.key)
        threshold = arguments.threshold or drafting.threshold(role) or default_threshold(keys)
        drafts = delegate(drafting, role, keys, threshold)
        return save_drafts(work, drafts, as_json=arguments.json)
