"""Who may do what on the controller: roles, scopes by tag, devices. One table, decided on values."""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass


class Role(enum.StrEnum):
    """What an API token was made for. Each can do what stands beside it in `RULES`; none includes another."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    PUBLISHER = "publisher"
    ADMIN = "admin"


class Reach(enum.Enum):
    """What an action touches, and so what a scope by tag makes of it."""

    DEVICES = "devices"  # named devices: within the scope only
    SHARED = "shared"  # what concerns all devices alike and tells nothing of any: whatever the scope
    FLEET = "fleet"  # all of the fleet: only without a scope
    SELF = "self"  # the device that asks


class Action(enum.StrEnum):
    """What a caller wants, as the API's routes and the audit log name it."""

    DEVICES_READ = "devices.read"
    DEVICES_LABEL = "devices.label"
    DEVICES_ENROL = "devices.enrol"  # pre-register a serial, or make an enrolment token
    DEVICES_REVOKE = "devices.revoke"
    DEVICES_WITHDRAW = "devices.withdraw"  # take a model off a device
    DEVICES_REMOVE = "devices.remove"  # take a device out of the fleet
    DIAGNOSTICS_ASK = "diagnostics.ask"
    DIAGNOSTICS_READ = "diagnostics.read"
    TELEMETRY_READ = "telemetry.read"
    METRICS_READ = "metrics.read"
    RELEASES_READ = "releases.read"
    ROLLOUTS_READ = "rollouts.read"
    ROLLOUTS_DRAFT = "rollouts.draft"
    ROLLOUTS_APPROVE = "rollouts.approve"
    ROLLOUTS_CONTROL = "rollouts.control"  # pause, resume, abort, approve a wave
    TOKENS_READ = "tokens.read"
    TOKENS_CHANGE = "tokens.change"
    AUDIT_READ = "audit.read"
    SELF_ASSIGNMENT = "self.assignment"
    SELF_INVENTORY = "self.inventory"
    SELF_TELEMETRY = "self.telemetry"
    SELF_CERTIFICATE = "self.certificate"
    SELF_DIAGNOSTICS = "self.diagnostics"


@dataclass(frozen=True, slots=True)
class Rule:
    """Who may, and what it touches."""

    roles: frozenset[Role]
    reach: Reach


@dataclass(frozen=True, slots=True)
class Caller:
    """An API token. `tags` is its scope: devices that bear one of them; empty: all devices."""

    name: str
    role: Role
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DeviceCaller:
    """A device, known by its client certificate."""

    device: str


Identity = Caller | DeviceCaller


@dataclass(frozen=True, slots=True)
class Answer:
    """True where it is allowed; `reason` says in words why it is not."""

    allowed: bool
    reason: str = ""

    def __bool__(self) -> bool:
        """Whether it is allowed."""
        return self.allowed


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """`[access]`: what the roles alone do not say."""

    approve_own: bool = True  # false: who drafted a rollout approves neither it nor its waves; nobody else revises it


_ALL = frozenset(Role)
_OPERATORS = frozenset({Role.OPERATOR, Role.ADMIN})
_ADMIN = frozenset({Role.ADMIN})
_NOBODY: frozenset[Role] = frozenset()

RULES: dict[Action, Rule] = {
    Action.DEVICES_READ: Rule(_ALL, Reach.DEVICES),
    Action.DEVICES_LABEL: Rule(_OPERATORS, Reach.FLEET),  # tags are what scopes are made of
    Action.DEVICES_ENROL: Rule(_OPERATORS, Reach.DEVICES),
    Action.DEVICES_REVOKE: Rule(_OPERATORS, Reach.DEVICES),
    Action.DEVICES_WITHDRAW: Rule(_OPERATORS, Reach.DEVICES),
    Action.DEVICES_REMOVE: Rule(_OPERATORS, Reach.DEVICES),
    Action.DIAGNOSTICS_ASK: Rule(_OPERATORS, Reach.DEVICES),
    Action.DIAGNOSTICS_READ: Rule(_OPERATORS, Reach.DEVICES),
    Action.TELEMETRY_READ: Rule(_ALL, Reach.DEVICES),
    Action.METRICS_READ: Rule(_ALL, Reach.FLEET),
    Action.RELEASES_READ: Rule(_ALL, Reach.SHARED),
    Action.ROLLOUTS_READ: Rule(_ALL, Reach.DEVICES),
    Action.ROLLOUTS_DRAFT: Rule(_OPERATORS | {Role.PUBLISHER}, Reach.DEVICES),
    Action.ROLLOUTS_APPROVE: Rule(_OPERATORS, Reach.DEVICES),
    Action.ROLLOUTS_CONTROL: Rule(_OPERATORS, Reach.DEVICES),
    Action.TOKENS_READ: Rule(_ADMIN, Reach.FLEET),
    Action.TOKENS_CHANGE: Rule(_ADMIN, Reach.FLEET),
    Action.AUDIT_READ: Rule(_ADMIN, Reach.FLEET),
    Action.SELF_ASSIGNMENT: Rule(_NOBODY, Reach.SELF),
    Action.SELF_INVENTORY: Rule(_NOBODY, Reach.SELF),
    Action.SELF_TELEMETRY: Rule(_NOBODY, Reach.SELF),
    Action.SELF_CERTIFICATE: Rule(_NOBODY, Reach.SELF),
    Action.SELF_DIAGNOSTICS: Rule(_NOBODY, Reach.SELF),
}


def may(identity: Identity, action: Action, tags: Collection[str] | None = None, *, device: str = "") -> Answer:
    """Whether the caller may do this to a device that bears `tags`; of several devices: to what bears only the tags
    that all of them bear. `tags` None: no device is spoken of. `device`: which one, for callers that are devices.

    A list is asked for with the caller's own scope as `tags`, and shows what is within it.
    """
    if isinstance(identity, DeviceCaller):
        return _device_may(identity, action, device)
    rule = RULES[action]
    if rule.reach is Reach.SELF:
        return Answer(False, f"{action} is for devices, by their certificate; {identity.name!r:.80} is a token")
    if identity.role not in rule.roles:
        needed = " or ".join(sorted(rule.roles))
        return Answer(False, f"{action} needs the role {needed}; {identity.name!r:.80} is {identity.role}")
    return _in_scope(identity, action, rule.reach, tags)


def _device_may(identity: DeviceCaller, action: Action, device: str) -> Answer:
    if RULES[action].reach is not Reach.SELF:
        return Answer(False, f"{action} is not for devices; ask with an API token")
    if device != identity.device:
        return Answer(False, f"a device sees itself only; {identity.device!r:.140} asked for another")
    return Answer(True)


def _in_scope(identity: Caller, action: Action, reach: Reach, tags: Collection[str] | None) -> Answer:
    if not identity.tags or reach is Reach.SHARED:
        return Answer(True)
    scope = ", ".join(sorted(identity.tags))
    if reach is Reach.FLEET or tags is None:
        return Answer(False, f"{action} concerns the whole fleet; {identity.name!r:.80} is for {scope:.200} only")
    if identity.tags.isdisjoint(tags):
        return Answer(False, f"no tag of what is asked for is among those of {identity.name!r:.80}: {scope:.200}")
    return Answer(True)
