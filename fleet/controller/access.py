"""Permissions on the controller: roles, scopes by tag, and devices. One table, evaluated without I/O."""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from gateway.common.domain.python310 import StrEnum


class Role(StrEnum):
    """Role of an API token. `RULES` lists what each may do; no role includes another."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    PUBLISHER = "publisher"
    ADMIN = "admin"


class Reach(enum.Enum):
    """Scope of an action's effect, which determines how a caller's tags limit it."""

    DEVICES = "devices"  # named devices: only those within the scope
    SHARED = "shared"  # shared data that reveal nothing about a device: independent of the scope
    FLEET = "fleet"  # the whole fleet: only for callers without a scope
    SELF = "self"  # the calling device


class Action(StrEnum):
    """Action of a caller, as the API's routes and the audit log name it."""

    DEVICES_READ = "devices.read"
    DEVICES_LABEL = "devices.label"
    DEVICES_ENROL = "devices.enrol"  # pre-register a serial, or make an enrolment token
    DEVICES_REVOKE = "devices.revoke"  # and readmit
    DEVICES_SUSPEND = "devices.suspend"  # and resume
    DEVICES_WITHDRAW = "devices.withdraw"  # remove a model from a device
    DEVICES_REMOVE = "devices.remove"  # remove a device from the fleet
    DIAGNOSTICS_ASK = "diagnostics.ask"
    DIAGNOSTICS_READ = "diagnostics.read"
    TELEMETRY_READ = "telemetry.read"
    METRICS_READ = "metrics.read"
    RELEASES_READ = "releases.read"
    ROLLOUTS_READ = "rollouts.read"
    ROLLOUTS_DRAFT = "rollouts.draft"
    ROLLOUTS_APPROVE = "rollouts.approve"
    ROLLOUTS_CONTROL = "rollouts.control"  # pause, resume, abort, approve a wave
    DRAFTS_READ = "drafts.read"
    DRAFTS_CHANGE = "drafts.change"  # upload drafts, their files and signatures; withdraw a draft
    UPLOADS_REMOVE = "uploads.remove"  # delete uploads of other tokens
    DRAFTS_KEYS = "drafts.keys"  # upload or withdraw drafts of root and targets, which name the signers of all roles
    PUBLISH = "publish"  # publish drafts that are signed
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
    """Roles that may perform an action, and what it affects."""

    roles: frozenset[Role]
    reach: Reach


@dataclass(frozen=True, slots=True)
class TokenCaller:
    """An API token. `tags` is its scope: devices with one of these tags; empty: all devices."""

    name: str
    role: Role
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DeviceCaller:
    """A device, identified by its client certificate."""

    device: str


Identity = TokenCaller | DeviceCaller


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """Result of a check. `reason` explains a refusal."""

    allowed: bool
    reason: str = ""

    def __bool__(self) -> bool:
        """Return whether it is allowed."""
        return self.allowed


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Table `[access]`: rules in addition to the roles."""

    approve_own: bool = True  # false: the author of a rollout cannot approve it or its waves, and alone revises it


_ALL = frozenset(Role)
_OPERATORS = frozenset({Role.OPERATOR, Role.ADMIN})
_ADMIN = frozenset({Role.ADMIN})
_NOBODY: frozenset[Role] = frozenset()

RULES: dict[Action, Rule] = {
    Action.DEVICES_READ: Rule(_ALL, Reach.DEVICES),
    Action.DEVICES_LABEL: Rule(_OPERATORS, Reach.FLEET),  # tags define scopes
    Action.DEVICES_ENROL: Rule(_OPERATORS, Reach.DEVICES),
    Action.DEVICES_REVOKE: Rule(_OPERATORS, Reach.DEVICES),
    Action.DEVICES_SUSPEND: Rule(_OPERATORS, Reach.DEVICES),
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
    Action.DRAFTS_READ: Rule(_ALL, Reach.FLEET),  # they show how many devices run what
    Action.DRAFTS_CHANGE: Rule(frozenset({Role.PUBLISHER, Role.ADMIN}), Reach.FLEET),
    Action.UPLOADS_REMOVE: Rule(_ADMIN, Reach.FLEET),
    Action.DRAFTS_KEYS: Rule(_ADMIN, Reach.FLEET),
    Action.PUBLISH: Rule(_OPERATORS, Reach.FLEET),
    Action.TOKENS_READ: Rule(_ADMIN, Reach.FLEET),
    Action.TOKENS_CHANGE: Rule(_ADMIN, Reach.FLEET),
    Action.AUDIT_READ: Rule(_ADMIN, Reach.FLEET),
    Action.SELF_ASSIGNMENT: Rule(_NOBODY, Reach.SELF),
    Action.SELF_INVENTORY: Rule(_NOBODY, Reach.SELF),
    Action.SELF_TELEMETRY: Rule(_NOBODY, Reach.SELF),
    Action.SELF_CERTIFICATE: Rule(_NOBODY, Reach.SELF),
    Action.SELF_DIAGNOSTICS: Rule(_NOBODY, Reach.SELF),
}


def may(identity: Identity, action: Action, tags: Collection[str] | None = None, *, device: str = "") -> AccessDecision:
    """Return whether the caller may perform the action.

    `tags`: those of the device; for several devices, the tags that all of them have; None: no device is affected.
    `device`: its name, for callers that are devices.

    For a list, pass the caller's own scope as `tags`; it shows what is within the scope.
    """
    if not (decision := may_at_all(identity, action)):
        return decision
    if isinstance(identity, TokenCaller):
        return _in_scope(identity, action, RULES[action].reach, tags)
    if device != identity.device:
        return AccessDecision(False, f"a device sees itself only; {identity.device!r:.140} asked for another")
    return AccessDecision(True)


def may_at_all(identity: Identity, action: Action) -> AccessDecision:
    """Return whether the caller may perform the action on any device. It needs nothing of the request's body."""
    rule = RULES[action]
    if isinstance(identity, DeviceCaller):
        is_own = rule.reach is Reach.SELF
        return AccessDecision(is_own, "" if is_own else f"{action} is not for devices; ask with an API token")
    if rule.reach is Reach.SELF:
        return AccessDecision(False, f"{action} is for devices, by their certificate; {identity.name!r:.80} is a token")
    if identity.role not in rule.roles:
        needed = " or ".join(sorted(rule.roles))
        return AccessDecision(False, f"{action} needs the role {needed}; {identity.name!r:.80} is {identity.role}")
    return _in_scope(identity, action, rule.reach, None) if rule.reach is Reach.FLEET else AccessDecision(True)


def _in_scope(identity: TokenCaller, action: Action, reach: Reach, tags: Collection[str] | None) -> AccessDecision:
    if not identity.tags or reach is Reach.SHARED:
        return AccessDecision(True)
    scope = ", ".join(sorted(identity.tags))
    if reach is Reach.FLEET or tags is None:
        return AccessDecision(
            False, f"{action} concerns the whole fleet; {identity.name!r:.80} is for {scope:.200} only"
        )
    if identity.tags.isdisjoint(tags):
        return AccessDecision(
            False, f"no tag of what is asked for is among those of {identity.name!r:.80}: {scope:.200}"
        )
    return AccessDecision(True)
