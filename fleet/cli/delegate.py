"""`edge-fleet delegate`: keys and threshold of an owner's role, or of the role of software or settings."""

from __future__ import annotations

import argparse

from fleet.cli.common import now, public_keys, save_drafts, writing
from fleet.publisher.roles import default_threshold, owner_role
from fleet.publisher.signing import delegate
from gateway.common.domain.assignment import RESERVED_SLOTS
from gateway.common.domain.errors import ConfigurationError


def command(arguments: argparse.Namespace) -> int:
    """Draft targets with the delegation, and the owner's published document, to be signed with the new keys."""
    owners = [slot for slot, kind in RESERVED_SLOTS.items() if getattr(arguments, kind)]
    owners += [arguments.owner] if arguments.owner else []
    if len(owners) != 1:
        raise ConfigurationError(f"name an OWNER of models, or one of --{', --'.join(RESERVED_SLOTS.values())}")
    role = owner_role(owners[0])
    with writing(arguments) as work:
        drafting = work.drafting(now())
        keys = public_keys(arguments.key)
        threshold = arguments.threshold or drafting.threshold(role) or default_threshold(keys)
        drafts = delegate(drafting, role, keys, threshold)
        return save_drafts(work, drafts, as_json=arguments.json)
