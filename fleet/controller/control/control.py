"""Context of one controller replica: what the parts of this package work with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone

from fleet.controller.authority.ca import Authority
from fleet.controller.control.director import Director
from fleet.controller.control.director_published import Publications
from fleet.controller.control.drafts import Drafts
from fleet.controller.control.enrolling import Enrolling
from fleet.controller.control.idempotency import KeyedAnswers
from fleet.controller.control.ingestion import Intake
from fleet.controller.control.inventory import Inventories
from fleet.controller.control.online_keys import OnlineKeys
from fleet.controller.control.publication import Publisher
from fleet.controller.control.revocations import Revocations
from fleet.controller.control.rollouts import Rollouts
from fleet.controller.control.settings import ControllerSettings
from fleet.controller.control.subscriptions import Subscriptions
from fleet.controller.control.uploads import Uploads
from fleet.controller.database.engine import Database
from fleet.controller.database.seen import LastSeenBuffer
from fleet.publisher.workspace import Workspace

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the time of the system's clock."""
    return datetime.now(timezone.utc)


@dataclass(frozen=True, slots=True)
class Control:
    """One replica.

    `keys`: the online keys that are here (director, snapshot, timestamp). `url`: the controller's URL for devices,
    without a slash at its end. `holder`: the name of this replica among all. `counts`: refusals and other events, by
    reason.
    """

    database: Database
    authority: Authority
    workspace: Workspace
    keys: OnlineKeys
    url: str
    repository_url: str
    holder: str
    settings: ControllerSettings
    seen: LastSeenBuffer
    revocations: Revocations
    rollouts: Rollouts
    publications: Publications
    director: Director
    enrolling: Enrolling
    intake: Intake
    inventories: Inventories
    answers: KeyedAnswers
    subscriptions: Subscriptions
    drafts: Drafts
    uploads: Uploads
    publisher: Publisher
    counts: Counter[str] = field(default_factory=Counter)
    clock: Clock = utc_now
