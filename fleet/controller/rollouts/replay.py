"""Replay of a rollout: check that its recorded decisions follow from the facts recorded before them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from fleet.controller.rollouts.decide import decide
from fleet.controller.rollouts.decisions import PART_LOW, Decision
from fleet.controller.rollouts.facts import Decided, Fact
from fleet.controller.rollouts.fold import fold
from fleet.controller.rollouts.spec import Spec
from fleet.controller.rollouts.state import RolloutState


@dataclass(frozen=True, slots=True)
class Difference:
    """The first fact that does not follow. `recorded` or `decided` is None where that list ended before the other."""

    seq: int
    recorded: Decision | None
    decided: Decision | None


@dataclass(frozen=True, slots=True)
class Replay:
    """Result of a replay: facts and decisions examined, the final state, and the first difference or None."""

    facts: int
    decisions: int
    state: RolloutState
    difference: Difference | None


def replay(spec: Spec, facts: Iterable[Fact]) -> Replay:
    """Fold `facts` and compare each recorded answer with `decide` at its time. Stop at the first difference."""
    state, seen, decisions = RolloutState(), 0, 0
    for answer in _answers(facts):
        seen += len(answer)
        if isinstance(answer[0].event, Decided):
            decisions += len(answer)
            difference = _difference(spec, state, answer)
            if difference is not None:
                return Replay(seen, decisions, state, difference)
        state = fold(spec, answer, state)
    return Replay(seen, decisions, state, None)


def _answers(facts: Iterable[Fact]) -> Iterator[list[Fact]]:
    """Group facts: the decisions of one answer together, and all facts between two answers together."""
    group: list[Fact] = []
    for fact in facts:
        if group and _answer_of(fact) != _answer_of(group[-1]):
            yield group
            group = []
        group.append(fact)
    if group:
        yield group


def _answer_of(fact: Fact) -> object:
    return fact.at if isinstance(fact.event, Decided) else None


def _difference(spec: Spec, state: RolloutState, answer: list[Fact]) -> Difference | None:
    """Return the first difference between a recorded answer and the one that `decide` gives now, or None.

    A part of an answer is accepted if it has at least `PART_LOW` decisions. The next answer must then hold the rest.
    """
    recorded = [fact.event.decision for fact in answer if isinstance(fact.event, Decided)]
    decided = decide(spec, state, answer[0].at, len(recorded) + 1)
    for place, (one, other) in enumerate(zip_longest(recorded, decided)):
        if one != other and (one is not None or place < PART_LOW):
            return Difference(answer[min(place, len(answer) - 1)].seq, one, other)
    return None
