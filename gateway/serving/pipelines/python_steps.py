"""Steps with Python code: one process for each, which the gateway starts, asks, and ends. On the event loop.

The process is not trusted: what it says is bounded and checked, and a run that does not end in time ends it. One run at
a time: callers take turns, and a failure is that of the run under way.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gateway.common.domain.errors import Fault, RequestError, VariantError
from gateway.common.domain.events import RunFailed
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.pipeline import Pipeline, PythonStep
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.domain.infer import InferRequest, InferResponse
from gateway.serving.domain.ports import Sink
from gateway.serving.engine.caller_turns import CallerTurns
from gateway.serving.engine.context import EngineContext
from gateway.serving.engine.target import RequestTarget
from gateway.serving.pipelines.python_child import MESSAGE_BYTES, NUMBER, Entry
from gateway.serving.pipelines.python_process import (
    ARRAYS_BYTES,
    CHECK_S,
    CORES,
    NOTHING,
    PythonProcess,
    checked,
    give,
    take,
    without_rows,
)
from gateway.serving.pipelines.settings import PipelineSettings
from gateway.serving.runtimes.sandbox import SandboxError, lacking
from gateway.serving.tasks.frame import Frame

log = logging.getLogger(__name__)
Then = Callable[[PythonProcess, "PythonRun", Any], None]

LOOP_BYTES = 2**20
"""Most bytes that are copied on the event loop: about 0.3 ms."""
START_S, START_CPU_S = 20.0, 15.0
"""Time for a start, and its CPU time, after which one that computes without end is known as such."""
END_S = 1.0
"""Time that a process has to end by itself when its pipeline is closed."""
RESTARTS_S = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
"""Waits before a process is started again; the first one counts again after STEADY_S without a failure."""
STEADY_S = 60.0
PRINTS_S = 0.02
"""Pause between two readings of what it prints, of 64 KiB each: one that prints without end waits for that."""


def refuse_python(pipeline: Pipeline, settings: PipelineSettings) -> None:
    """Raise VariantError for a pipeline with Python code that the settings or this machine do not allow."""
    if not pipeline.python:
        return
    files = ", ".join(dict.fromkeys(step.file for step in pipeline.python))
    if not settings.python:
        remedy = "if you trust its author, set [pipelines] python = true"
        raise VariantError(f"it runs Python code ({files}), which is off here", remedy=remedy)
    try:
        lacking()
    except SandboxError as error:
        raise VariantError(f"it runs Python code ({files}): {error}", remedy="serve it on another machine") from None


def python_words(pipeline: Pipeline) -> str:
    """Return what is said of a pipeline with Python code, "" for others."""
    if not pipeline.python:
        return ""
    files = ", ".join(dict.fromkeys(step.file for step in pipeline.python))
    try:
        missing = lacking()
    except SandboxError as error:
        missing = (str(error),)
    return f"runs Python code of its release ({files}), {'in a sandbox' if not missing else '; '.join(missing)}"


def stream_of(request: InferRequest) -> bytes:
    """Return what code is told of a request's stream: its id, a key that no other caller has, START and END."""
    key = hashlib.blake2b(f"{request.caller}\0{request.stream}".encode(errors="replace"), digest_size=16).hexdigest()
    return json.dumps((request.stream, key, request.place)).encode()


@dataclass(slots=True, eq=False)
class PythonRun:
    """Request for a run. `left`: its answer is not awaited any more. `answered`: the process sent one."""

    request: InferRequest
    sink: Sink
    token: Any
    rows: int
    left: bool = False
    answered: bool = False

    def cancel(self) -> None:
        """Implement `Pending.cancel`."""
        self.left = True

    def refuse(self, error: RequestError) -> None:
        """Refuse the request."""
        if not self.left:
            self.left = True
            self.sink.refuse(self.token, error)
            self.sink.flush()


class PythonWorker:
    """The process of one step, started again when it ends: a target of the step's rows. Create it on the event loop."""

    def __init__(
        self,
        pipeline: Pipeline,
        step: PythonStep,
        manifest: ModelManifest,
        *,
        code: tuple[Path, bytes],
        context: EngineContext,
    ) -> None:
        self.step, self.manifest, self.rows = step, manifest, 0
        self._pipeline, self._context = pipeline, context
        self._folder, self._source = code
        self._loop, self._waiting = asyncio.get_running_loop(), CallerTurns[PythonRun]()
        self._process: PythonProcess | None = None
        self._run: PythonRun | None = None
        self._number = self._failures = 0
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._late_s = 0.0
        self._again: asyncio.TimerHandle | None = None
        self._begun: asyncio.Future[None] | None = None
        self._closed, self._problem = False, "it is starting"

    # ---- as a target -------------------------------------------------------------------------------------------------
    @property
    def ready(self) -> bool:
        """Return True if the process takes runs."""
        return self._process is not None and self._process.up

    @property
    def row_cpu_ns(self) -> int:
        """Return the mean CPU time of a row; 0 if it is not known."""
        process = self._process
        return max(0, process.cpu_ns - process.base_ns) // self.rows if process and process.up and self.rows else 0

    def away(self) -> RequestError:
        """Return the refusal of requests while there is no process that takes runs."""
        words = f"the process of {self.step.file} is away: {self._problem}"
        return RequestError(Fault.UNAVAILABLE, words, retry_after_s=self._context.settings.retry_after_s)

    def rows_together(self, row_bytes: int) -> int:
        """Return how many rows a run may have: images may differ in size, so each is one."""
        has_images = any(spec.preprocess for spec in self.manifest.inputs)
        return (
            1 if has_images else max(1, min(self._context.settings.max_batch_rows, ARRAYS_BYTES // max(1, row_bytes)))
        )

    def submit(
        self,
        request: InferRequest,
        sink: Sink,
        token: Any,
        _account: object = None,
        _frames: Sequence[Frame] = (),
    ) -> PythonRun:
        """Implement `Submission.submit`, for the rows of the step. Raises RequestError."""
        if not self.ready:
            raise self.away()
        first = next(iter(request.inputs.values())).array
        run = PythonRun(request, sink, token, len(first) if self.step.batch else 1)
        self._waiting.add(request.caller, run)
        self._next()
        return run

    # ---- the process -------------------------------------------------------------------------------------------------
    async def open(self) -> None:
        """Start the process and wait until it has loaded the code. Raises VariantError."""
        self._begun = self._loop.create_future()
        self._start()
        try:
            await self._begun
        finally:
            self._begun = None
        for words in lacking():
            log.warning("pipeline %s, step %s: its Python code has %s", self._pipeline.name, self.step.name, words)

    def adopt(self, manifest: ModelManifest) -> None:
        """Use inputs of other types, as of models that were replaced: the process begins again."""
        old, self.manifest = self.manifest, manifest
        if (old.inputs, old.outputs) != (manifest.inputs, manifest.outputs) and self._process is not None:
            self._kill(self._process, "its inputs changed")

    async def close(self) -> None:
        """Refuse what waits, and end the process."""
        self._closed, self._problem = True, "it was unloaded"
        for timer in filter(None, (self._again, self._timer, self._watch)):
            timer.cancel()
        self._refuse_all(self.away())
        if (process := self._process) is not None:
            self._process = None
            self._forget(process)
            process.control.close()
            late = self._loop.call_later(END_S, process.popen.kill)
            await process.gone.wait()
            late.cancel()

    def _start(self) -> None:
        self._again = None
        process: PythonProcess | None = None
        try:
            process = PythonProcess(self.step)
            os.pwrite(process.given, self._source, 0)
            process.control.send(json.dumps(self._document()).encode())
        except OSError as error:
            if process is not None:
                process.popen.kill()
                process.popen.wait()
                process.control.close()
            self._ended(f"could not be started: {error.strerror or error}", is_transient=True)
            return
        self._process = process
        process.grant_cpu(START_CPU_S / 2)
        self._loop.add_reader(process.control, self._heard, process)
        self._loop.add_reader(process.prints, self._printed, process)
        self._loop.add_reader(process.ended, self._reap, process)
        self._timer = self._loop.call_later(START_S, self._kill, process, f"did not start within {START_S:g} s")
        self._loop.call_later(CHECK_S, self._check, process)

    def _document(self) -> Mapping[str, Any]:
        """Return what the process is told when it starts."""
        specs = {"inputs": self.manifest.inputs, "outputs": self.manifest.outputs}
        tensors = {key: [(s.name, s.datatype.label, s.shape) for s in found] for key, found in specs.items()}
        step, rows = self.step, self._context.settings.max_batch_rows
        return {
            "file": step.file,
            "class": step.entry,
            "gateway": os.getpid(),
            "folder": str(self._folder),
            "source_bytes": len(self._source),
            "memory_bytes": step.memory_mib * 2**20,
            "parameters": dict(step.parameters),
            "single": "" in step.inputs,
            "batch": step.batch,
            "rows": rows,
            "name": self._pipeline.name,
            "version": self._pipeline.version,
            **tensors,
        }

    def _forget(self, process: PythonProcess) -> None:
        self._loop.remove_reader(process.control)
        self._loop.remove_reader(process.prints)

    def _printed(self, process: PythonProcess) -> None:
        """Read what was printed, then wait: what is printed without end must not take the event loop."""
        self._loop.remove_reader(process.prints)
        if not process.read_prints():
            return

        def again() -> None:
            if self._process is process and not process.cause:
                self._loop.add_reader(process.prints, self._printed, process)

        self._loop.call_later(PRINTS_S, again)

    def _kill(self, process: PythonProcess, cause: str, fault: Fault = Fault.INTERNAL) -> None:
        """Kill a process; `_reap` refuses its run and starts the next one."""
        if self._process is process and not process.cause:
            process.cause, process.fault, process.up = cause, fault, False
            self._forget(process)
            process.popen.kill()
            if fault is Fault.EXPIRED:  # its caller need not wait for the end
                self._fail(cause, fault)

    def _check(self, process: PythonProcess) -> None:
        """End a process that uses more than it may; look again as long as it is there."""
        if self._process is process and not process.cause:
            if words := process.excess():
                self._kill(process, words)
            else:
                self._loop.call_later(CHECK_S, self._check, process)

    def _reap(self, process: PythonProcess) -> None:
        """Note the end of a process."""
        self._loop.remove_reader(process.ended)
        process.popen.wait()
        process.answered = NOTHING  # it holds the process
        process.gone.set()
        if self._process is process:
            self._forget(process)
            process.read_prints()
            process.control.close()
            self._process = None
            self._ended(process.words, process.fault, lived_s=time.monotonic() - process.began_s)

    def _ended(
        self, words: str, fault: Fault = Fault.INTERNAL, *, lived_s: float = 0.0, is_transient: bool = False
    ) -> None:
        """Refuse what was under way and what waits, and start again later."""
        if self._timer is not None:
            self._timer.cancel()
        self._problem = words
        self._fail(words, fault)
        self._refuse_all(self.away())
        if self._begun is not None and not self._begun.done():
            is_transient = is_transient or words.startswith(("did not start", "closed its"))
            self._begun.set_exception(
                VariantError(f"step '{self.step.name}': {self.step.file} {words}", transient=is_transient)
            )
            return
        if self._closed:
            return
        self._failures = 0 if lived_s > STEADY_S else self._failures
        wait_s = RESTARTS_S[min(self._failures, len(RESTARTS_S) - 1)]
        self._failures += 1
        reason = f"step '{self.step.name}': {self.step.file} {words}; started again in {wait_s:g} s"
        self._context.publish(RunFailed(self._pipeline.name, self._pipeline.version, self.step.file, reason))
        self._again = self._loop.call_later(wait_s, self._start)

    def _fail(self, words: str, fault: Fault) -> None:
        if (run := self._run) is not None:
            self._run = None
            error = RequestError(fault, f"{self.step.file} {words}", in_run=fault is not Fault.OVERLOADED)
            self._loop.call_soon(run.refuse, error)  # `submit` may be under way

    def _refuse_all(self, error: RequestError) -> None:
        if (run := self._run) is not None:
            self._run = None
            run.refuse(error)
        while self._waiting:
            self._waiting.take()[1].refuse(error)

    # ---- runs --------------------------------------------------------------------------------------------------------
    def _next(self) -> None:
        """Begin the next run, if there is one and none is under way."""
        process = self._process
        while self._run is None and process is not None and process.up and self._waiting:
            _, run = self._waiting.take()
            if run.left:
                continue
            self._run = run
            self._number += 1
            limit_s = self._context.settings.run_limit_s
            process.grant_cpu(limit_s * CORES)
            self._late_s = self._loop.time() + limit_s
            if self._watch is None:
                self._watch = self._loop.call_at(self._late_s, self._watched)
            arrays = [without_rows(run.request.inputs[spec.name].array, spec) for spec in self.manifest.inputs]
            work = partial(give, process, self.manifest.inputs, arrays)
            self._copied(sum(array.nbytes for array in arrays), run, work, self._given)

    def _copied(self, size: int, run: PythonRun, work: Callable[[], Any], then: Then) -> None:
        """Copy arrays here, or on a thread if there are many, then go on with `then` if the run is still under way."""
        if size <= LOOP_BYTES:
            self._go_on(run, work, then)
            return
        try:
            future = self._context.preparing.submit_for(
                run.request.caller, lambda: work() if self._run is run else None
            )
        except RuntimeError as error:
            self._fail(f"gets no thread to copy its arrays ({error})", Fault.OVERLOADED)
            self._loop.call_soon(self._next)
            return
        # of its argument: a callback that holds the future keeps the arrays until the next collection
        future.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._go_on, run, done.result, then))

    def _go_on(self, run: PythonRun, work: Callable[[], Any], then: Then) -> None:
        """Go on with a run if it is still under way; a failure is that of the run."""
        process = self._process
        if self._run is not run or process is None:
            return
        try:
            then(process, run, work())
        except Exception as error:  # noqa: BLE001  one run's boundary
            refusal = error if isinstance(error, RequestError) else RequestError(Fault.INTERNAL, f"failed: {error}")
            if self._run is run:
                self._run = None
            self._loop.call_soon(run.refuse, refusal)  # `submit` may be under way
            self._loop.call_soon(self._next)

    def _watched(self) -> None:
        """End the process of a run that takes too long. One timer watches all runs: most end long before it."""
        self._watch = None
        if self._run is None or (process := self._process) is None:
            return
        if self._loop.time() < self._late_s:
            self._watch = self._loop.call_at(self._late_s, self._watched)
            return
        limit_s = self._context.settings.run_limit_s
        words = f"took longer than a run may ([limits] run_limit_s, {limit_s:g} s), and was ended"
        self._kill(process, words, Fault.EXPIRED)

    def _given(self, process: PythonProcess, run: PythonRun, entries: list[Entry]) -> None:
        if process.up:
            if process.asked[0] != entries:  # most runs are of the shapes of the one before
                process.asked = entries, json.dumps(entries).encode()
            stream = b"\n" + stream_of(run.request) if self.step.stream else b""
            with suppress(OSError):  # it has ended: `_reap` says how
                process.control.send(NUMBER.pack(self._number) + process.asked[1] + stream)

    def _heard(self, process: PythonProcess) -> None:
        """Read one message of the process."""
        try:
            message = process.control.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._forget(process)
            process.up = False
            self._loop.call_later(END_S, process.popen.kill)  # it ends, or has closed its side only
            return
        try:
            if not process.up:
                self._started(process, json.loads(message))
            else:
                self._answered(process, message[: NUMBER.size], message[NUMBER.size :])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self._kill(process, f"sent what is no answer ({type(error).__name__}: {error!s:.200}), and was ended")

    def _started(self, process: PythonProcess, said: Any) -> None:
        if "problem" in said:
            self._kill(process, f"failed at its start: {str(said['problem'])[:1_500]}")
            return
        if said != {"ready": True}:
            raise ValueError("it is not ready")
        process.up, process.base_ns, self.rows, process.granted_until_s = True, process.cpu_ns, 0, 0.0
        process.grant_cpu(self._context.settings.run_limit_s * CORES)
        if self._timer is not None:
            self._timer.cancel()
        if self._begun is not None and not self._begun.done():
            self._begun.set_result(None)

    def _answered(self, process: PythonProcess, number: bytes, body: bytes) -> None:
        run = self._run
        if run is None or number != NUMBER.pack(self._number) or run.answered:
            raise ValueError("no run is under way")
        run.answered = True
        rows = run.rows if self.step.batch else None
        if process.answered[:2] == (body, rows):
            self._copied(process.answered[3], run, process.answered[2], self._answer)
            return
        said = json.loads(body)
        if "error" in said:
            fault = Fault[str(said["fault"])]
            self._run = None
            if said.get("over"):
                self._kill(process, f"had no memory left (memory_mib = {self.step.memory_mib})")
            run.refuse(RequestError(fault, f"{self.step.file}: {str(said['error'])[:1_500]}", in_run=True))
            self._next()
            return
        entries = checked(self.manifest.outputs, said["outputs"], rows)
        size = sum(size for _, size in entries)
        has_texts = any(spec.datatype is Datatype.BYTES for spec in self.manifest.outputs)
        work = partial(take, process, self.manifest.outputs, entries)
        process.answered = body, rows, work, size * (8 if has_texts else 1)
        self._copied(process.answered[3], run, work, self._answer)

    def _answer(self, _process: PythonProcess, run: PythonRun, outputs: dict[str, Tensor]) -> None:
        self._run = None
        self.rows += run.rows
        self._next()
        if not run.left:
            run.left = True
            run.sink.answer(run.token, InferResponse(self.manifest.name, "", run.request.id, outputs))
            run.sink.flush()


StepTarget = RequestTarget | PythonWorker
"""What the rows of a step are given to: a model's target, or the process of Python code."""
