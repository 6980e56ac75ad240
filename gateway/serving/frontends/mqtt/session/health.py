"""Problems of the connections to the broker: what was asked for and is not granted. Pure: the clock is passed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping

PROBLEMS_LIMIT = 100
"""Problems that are kept one by one; further ones of the same kind share one entry."""


class LinkHealth:
    """Current problems by kind and subject. `changed` is called when the first one begins or the last one ends."""

    def __init__(
        self, repeat_s: float, changed: Callable[[], None], first: Mapping[tuple[str, str], str] | None = None
    ) -> None:
        self._repeat_s, self._changed = repeat_s, changed
        self._problems = dict(first or {})
        self._logged_s: OrderedDict[tuple[str, str], float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._problems)

    def __iter__(self) -> Iterator[str]:
        return iter(self._problems.values())

    def begin(self, kind: str, subject: str, problem: str) -> None:
        """Record a problem, in place of an earlier one of the same subject."""
        key, was_complete = (kind, subject), not self._problems
        if key not in self._problems and sum(one == kind for one, _ in self._problems) >= PROBLEMS_LIMIT:
            key = (kind, "")
        self._problems[key] = problem
        if was_complete:
            self._changed()

    def end(self, kind: str, subject: str = "") -> None:
        """Remove a problem, if it exists."""
        if self._problems and self._problems.pop((kind, subject), None) is not None and not self._problems:
            self._changed()

    def end_all(self, kind: str) -> None:
        """Remove all problems of a kind."""
        for one, subject in tuple(self._problems):
            if one == kind:
                self.end(kind, subject)

    def is_due(self, kind: str, subject: str, now_s: float) -> bool:
        """Return True if a problem is to be logged: it was not within the last `repeat_s`."""
        key = (kind, subject)
        last_s = self._logged_s.get(key)
        if last_s is not None and now_s - last_s < self._repeat_s:
            return False
        self._logged_s[key] = now_s
        self._logged_s.move_to_end(key)
        if len(self._logged_s) > PROBLEMS_LIMIT:
            self._logged_s.popitem(last=False)
        return True
