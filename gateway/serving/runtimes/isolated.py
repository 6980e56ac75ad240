"""Session in a worker process: what hangs, crashes, leaks or answers garbage costs its own requests only.

A thread of each session, its keeper, starts workers, waits for their end, measures their memory, and replaces them. The
kernel ends a worker with the thread that started it (PR_SET_PDEATHSIG), which is why no other thread may.
"""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.common.domain.errors import VariantError, lacks_memory
from gateway.common.domain.manifest import ModelManifest, Variant
from gateway.common.domain.statistics import MetricSample
from gateway.common.domain.tensor import Tensors
from gateway.common.domain.verdict import SessionBudget
from gateway.common.memory import available_bytes
from gateway.serving.domain.isolation import (
    EXCESS,
    GARBAGE,
    KILLED,
    MEMORY,
    MIB,
    OVERLONG,
    REPEATED,
    RETIRED,
    UNOPENED,
    Restarts,
    WorkerPolicy,
)
from gateway.serving.domain.ports import Part, RowInput, RowTensors
from gateway.serving.runtimes.worker_child import WorkerJob
from gateway.serving.runtimes.worker_process import Lane, WorkerGone, WorkerProcess

log = logging.getLogger(__name__)
WAIT_S = 5.0
"""Longest wait of a run for a worker that is being started, from its start; later runs are refused at once."""
END_S = 10.0
"""Longest wait for the end of a worker that was killed."""
CHECK_S = 1.0
"""Pause between two measurements of the memory of workers."""
Copies = Callable[[], AbstractContextManager[Path]]
"""Function that lends a folder with the variant's files, checked."""
_Labels = tuple[tuple[str, str], ...]
_sessions: weakref.WeakSet[IsolatedSession] = weakref.WeakSet()


class IsolatedSession:
    """Implementation of `gateway.serving.domain.ports.Session` by worker processes.

    Raises VariantError if the first worker cannot open the variant.
    """

    lends = False

    def __init__(
        self, manifest: ModelManifest, variant: Variant, copies: Copies, budget: SessionBudget, policy: WorkerPolicy
    ) -> None:
        self._keeper = _Keeper(manifest, variant, copies, budget, policy)
        self.remarks, self.rows, self.in_parts = self._keeper.begin()
        self.peers: list[_LaneSession] = []
        self._own = _LaneSession(self._keeper, 0)
        weakref.finalize(self, self._keeper.close)
        _sessions.add(self)

    def run(self, inputs: Tensors) -> Tensors:
        """Implement `Session.run`."""
        return self._own.run(inputs)

    def run_in_parts(self, inputs: Tensors, part: Part) -> Tensors:
        """Implement `Session.run_in_parts`."""
        return self._own.run_in_parts(inputs, part)

    def cancel(self) -> bool:
        """Implement `Session.cancel`: kill the worker."""
        return self._own.cancel()

    def widen(self, runs: int) -> None:
        """Implement `Session.widen`. More runs than the budget had need another worker."""
        if runs > self._keeper.lanes:
            self._keeper.widen(runs)
        self.peers += [_LaneSession(self._keeper, index) for index in range(len(self.peers) + 1, runs)]

    def close(self) -> None:
        """End the workers."""
        self._keeper.close()

    @property
    def keeper(self) -> _Keeper:
        """Return the keeper of its workers."""
        return self._keeper

    @property
    def memory_bytes(self) -> int:
        """Return the memory of its workers (PSS) as it was measured last."""
        return sum(worker.memory_bytes for worker in self._keeper.workers)


def samples() -> Iterable[MetricSample]:
    """Return the metrics of all workers. Sessions of one version, such as while it is replaced, add up."""
    memory, spares, ends = Counter[_Labels](), Counter[_Labels](), Counter[_Labels]()
    for session in [each for each in list(_sessions) if not each.keeper.is_closed]:
        keeper = session.keeper
        labels = tuple(keeper.labels.items())
        memory[labels] += session.memory_bytes
        spares[labels] += keeper.spare is not None
        for reason, count in keeper.ends.items():
            key = (*labels, ("reason", reason))
            ends[key] += count
    for name, text, found in (
        ("worker_ends_total", "Worker processes of isolated sessions that ended, by reason.", ends),
        ("worker_memory_bytes", "Memory of the worker processes of isolated sessions (PSS).", memory),
        ("worker_spares", "Worker processes that stand ready to replace another one.", spares),
    ):
        for labels, value in found.items():
            yield MetricSample(name, text, value, dict(labels), counter=found is ends)


class _LaneSession:
    """One run at a time of an isolated session. Implementation of `Session`."""

    lends, remarks, rows = False, (), None
    peers: Sequence[_LaneSession] = ()

    def __init__(self, keeper: _Keeper, index: int) -> None:
        self._keeper, self._index, self.in_parts = keeper, index, keeper.in_parts
        self._cancelled = False
        self._worker: WorkerProcess | None = None
        self._lane: Lane | None = None
        """Lane of the run in progress, once it has one."""

    def run(self, inputs: Tensors) -> Tensors:
        """Implement `Session.run`."""
        return self._asked(inputs)

    def run_in_parts(self, inputs: Tensors, part: Part) -> Tensors:
        """Implement `Session.run_in_parts`."""
        return self._asked(inputs, _Heard(part))

    def _asked(self, inputs: Tensors, heard: _Heard | None = None) -> Tensors:
        """Run. A worker whose end need not be this run's fault is replaced and asked once more, unless texts came."""
        try:
            try:
                return self._run(inputs, heard)
            except WorkerGone as gone:
                error = self._failure(gone)
                if not error.transient or self._cancelled or (heard and heard.has_texts):
                    raise error from None
            with heard.turn if heard else ExitStack() as turn:
                turn.enter_context(self._keeper.repeats)  # one at a time: the end of the next worker has one suspect
                try:
                    return self._run(inputs, heard)
                except WorkerGone as gone:
                    raise self._failure(gone) from None
        finally:
            self._cancelled, self._worker, self._lane = False, None, None

    def _run(self, inputs: Tensors, heard: _Heard | None) -> Tensors:
        self._worker = worker = self._keeper.ready(self)
        lane = worker.lane(self._index)
        with lane.lock:
            lane.busy, self._lane, is_suspect = True, lane, False
            try:
                if self._cancelled:
                    raise VariantError("the run was cancelled")  # noqa: TRY301
                return lane.run(inputs, heard)
            except WorkerGone as gone:
                is_suspect = gone.was_asked
                raise
            except VariantError as error:
                if not (lacks_memory(error.reason) and self._keeper.end_full(worker)):
                    raise
            finally:
                lane.busy, self._lane = is_suspect, None  # the lane of a suspect stays busy: it says how many there are
                if worker is not self._keeper.active:
                    self._keeper.wake()
        raise WorkerGone

    def _failure(self, gone: WorkerGone) -> VariantError:
        """Return why the run ended with its worker, once another one may be there: transient if it may be no fault."""
        worker = self._worker
        assert worker is not None  # noqa: S101  it has run
        if str(gone):
            worker.culprit = worker.culprit or self
            worker.kill(GARBAGE, str(gone))
        elif not worker.over.wait(CHECK_S):
            worker.kill(GARBAGE, "closed its socket, and was ended")
        worker.over.wait(END_S)
        if worker.culprit is None:
            is_other = not gone.was_asked or sum(lane.busy for lane in worker.lanes) > 1
        else:
            is_other = worker.culprit is not self
        return VariantError(f"its worker process {worker.cause}", transient=is_other or worker.reason in REPEATED)

    @property
    def is_cancelled(self) -> bool:
        """Return True if the run in progress is to end."""
        return self._cancelled

    def cancel(self) -> bool:
        """Kill the worker of the run in progress; a run that has not begun yet fails."""
        self._cancelled = True
        worker = self._worker
        if worker is not None and self._lane is not None:
            worker.culprit = worker.culprit or self
            worker.kill(OVERLONG, "had a run that took longer than it may, and was ended")
        self._keeper.wake()
        return True

    def widen(self, runs: int) -> None:
        """Do nothing: the session widens."""

    def close(self) -> None:
        """Do nothing: the session ends the workers."""


class _Heard:
    """Receiver of parts, which notes whether texts came. `turn`: that of a repeated run, which ends with a text."""

    def __init__(self, part: Part) -> None:
        self._part, self.has_texts, self.turn = part, False, ExitStack()

    def __call__(self, outputs: Tensors) -> bool:
        if outputs:
            self.turn.close()  # it goes on for long, and ended no worker so far
            self.has_texts = True
        return self._part(outputs)


class _Keeper:
    """Thread that keeps the workers of one session.

    Its state changes under `_changed`: the worker that runs (`active`), the one that is being started, the spare, and
    those that end after their runs.
    """

    def __init__(
        self, manifest: ModelManifest, variant: Variant, copies: Copies, budget: SessionBudget, policy: WorkerPolicy
    ) -> None:
        self._job = WorkerJob(manifest, variant, Path(), budget, policy, max(1, budget.runs), os.getpid())
        self._policy, self._copies = policy, copies
        self._name = f"model {manifest.name}/{manifest.version}, variant {variant.name}"
        self.labels = {"model": manifest.name, "version": manifest.version}
        self.ends: Counter[str] = Counter()
        self._changed = threading.Condition()
        self.repeats = threading.Lock()
        self.active: WorkerProcess | None = None
        self._starting: WorkerProcess | None = None
        self.spare: WorkerProcess | None = None
        self._ending: list[WorkerProcess] = []
        self._restarts, self._due_s, self._measured_s = Restarts(), 0.0, 0.0
        self._problem = VariantError("it was not started yet", transient=True)
        self._has_opened = self.is_closed = self.in_parts = False
        self._wakes = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        weakref.finalize(self, os.close, self._wakes)
        self._thread = threading.Thread(target=self._keep, name=f"workers {manifest.name}", daemon=True)

    @property
    def lanes(self) -> int:
        """Return the runs at a time that the worker takes."""
        active = self.active
        return int(active.opened["lanes"]) if active and active.opened else 0

    @property
    def workers(self) -> list[WorkerProcess]:
        """Return all workers that were not reaped yet."""
        return [each for each in (self.active, self._starting, self.spare, *self._ending) if each is not None]

    def begin(self) -> tuple[tuple[str, ...], RowTensors | None, bool]:
        """Start the first worker. Return its remarks, the axes of its rows, and whether it runs in parts.

        Raises VariantError.
        """
        try:
            self._thread.start()
        except RuntimeError as error:
            words, remedy = f"no thread for its workers: {error}", "allow the gateway more (TasksMax, ulimit -u)"
            raise VariantError(words, remedy=remedy, transient=True) from error
        with self._changed:
            self._changed.wait_for(lambda: self.active is not None or self.is_closed)
            if (active := self.active) is None or active.opened is None:
                raise _again(self._problem)
        self.in_parts = active.opened["in_parts"] is True
        return tuple(map(str, active.opened["remarks"])), _rows(active.opened["rows"]), self.in_parts

    def widen(self, runs: int) -> None:
        """Replace the workers by one with more lanes. Raises VariantError if the engine takes fewer runs at a time."""
        with self._changed:
            self._job = replace(self._job, lanes=runs)
            self._retire("takes fewer runs at a time than it should")
            self._changed.wait_for(lambda: self.is_closed or self.active is not None)
            if self.is_closed:
                raise _again(self._problem)
            if self.lanes < runs:
                raise VariantError(f"the engine takes {self.lanes} runs at a time")

    def ready(self, lane: _LaneSession) -> WorkerProcess:
        """Return the worker that runs. Wait for one that is being started. Raises VariantError."""
        if (worker := self.active) is not None:
            return worker
        with self._changed:
            self._changed.wait_for(lambda: lane.is_cancelled or self._is_settled(), WAIT_S)
            if self.active is not None:
                return self.active
            if self.is_closed:
                raise _again(self._problem)
            wait_s = self._due_s - time.monotonic()
            then = f"is started again in {wait_s:.1f} s" if wait_s > 0 else "is being started"
            raise VariantError(f"its worker process is away, and {then}: {self._problem} (EG-313)", transient=True)

    def _is_settled(self) -> bool:
        """Return True if a run gets its worker now, or none soon."""
        now_s = time.monotonic()
        began_s = self._starting.began_s if self._starting else max(now_s, self._due_s)
        return self.is_closed or self.active is not None or not began_s - WAIT_S / 2 < now_s < began_s + WAIT_S

    def end_full(self, worker: WorkerProcess) -> bool:
        """End a worker whose run lacked memory, if its memory is full: of earlier runs, as far as is known."""
        excess, words = self._excess(worker)
        if is_full := excess > 1:
            worker.kill(MEMORY, words)
        return is_full

    def wake(self) -> None:
        """Let the keeper, and runs that wait for a worker, look again."""
        with self._changed:
            self._changed.notify_all()
        os.eventfd_write(self._wakes, 1)

    def close(self) -> None:
        """End the workers and the thread."""
        with self._changed:
            if not self.is_closed:
                self.is_closed, self._problem = True, VariantError("the session is closed")
            self._retire("was ended with its session")
        if self._thread.is_alive():
            self._thread.join(END_S)

    def _retire(self, words: str) -> None:
        """End all workers."""
        self._ending = self.workers
        self.active = self._starting = self.spare = None
        for worker in self._ending:
            worker.kill(RETIRED, words)
        self.wake()

    # ---- on the thread -----------------------------------------------------------------------------------------------
    def _keep(self) -> None:
        while not self.is_closed:
            try:
                self._start_due()
                self._await()
                self._measure()
            except Exception as error:  # the thread's boundary: nothing else replaces workers, and a lack may pass
                log.exception("%s: its worker processes cannot be kept now; tried again in %g s", self._name, CHECK_S)
                with self._changed:
                    words = f"its worker processes cannot be kept now: {error}"
                    self._problem = VariantError(words, transient=True)
                    self.is_closed |= not self._has_opened
                    self._changed.wait_for(lambda: self.is_closed, CHECK_S)
        with self._changed:
            self.is_closed = True
            self._retire("was ended with its session")
        for worker in self._ending:
            worker.reap()
            worker.over.set()
        with self._changed:
            self._ending = []
            self._changed.notify_all()

    def _start_due(self) -> None:
        """Start a worker if one is due: the one that runs, or a spare."""
        active = self.active
        if self._starting or self.spare or time.monotonic() < self._due_s:
            return
        if active and not self._policy.holds_spare(active.memory_bytes, available_bytes(), there=False):
            return
        with ExitStack() as stack:
            try:
                files = stack.enter_context(self._copies())
                worker = WorkerProcess(replace(self._job, files=files), stack.pop_all())
            except VariantError as error:
                self._failed(error, UNOPENED)
                return
        with self._changed:
            self._starting = worker
            if self.is_closed:
                self._retire("was ended with its session")

    def _await(self) -> None:
        """Wait until a worker says something or ends, something is due, or the keeper is woken."""
        poll, now_s, workers, starting = select.poll(), time.monotonic(), self.workers, self._starting
        prints = {each.prints: each for each in workers if each.quiet_s <= now_s}
        for descriptor in (self._wakes, *(each.ended for each in workers), *prints):
            poll.register(descriptor, select.POLLIN)
        if starting is not None:
            poll.register(starting.lanes[0].socket, select.POLLIN)
        waits_s = [CHECK_S] if workers else []
        waits_s += [each.quiet_s - now_s for each in workers if now_s < each.quiet_s < math.inf]
        waits_s += [] if self.active or starting else [max(0.0, self._due_s - now_s)]
        happened = dict(poll.poll(1000 * min(waits_s)))
        with suppress(BlockingIOError):
            os.eventfd_read(self._wakes)
        for descriptor in happened.keys() & prints.keys():
            prints[descriptor].read_prints()
        if starting is not None and starting.lanes[0].socket.fileno() in happened:
            self._opened(starting)
        elif starting is not None and now_s > starting.began_s + self._policy.open_s:
            starting.kill(UNOPENED, f"did not open the variant within {self._policy.open_s:g} s, and was ended")
        for worker in workers:
            if worker.ended in happened:
                self._over(worker)

    def _opened(self, worker: WorkerProcess) -> None:
        worker.read_opened()
        with self._changed:
            if worker.opened is None or worker is not self._starting:  # its end follows
                return
            self._starting, self._has_opened = None, True
            if self.active is None:
                self.active = worker
            else:
                self.spare = worker
            self._changed.notify_all()

    def _over(self, worker: WorkerProcess) -> None:
        """Note the end of a worker, and let the spare take its place."""
        worker.reap()
        with self._changed:
            reason = UNOPENED if worker is self._starting else worker.reason
            self._ending = [each for each in self._ending if each is not worker]
            self._starting = None if worker is self._starting else self._starting
            self.spare = None if worker is self.spare else self.spare
            if worker is self.active:
                self.active, self.spare = self.spare, None
            if reason != RETIRED:
                words = f"; last words: {worker.last_words}" if worker.last_words else ""
                told = "" if self._has_opened else words  # callers get none, who need not be the device's owner
                error = VariantError(f"its worker process {worker.cause}{told}", transient=worker.reason == KILLED)
                self._failed(worker.problem or error, reason, worker, words)
            worker.over.set()
            self._changed.notify_all()

    def _failed(
        self, error: VariantError, reason: str, worker: WorkerProcess | None = None, last_words: str = ""
    ) -> None:
        """Note that a worker ended, or could not be started."""
        self.ends[reason] += 1
        now_s = time.monotonic()
        opening_s = min(worker.opening_s, now_s - worker.began_s) if worker else 0.0
        had_answered = worker is not None and any(lane.has_answered for lane in worker.lanes)
        with self._changed:
            self._problem = error
            self._due_s = self._restarts.ended(now_s, opening_s=opening_s, had_answered=had_answered)
            self.is_closed |= not self._has_opened
            self._changed.notify_all()
        if self._has_opened:
            wait_s = max(0.0, self._due_s - now_s)
            how = "another one runs" if self.active else f"the next one starts in {wait_s:.1f} s"
            log.warning("%s: %s (%s)%s; %s", self._name, error, reason, last_words, how)

    def _excess(self, worker: WorkerProcess) -> tuple[float, str]:
        """Return the memory of a worker in terms of its limit, and the words for its end."""
        taken, limit = worker.measured(), self._policy.limit_bytes(worker.opened_bytes)
        bound = f"its limit is {limit // MIB} MiB ([isolation] memory_mib)"
        return taken / limit, f"took {taken // MIB} MiB of memory, {bound}, and was ended"

    def _measure(self) -> None:
        """End workers that take too much memory, and the spare if memory is short."""
        for worker in self._ending:
            if not worker.busy:
                worker.kill(MEMORY, "")
        now_s = time.monotonic()
        if now_s < self._measured_s + CHECK_S:
            return
        self._measured_s = now_s
        for worker in filter(None, (self.active, self.spare)):
            excess, words = self._excess(worker)
            if excess > EXCESS or (excess > 1 and not worker.busy):
                worker.kill(MEMORY, words)
            elif excess > 1 and self.spare is not None:
                with self._changed:  # the spare runs from now on; this one ends after its runs
                    worker.reason, worker.cause = MEMORY, words
                    self._ending.append(worker)
                    self.active, self.spare = self.spare, None
        spare, active = self.spare, self.active
        if spare and active and not self._policy.holds_spare(active.memory_bytes, available_bytes(), there=True):
            with self._changed:
                self.spare = None
                self._ending.append(spare)
            spare.kill(RETIRED, "was ended: memory is short")


def _again(error: VariantError) -> VariantError:
    """Return a copy to raise: an error that is raised time and again keeps the frames, and inputs, of each time."""
    return VariantError(error.reason, remedy=error.remedy, transient=error.transient)


def _rows(said: Any) -> RowTensors | None:
    """Return the axes of rows that a worker says. Raises VariantError if they are none."""
    try:
        inputs = said and {
            str(name): RowInput(tuple(map(int, shape)), int(axis)) for name, shape, axis in said["inputs"]
        }
        return said and RowTensors(inputs, {str(name): int(axis) for name, axis in said["outputs"]})
    except (TypeError, ValueError, KeyError) as error:
        raise VariantError(f"its worker process answered garbage when it opened: {error}") from None
