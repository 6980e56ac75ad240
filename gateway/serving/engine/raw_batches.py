"""Raw requests of one form, collected during a pass of the event loop and run at its end.

For a model with short runs, small requests cost more as objects than the runs do. Here their contents remain bytes:
they are joined once for each run, and the outputs are cut once for each answer. Requests with special properties
(priority, classification, images) are not taken, and none is while others wait in the queue. A request that a batch
cannot answer at once is returned to its sink, which submits it as an `InferRequest`: bad data, a deadline that passed,
a run that failed, a batch that was closed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import CONVERTED, Array, Datatype, Raw, Tensors
from gateway.serving.domain.infer import InferRequest, ResponseForm
from gateway.serving.domain.ports import RawSink
from gateway.serving.engine.admission import Form
from gateway.serving.engine.answers import AnswerDelivery
from gateway.serving.engine.queue import Queue
from gateway.serving.engine.run import Entry, RawRun, Runner
from gateway.serving.engine.settings import EngineSettings

REQUESTS_LIMIT = 256
"""Most requests of a batch: as many as sockets are read in one pass."""
IN_PLACE_BYTES = 16 * 1024
"""Size from which outputs are cut in place rather than copied: copying less costs less than memoryviews."""
RESPONSES_LIMIT = 64
"""Forms of responses that are kept: shapes of outputs may depend on the data."""
NEVER_NS = 2**63
Outputs = tuple[tuple[str, Datatype, tuple[int, ...]], ...]
"""Name, datatype and shape of each output."""


class OpenRawBatch:
    """Requests of one form that wait. Implements `domain.ports.RawBatch`. `limit` is 0 once it is closed."""

    __slots__ = ("_inputs", "_queue", "_ready", "ends_ns", "entries", "form", "limit", "response")

    def __init__(
        self, form: Form, request: InferRequest, queue: Queue, ready: Callable[[OpenRawBatch], None], limit: int
    ) -> None:
        self.form, self.limit = form, limit
        self._queue, self._ready = queue, ready
        self._inputs = [(name, each.array.shape, each.array.dtype) for name, each in request.inputs.items()]
        self.entries: list[Entry] = []
        self.ends_ns = NEVER_NS
        self.response = ResponseForm("", "", ())

    def add(self, sink: RawSink, token: Any, contents: Sequence[Raw], now_ns: int, ends_ns: int | None) -> bool:
        """Implement `RawBatch.add`."""
        entries = self.entries
        if len(entries) >= self.limit or self._queue.length or (ends_ns is not None and ends_ns <= now_ns):
            return False
        if not entries:
            self.ends_ns = NEVER_NS
            self._ready(self)
        entries.append((sink, token, contents, now_ns))
        if ends_ns is not None and ends_ns < self.ends_ns:
            self.ends_ns = ends_ns
        return True

    def close(self) -> None:
        """Accept no further requests, and hold nothing of the servable: patterns of the frontend keep this object."""
        self.limit, self._ready = 0, _closed

    def take(self, count: int) -> list[Entry]:
        """Remove and return the first `count` requests."""
        taken, self.entries = self.entries[:count], self.entries[count:]
        return taken

    def stacked(self, entries: Sequence[Entry]) -> Tensors:
        """Return the inputs of a run of these requests. Raises ValueError if one has a wrong size."""
        count, inputs = len(entries), {}
        columns = zip(*[entry[2] for entry in entries], strict=True)
        for (name, shape, dtype), column in zip(self._inputs, columns, strict=True):
            whole = (shape[0] * count, *shape[1:]) if count > 1 else shape
            # frombuffer copies nothing, so one request costs no copy; several cost the one of join.
            array = np.frombuffer(column[0] if count == 1 else b"".join(column), dtype).reshape(whole)
            inputs[name] = array if array.flags.aligned else array.copy()  # only the first input of a large message is
        return inputs


class RawBatches:
    """Batches of one servable. `waiting` are those with requests, in the order in which they run."""

    def __init__(
        self,
        manifest: ModelManifest,
        settings: EngineSettings,
        answers: AnswerDelivery,
        *,
        runner: Runner,
        queue: Queue,
        ready: Callable[[], None],
    ) -> None:
        self._manifest, self._runner, self._queue, self._answers = manifest, runner, queue, answers
        self._settings, self._ready = settings, ready
        self._datatypes = {spec.name: spec.datatype for spec in manifest.outputs}
        self._plain = not any(spec.datatype in CONVERTED for spec in (*manifest.inputs, *manifest.outputs))
        self._batches: dict[Form, OpenRawBatch] = {}
        self._responses: dict[Outputs, ResponseForm] = {}
        self.waiting: deque[OpenRawBatch] = deque()

    def of(self, request: InferRequest, form: Form) -> OpenRawBatch | None:
        """Return the batch for requests like `request`, which has `form`; None if they must be submitted."""
        usual = form.raw and form.plain and not (form.costly or form.encoded or request.priority)
        if not (usual and self._plain) or self._queue.policy == "latest":
            return None
        batch = self._batches.get(form)
        if batch is None:
            if len(self._batches) >= self._settings.forms:
                self.close()
            limit = max(1, min(self._settings.turn_us * 1000 // max(1, form.cost_ns), REQUESTS_LIMIT))
            batch = self._batches[form] = OpenRawBatch(form, request, self._queue, self._collects, limit)
        return batch

    def close(self) -> None:
        """Close all batches: their requests are submitted again, and further ones are not taken."""
        for batch in self._batches.values():
            batch.close()
        self._batches.clear()

    def give_back(self) -> None:
        """Close all batches, and submit their requests again now."""
        self.close()
        while self.waiting:
            self._submit_again(self.waiting.popleft().take(REQUESTS_LIMIT))

    def run(self, now_ns: int, most_rows: int) -> RawRun | None:
        """Run the first batch's first requests, of `most_rows` at most or one. None if they are submitted again."""
        batch = self.waiting[0]
        entries = batch.take(max(1, most_rows // batch.form.rows) if batch.form.stacks else 1)
        if not batch.entries:
            self.waiting.popleft()
        run = None
        if batch.limit and batch.ends_ns > now_ns:
            run = self._run(batch, entries)
        if run is None:
            self._submit_again(entries)
        return run

    def _collects(self, batch: OpenRawBatch) -> None:
        self.waiting.append(batch)
        self._ready()

    def _run(self, batch: OpenRawBatch, entries: Sequence[Entry]) -> RawRun | None:
        form, count, clock = batch.form, len(entries), time.monotonic_ns
        began_ns = clock()
        try:
            inputs = batch.stacked(entries)
            if form.finite and not all(np.isfinite(inputs[name]).all() for name in form.finite):
                return None
            gathered_ns = clock()
            outputs, ran_ns = self._runner.compute(inputs, form.rows * count if count > 1 else 0)
            contents = self._cut(batch, outputs, count)
        except Exception:  # noqa: BLE001  a run's boundary: submitted again, each request gets an answer to any error
            return None
        if contents is None:
            return None
        run = RawRun(form, [entry[3] for entry in entries], began_ns, gathered_ns, ran_ns, clock())
        self._answers.deliver_raw(run, entries, batch.response, contents)
        return run

    def _cut(self, batch: OpenRawBatch, outputs: Tensors, count: int) -> Iterable[Sequence[Raw]] | None:
        """Return each request's contents, and set the response's form. Close the batch if they are irregular."""
        described, columns = [], []
        for output in batch.form.outputs:
            array, datatype = outputs[output.name], self._datatypes[output.name]
            # What is irregular once would be so again: this form is answered by objects from now on.
            if array.dtype != datatype.dtype or not array.size:
                batch.form.raw = False
                batch.close()
                self._batches.pop(batch.form, None)
                return None
            shape = (batch.form.rows, *array.shape[1:]) if count > 1 else array.shape
            described.append((output.name, datatype, shape))
            columns.append(_cut(array, count))
        if batch.response.outputs != (form := tuple(described)):
            batch.response = self._response(form)
        return list(zip(*columns, strict=True))

    def _response(self, outputs: Outputs) -> ResponseForm:
        """Return the form of responses with these outputs: the same one as before, for front ends keep templates."""
        response = self._responses.get(outputs)
        if response is None:
            if len(self._responses) >= RESPONSES_LIMIT:
                self._responses.clear()
            name, version, variant = self._manifest.name, self._manifest.version, self._answers.variant
            response = ResponseForm(name, version, outputs, variant)
            self._responses[outputs] = response
        return response

    def _submit_again(self, entries: Iterable[Entry]) -> None:
        self._answers.submit_again((sink, token) for sink, token, _, _ in entries)


def _closed(_: OpenRawBatch) -> None:
    """Take the place of a closed batch's callback."""


def _cut(array: Array, count: int) -> Sequence[Raw]:
    """Return the bytes of an array in `count` equal parts."""
    copied = array.nbytes < IN_PLACE_BYTES or not array.flags.c_contiguous
    raw: Raw = array.tobytes() if copied else array.data.cast("B")
    if count == 1:
        return (raw,)
    size = len(raw) // count
    return [raw[place : place + size] for place in range(0, len(raw), size)]
