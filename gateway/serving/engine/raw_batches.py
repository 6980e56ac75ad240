"""Raw requests of one form, collected during a pass of the event loop and run at its end.

For a model with short runs, small requests cost more as objects than the runs do. Here their contents remain bytes:
they are joined once for each run, and the outputs are cut once for each answer. Requests with special properties
(priority, classification, images) are not taken, and none is while others wait in the queue. A request that a batch
cannot answer at once is returned to its sink, which submits it as an `InferRequest`: bad data, a deadline that passed,
a run that failed, a batch that was closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic_ns
from typing import Any

import numpy as np

from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import CONVERTED, Array, Datatype, Raw, Tensors
from gateway.serving.domain.infer import InferRequest, ResponseForm
from gateway.serving.domain.ports import RawSink
from gateway.serving.engine.admission import Form
from gateway.serving.engine.answers import AnswerDelivery
from gateway.serving.engine.queue import Queue
from gateway.serving.engine.run import Entry, Runner
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
RanRaw = tuple[Form, int, int, int]
"""A run that was answered: its form, when it began, the time of the model, when it ended (monotonic ns)."""


class OpenRawBatch:
    """Requests of one form that wait. Implements `domain.ports.RawBatch`. `limit` is 0 once it is closed."""

    __slots__ = ("_inputs", "_queue", "_ready", "ends_ns", "entries", "form", "limit", "outputs", "response", "shapes")

    def __init__(
        self, form: Form, request: InferRequest, queue: Queue, ready: Callable[[OpenRawBatch], None], limit: int
    ) -> None:
        self.form, self.limit = form, limit
        self._queue, self._ready = queue, ready
        tensors = [(name, each.array) for name, each in request.inputs.items()]
        self._inputs = [(name, array.shape, array.dtype, array.nbytes) for name, array in tensors]
        self.outputs = [output.name for output in form.outputs]
        self.entries: list[Entry] = []
        self.ends_ns = NEVER_NS
        self.response = ResponseForm("", "", ())
        self.shapes: list[tuple[int, ...]] = []
        """Shapes of outputs for which `response` was made."""

    def add(self, sink: RawSink, token: Any, contents: Sequence[Raw], now_ns: int, ends_ns: int | None) -> bool:
        """Implement `RawBatch.add`."""
        entries = self.entries
        if len(entries) >= self.limit or self._queue.length:
            return False
        if ends_ns is None:
            if not entries:
                self.ends_ns = NEVER_NS
                self._ready(self)
        elif ends_ns <= now_ns:
            return False
        elif not entries or ends_ns < self.ends_ns:
            self.ends_ns = ends_ns
            if not entries:
                self._ready(self)
        entries.append((sink, token, contents, now_ns))
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
        for index, (name, shape, dtype, size) in enumerate(self._inputs):
            # An array over the bytes costs no copy: one request costs none, several cost the one of join.
            raw = entries[0][2][index] if count == 1 else b"".join([entry[2][index] for entry in entries])
            if len(raw) != size * count:
                raise ValueError(f"input '{name}' has {len(raw)} bytes")
            array = np.ndarray((shape[0] * count, *shape[1:]) if count > 1 else shape, dtype, raw)
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

    def run(self, now_ns: int, most_rows: int) -> RanRaw | None:
        """Run the first batch's first requests, of `most_rows` at most or one. None if they are submitted again."""
        batch = self.waiting[0]
        form, entries = batch.form, batch.entries
        most = max(1, most_rows // form.rows) if form.stacks else 1
        if len(entries) > most:
            entries = batch.take(most)
        else:
            batch.entries = []
            self.waiting.popleft()
        run = self._run(batch, entries, now_ns) if batch.limit and batch.ends_ns > now_ns else None
        if run is None:
            self._submit_again(entries)
        return run

    def _collects(self, batch: OpenRawBatch) -> None:
        self.waiting.append(batch)
        self._ready()

    def _run(self, batch: OpenRawBatch, entries: list[Entry], began_ns: int) -> RanRaw | None:
        form, count = batch.form, len(entries)
        try:
            inputs = batch.stacked(entries)
            if form.finite and not all(np.isfinite(inputs[name]).all() for name in form.finite):
                return None
            gathered_ns = monotonic_ns()
            outputs, ran_ns = self._runner.compute(inputs, form.rows * count if count > 1 else 0)
            contents = self._cut(batch, outputs, count)
        except Exception:  # noqa: BLE001  a run's boundary: submitted again, each request gets an answer to any error
            return None
        if contents is None:
            return None
        ended_ns = monotonic_ns()
        self._answers.deliver_raw(
            (form.rows, entries, began_ns, gathered_ns, ran_ns, ended_ns), batch.response, contents
        )
        return form, began_ns, ran_ns - gathered_ns, ended_ns

    def _cut(self, batch: OpenRawBatch, outputs: Tensors, count: int) -> Sequence[Sequence[Raw]] | None:
        """Return each request's contents, and set the response's form. Close the batch if they are irregular."""
        shapes, columns = [], []
        for name in batch.outputs:
            array, datatype = outputs[name], self._datatypes[name]
            # What is irregular once would be so again: this form is answered by objects from now on.
            if array.dtype != datatype.dtype or not array.size:
                batch.form.raw = False
                batch.close()
                self._batches.pop(batch.form, None)
                return None
            shapes.append((batch.form.rows, *array.shape[1:]) if count > 1 else array.shape)
            columns.append([array.tobytes()] if count == 1 and array.nbytes < IN_PLACE_BYTES else _cut(array, count))
        if batch.shapes != shapes:
            named = zip(batch.outputs, shapes, strict=True)
            batch.response = self._response(tuple((name, self._datatypes[name], shape) for name, shape in named))
            batch.shapes = shapes
        return columns if count == len(columns) == 1 else list(zip(*columns, strict=True))

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
        return [raw]
    size = len(raw) // count
    return [raw[place : place + size] for place in range(0, len(raw), size)]
