"""Choice of the protocol version of each connection. Pure: no I/O.

A connection that ended without CONNACK proves nothing: a proxy accepts connections while its broker restarts.
MQTT 3.1.1 is served only if a broker refused MQTT 5 by name, or accepted 3.1.1 and then closed MQTT 5 at once
or did not answer it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class VersionStage(enum.Enum):
    """Knowledge about the broker's version."""

    FIRST = "MQTT 5 is tried"
    SECOND = "MQTT 5 is tried again: the broker closed one connection without CONNACK"
    GUESS = "MQTT 3.1.1 is tried as a guess: the broker closed two connections with MQTT 5, or did not answer one"
    CHECK = "MQTT 5 is tried once more: the broker accepted 3.1.1, so it runs"
    PROVEN = "the broker accepted MQTT 5"
    OLD = "the broker refused MQTT 5 by name"
    ONLY_OLD_WORKS = "the broker accepted MQTT 3.1.1 and closed or did not answer MQTT 5"
    SET_5 = "a setting says MQTT 5"
    SET_3_1_1 = "a setting says MQTT 3.1.1"


class ConnectOutcome(enum.Enum):
    """Result of an attempt to connect, and the end of a connection that was accepted."""

    ACCEPTED = "CONNACK with success"
    CLOSED = "no CONNACK: the broker closed the connection"
    UNANSWERED = "no CONNACK in time: some brokers of 3.1.1 wait for more bytes of a CONNECT of MQTT 5 (amqtt 0.12)"
    UNSUPPORTED = "CONNACK: unsupported protocol version"
    REFUSED = "CONNACK with another reason"
    LOST = "end of an accepted connection"


BY_SETTING = {"auto": VersionStage.FIRST, "5": VersionStage.SET_5, "3.1.1": VersionStage.SET_3_1_1}
"""First stage by the setting `protocol`."""
OLD_STAGES = frozenset({VersionStage.GUESS, VersionStage.OLD, VersionStage.ONLY_OLD_WORKS, VersionStage.SET_3_1_1})
"""Stages in which a connection uses MQTT 3.1.1."""
NEXT = {
    (VersionStage.FIRST, ConnectOutcome.ACCEPTED): VersionStage.PROVEN,
    (VersionStage.FIRST, ConnectOutcome.CLOSED): VersionStage.SECOND,
    (VersionStage.FIRST, ConnectOutcome.UNANSWERED): VersionStage.GUESS,
    (VersionStage.FIRST, ConnectOutcome.UNSUPPORTED): VersionStage.OLD,
    (VersionStage.SECOND, ConnectOutcome.ACCEPTED): VersionStage.PROVEN,
    (VersionStage.SECOND, ConnectOutcome.CLOSED): VersionStage.GUESS,
    (VersionStage.SECOND, ConnectOutcome.UNANSWERED): VersionStage.GUESS,
    (VersionStage.SECOND, ConnectOutcome.UNSUPPORTED): VersionStage.OLD,
    (VersionStage.SECOND, ConnectOutcome.REFUSED): VersionStage.FIRST,
    (VersionStage.GUESS, ConnectOutcome.ACCEPTED): VersionStage.CHECK,
    (VersionStage.GUESS, ConnectOutcome.CLOSED): VersionStage.FIRST,
    (VersionStage.GUESS, ConnectOutcome.UNANSWERED): VersionStage.FIRST,
    (VersionStage.GUESS, ConnectOutcome.UNSUPPORTED): VersionStage.FIRST,
    (VersionStage.GUESS, ConnectOutcome.REFUSED): VersionStage.FIRST,
    (VersionStage.CHECK, ConnectOutcome.ACCEPTED): VersionStage.PROVEN,
    (VersionStage.CHECK, ConnectOutcome.CLOSED): VersionStage.ONLY_OLD_WORKS,
    (VersionStage.CHECK, ConnectOutcome.UNANSWERED): VersionStage.ONLY_OLD_WORKS,
    (VersionStage.CHECK, ConnectOutcome.UNSUPPORTED): VersionStage.OLD,
    (VersionStage.CHECK, ConnectOutcome.REFUSED): VersionStage.FIRST,
    (VersionStage.OLD, ConnectOutcome.UNSUPPORTED): VersionStage.FIRST,
    (VersionStage.OLD, ConnectOutcome.LOST): VersionStage.FIRST,
    (VersionStage.ONLY_OLD_WORKS, ConnectOutcome.CLOSED): VersionStage.FIRST,
    (VersionStage.ONLY_OLD_WORKS, ConnectOutcome.UNANSWERED): VersionStage.FIRST,
    (VersionStage.ONLY_OLD_WORKS, ConnectOutcome.UNSUPPORTED): VersionStage.FIRST,
    (VersionStage.ONLY_OLD_WORKS, ConnectOutcome.REFUSED): VersionStage.FIRST,
    (VersionStage.ONLY_OLD_WORKS, ConnectOutcome.LOST): VersionStage.SECOND,
}
"""Next stage; a pair that is absent does not change the stage."""
AT_ONCE = frozenset({VersionStage.CHECK, VersionStage.OLD, VersionStage.ONLY_OLD_WORKS})
"""Stages that are entered while the broker is known to run: the next attempt needs no delay."""


@dataclass(frozen=True, slots=True)
class VersionChoice:
    """Version of the next connection."""

    stage: VersionStage

    @property
    def version_5(self) -> bool:
        """Return True if the next connection uses MQTT 5."""
        return self.stage not in OLD_STAGES

    @property
    def serves(self) -> bool:
        """Return True if a connection that is accepted in this stage is used; a guess is only checked."""
        return self.stage is not VersionStage.GUESS

    def after(self, outcome: ConnectOutcome) -> VersionChoice:
        """Return the choice after an attempt, or after the end of a connection."""
        return VersionChoice(NEXT.get((self.stage, outcome), self.stage))

    def tries_at_once(self, before: VersionChoice) -> bool:
        """Return True if the attempt after `before` needs no delay."""
        return self.stage is not before.stage and self.stage in AT_ONCE
