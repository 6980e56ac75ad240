"""Thread that repeats one function."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import datetime

from fleet import events
from fleet.controller.control.control import Clock
from gateway.common.domain.errors import RequestError

_log = logging.getLogger(__name__)


class PeriodicThread:
    """Thread that calls `work(now)` every `every_s`, sooner when woken (also by `due`).

    What it raises is logged, and the next call follows in its time. `end` is called last, in the same thread.
    """

    def __init__(
        self,
        name: str,
        every_s: float,
        work: Callable[[datetime], object],
        clock: Clock,
        *,
        due: threading.Event | None = None,
        end: Callable[[], object] = lambda: None,
    ) -> None:
        self._name, self._every_s, self._work, self._clock = name, every_s, work, clock
        self._due, self._end, self._ended = due or threading.Event(), end, False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread, once."""
        self._thread.start()

    def wake(self) -> None:
        """Make the next call due now."""
        self._due.set()

    def stop(self, wait_s: float) -> None:
        """Let the current call end, and wait for it no longer than `wait_s`."""
        self._ended = True
        self._due.set()
        self._thread.join(wait_s)

    def _run(self) -> None:
        while not self._ended:
            self._attempt(lambda: self._work(self._clock()))
            self._due.wait(self._every_s)
            self._due.clear()
        self._attempt(self._end)

    def _attempt(self, work: Callable[[], object]) -> None:
        try:
            work()
        except (RequestError, OSError) as error:
            _log.warning(events.PERIODIC_WORK_FAILED, self._name, error)
        except Exception:  # noqa: BLE001  a thread's boundary: a defect in one turn must not be the end of all
            _log.exception(events.PERIODIC_WORK_CRASHED, self._name)
