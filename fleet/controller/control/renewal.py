"""Renewal of timestamp and snapshot before they expire, as `edge-fleet publish` does, with the online keys here.

Drafts are left alone: people decide what is released.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from datetime import datetime, timedelta

from fleet import events
from fleet.controller.control.online_keys import OnlineKeys
from fleet.publisher.publish import online_roots, plan_publication
from fleet.publisher.repository import Published
from fleet.publisher.roles import TIMESTAMP
from fleet.publisher.workspace import Workspace
from gateway.domain.errors import UnreachableError

_log = logging.getLogger(__name__)


def renew_published(workspace: Workspace, keys: OnlineKeys, now: datetime, share: float) -> bool:
    """Sign timestamp and snapshot if less than `share` of either's life is left. Return whether it is done.

    An operator who works in the folder goes first. If none of the keys is here, they are renewed elsewhere. Raise
    ConfigurationError if only some of the keys are here, or the folder is damaged; OSError.
    """
    published = workspace.published()
    if not is_due(workspace, published, now, share) or not _has_key(published, keys):
        return True
    with ExitStack() as stack:
        try:
            stack.enter_context(workspace.locked())
        except UnreachableError as error:
            _log.info(events.PUBLICATION_RENEWAL_POSTPONED, error)
            return False
        published = workspace.published()
        if is_due(workspace, published, now, share):
            signers = keys.of_roots(online_roots(published, {}))
            workspace.publish(plan_publication(published, [], signers, now, workspace.settings))
            _log.info(events.PUBLICATION_RENEWED)
    return True


def is_due(workspace: Workspace, published: Published, now: datetime, share: float) -> bool:
    """Return whether timestamp or snapshot is to be signed; False if nothing is published yet."""
    timestamp, snapshot = published.timestamp, published.snapshot
    if published.root is None or timestamp is None or snapshot is None:
        return False
    lives = ((timestamp, workspace.settings.timestamp_expiry_d), (snapshot, workspace.settings.snapshot_expiry_d))
    return any(document.signed.expires - now < timedelta(days=life_d) * share for document, life_d in lives)


def _has_key(published: Published, keys: OnlineKeys) -> bool:
    """Return whether a key of the timestamp is here."""
    named = [root.roles[TIMESTAMP] for root in online_roots(published, {})]
    return any(keys.signers(TIMESTAMP, one.keyids, one.threshold) for one in named)
