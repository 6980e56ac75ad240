"""`edge-fleet rotate` and `edge-fleet renew`: new keys for a role; a later expiry of offline roles."""

from __future__ import annotations

import argparse
from dataclasses import replace

from fleet.cli.common import now, public_keys, save_drafts, writing
from fleet.publisher.drafts import Draft
from fleet.publisher.roles import DIRECTOR
from fleet.publisher.signing import Drafting, renew, rotate


def command(arguments: argparse.Namespace) -> int:
    """Execute `rotate`, which has keys, or `renew`, which has several roles."""
    with writing(arguments) as work:
        drafting = work.drafting(now())
        if isinstance(arguments.role, list):
            return save_drafts(work, _renewed(drafting, arguments.role), as_json=arguments.json)
        threshold = arguments.threshold if arguments.threshold is not None else drafting.threshold(arguments.role) or 1
        drafts = rotate(drafting, arguments.role, public_keys(arguments.key), threshold)
        code = save_drafts(work, drafts, as_json=arguments.json)
        if arguments.role == DIRECTOR and not arguments.json:
            print("once it is published: edge-fleet assign all --renew, for devices without edge-fleet serve")
        return code


def _renewed(drafting: Drafting, roles: list[str]) -> list[Draft]:
    drafts = []
    for role in roles:
        drafts.append(renew(drafting, role))
        drafting = replace(drafting, drafts={**drafting.drafts, role: drafts[-1]})
    return drafts
