"""Admission control: the check of a request against the manifest before the request uses resources.

Each form of request is checked once. Every refusal is a RequestError that names the tensor, the value that was sent and
the value that is expected.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec, fits
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.domain.infer import InferRequest, RequestedOutput
from gateway.serving.domain.sizes import check_answer, least_answer_bytes
from gateway.serving.engine.cost import Cost

Signature = tuple[tuple[str, Datatype, tuple[int, ...]], ...]
"""Conditions for stacking the rows of two requests: equal names, datatypes, and shapes without the rows."""


@dataclass(slots=True, eq=False)
class Form:
    """Properties that all requests of one form share after admission.

    A form is names, datatypes, shapes and requested outputs. `rows`: rows that a request adds to a batch (1 if the
    model has no batch dimension). `finite`: inputs without NaN or infinity. `encoded`: inputs with images that are not
    decoded yet. `cost_ns`: duration of a run whose first request has this form, learned from runs (0: not yet known).
    `costly`: such a run is too long for the event loop. `stacks`: its rows may share a run. `raw`: outputs are sent as
    they are in memory. `interpreted`: results of the model's task are requested.
    """

    rows: int
    signature: Signature
    outputs: tuple[RequestedOutput, ...]
    plain: bool
    finite: tuple[str, ...]
    encoded: tuple[TensorSpec, ...]
    cost_ns: int = 0
    costly: bool = False
    stacks: bool = True
    raw: bool = True
    interpreted: bool = False

    def joins(self, other: Form) -> bool:
        """Return True if rows of both forms can be stacked and stacking pays."""
        return self.stacks and (self.signature is other.signature or self.signature == other.signature)


class DefaultInputs:
    """Inputs that a request may leave out: the manifest has a value for all their elements.

    Remembers the tensor of each for the last number of rows.
    """

    def __init__(self, manifest: ModelManifest) -> None:
        self._batched = manifest.batched
        self.specs = tuple(spec for spec in manifest.inputs if spec.default is not None)
        self._tensors: dict[str, Tensor] = {}

    def rows_needed(self, request: InferRequest) -> int:
        """Return the rows of the inputs that a request leaves out: those of its others; 0 if it has all.

        A model without rows gets 1 where the first dimension is open.
        """
        if all(spec.name in request.inputs for spec in self.specs):
            return 0
        sent = (tensor.array.shape[0] for tensor in request.inputs.values() if tensor.array.ndim)
        return max(1, next(sent, 1)) if self._batched else 1

    def complete(self, request: InferRequest, rows: int) -> InferRequest:
        """Return the request with the inputs that it leaves out, in `rows` rows."""
        missing = [spec for spec in self.specs if spec.name not in request.inputs]
        return replace(request, inputs={**request.inputs, **{spec.name: self._tensor(spec, rows) for spec in missing}})

    def _tensor(self, spec: TensorSpec, rows: int) -> Tensor:
        shape = tuple(rows if size < 0 else size for size in spec.shape)
        known = self._tensors.get(spec.name)
        if known is None or known.array.shape != shape:
            array = np.full(shape, spec.default, spec.datatype.dtype)
            array.flags.writeable = False  # requests share it
            known = self._tensors[spec.name] = Tensor(spec.datatype, array)
        return known


class Admission:
    """Check of requests for one model version. Remembers the last `forms` forms that passed."""

    def __init__(self, manifest: ModelManifest, cost: Cost, *, max_batch_rows: int, forms: int) -> None:
        self._manifest, self._cost, self._max_batch_rows, self._limit = manifest, cost, max_batch_rows, forms
        self._forms: dict[object, Form] = {}
        self._defaults = DefaultInputs(manifest)

    def complete(self, request: InferRequest) -> InferRequest:
        """Return the request with the inputs that it leaves out and the manifest has a value for; itself if none.

        Raises RequestError INVALID for more rows than are served: the values take memory that the caller did not send.
        """
        if not self._defaults.specs or not (rows := self._defaults.rows_needed(request)):
            return request
        if rows > self._max_batch_rows:
            raise _invalid(self._manifest, _rows_problem({rows}, self._max_batch_rows, self._manifest))
        return self._defaults.complete(request, rows)

    def reprice(self, cost: Cost) -> None:
        """Use another cost from now on, and check known forms again."""
        self._cost = cost
        self._forms.clear()

    def check(self, request: InferRequest) -> None:
        """Refuse what `form` would refuse, except for the contents. Raises RequestError INVALID."""
        admit(self.complete(request), self._manifest, self._max_batch_rows)

    def form(self, request: InferRequest) -> Form:
        """Return the form of a request that may run. Raises RequestError INVALID."""
        key: object
        if len(request.inputs) == 1:
            ((name, tensor),) = request.inputs.items()
            key = name, tensor.datatype, tensor.array.shape
        else:
            key = tuple([(name, tensor.datatype, tensor.array.shape) for name, tensor in request.inputs.items()])
        if request.outputs:
            key = key, *[(output.name, output.classification) for output in request.outputs]
        form = self._forms.get(key)
        if form is None:
            form = self._admit(request)
            if len(self._forms) >= self._limit:
                del self._forms[next(iter(self._forms))]
            self._forms[key] = form
        for name in form.finite:
            if not np.isfinite(request.inputs[name].array).all():
                raise _invalid(self._manifest, f"input '{name}' holds NaN or infinity, which this model refuses")
        return form

    def _admit(self, request: InferRequest) -> Form:
        form = admit(request, self._manifest, self._max_batch_rows)
        cost = self._cost
        row_bytes = sum(tensor.array.nbytes for tensor in request.inputs.values()) // form.rows
        form.stacks = form.stacks and cost.stacking_pays(row_bytes)
        if cost.limit_ns:
            form.cost_ns = 0 if cost.opened else cost.expected_ns(form.rows)
            form.costly = cost.opened or cost.too_costly(form.cost_ns, before=True)
        return form


def admit(request: InferRequest, manifest: ModelManifest, max_batch_rows: int) -> Form:
    """Check names, datatypes, shapes, rows and requested outputs: the properties that equal forms share.

    A request for a bare model runs alone in three cases. Its inputs differ in their rows (the graph may broadcast
    them), it has no rows, or it has more than `max_batch_rows`. No author stated what the first dimension counts.
    Raises RequestError INVALID, TOO_LARGE if the declared outputs exceed the largest answer.
    """
    wanted = {spec.name for spec in manifest.inputs}
    for name in request.inputs.keys() - wanted:
        raise _invalid(manifest, f"unexpected inference input '{name:.200}'; the inputs are {_listed(wanted)}")
    for name in sorted(wanted - request.inputs.keys()):
        raise _invalid(manifest, f"input '{name}' is missing; the inputs are {_listed(wanted)}")
    rows = {_check_tensor(spec, request.inputs[spec.name], manifest) for spec in manifest.inputs}
    if not manifest.batched:
        rows = {1}
    count, joins = max(rows), len(rows) == 1 and 1 <= max(rows) <= max_batch_rows
    if not joins and not manifest.inspected:
        raise _invalid(manifest, _rows_problem(rows, max_batch_rows, manifest))
    outputs = _outputs(request, manifest)
    interpreted = not {output.name for output in outputs}.isdisjoint(manifest.answered)
    placed = {output.name for output in request.outputs if output.destination is not None}
    whole = {output.name for output in outputs if not output.classification} - placed
    sent = [spec for spec in manifest.outputs if spec.name in whole]
    check_answer(least_answer_bytes(sent, count if manifest.batched and not manifest.inspected else None))
    tensors = [(spec, request.inputs[spec.name]) for spec in manifest.inputs]
    encoded = tuple(spec for spec, tensor in tensors if is_encoded(spec, tensor))
    return Form(
        rows=max(1, count),
        signature=tuple(
            (spec.name, tensor.datatype, tensor.array.shape[1 if joins else 0 :]) for spec, tensor in tensors
        ),
        outputs=outputs,
        plain=not (interpreted or any(output.classification for output in outputs)),
        finite=tuple(spec.name for spec, tensor in tensors if spec.finite and tensor.array.dtype.kind == "f"),
        encoded=encoded,
        stacks=joins,
        interpreted=interpreted,
    )


def _rows_problem(rows: set[int], most: int, manifest: ModelManifest) -> str:
    if len(rows) > 1:
        return f"the inputs differ in their first dimension (rows): {sorted(rows)}"
    is_own = most == manifest.max_batch_rows
    where = "max_batch_size in config.pbtxt, max_batch_rows in a manifest" if is_own else "[limits] max_batch_rows"
    return f"batch of {max(rows)} rows; between 1 and {most} are served ({where})"


def is_encoded(spec: TensorSpec, tensor: Tensor) -> bool:
    """Return True if the tensor holds encoded images or recordings and the input declares how to decode them."""
    return tensor.datatype is Datatype.BYTES and spec.takes_encoded


def _check_tensor(spec: TensorSpec, tensor: Tensor, manifest: ModelManifest) -> int:
    shape = tensor.array.shape
    if is_encoded(spec, tensor):
        if len(shape) not in {1, 2} or (len(shape) == 2 and shape[1] != 1):
            raise _invalid(
                manifest, f"encoded contents for input '{spec.name}' need the shape [n] or [n,1], not {list(shape)}"
            )
        if spec.shape[0] not in {ROWS, shape[0]}:
            raise _invalid(manifest, f"input '{spec.name}' takes {spec.shape[0]} encoded contents, not {shape[0]}")
        return int(shape[0])
    if tensor.datatype is not spec.datatype:
        raise _invalid(
            manifest, f"input '{spec.name}' has datatype {tensor.datatype.label}, expected {spec.datatype.label}"
        )
    if not fits(shape, spec.shape):
        raise _invalid(manifest, f"input '{spec.name}' has shape {list(shape)}, expected {list(spec.shape)}")
    return int(shape[0]) if shape else 1


def _outputs(request: InferRequest, manifest: ModelManifest) -> tuple[RequestedOutput, ...]:
    if not request.outputs:
        return tuple(RequestedOutput(name) for name in manifest.answered or [spec.name for spec in manifest.outputs])
    known = {spec.name: spec for spec in manifest.outputs}
    seen: set[str] = set()
    for output in request.outputs:
        if output.name not in known:
            raise _invalid(
                manifest, f"unexpected inference output '{output.name:.200}'; the outputs are {_listed(set(known))}"
            )
        datatype = known[output.name].datatype
        if output.classification and datatype in {Datatype.BYTES, Datatype.BOOL}:
            raise _invalid(manifest, f"output '{output.name}' is {datatype.label}: no scores to classify")
        if output.name in seen:
            raise RequestError(Fault.INVALID, f"output '{output.name}' already exists in request")
        seen.add(output.name)
    return tuple(RequestedOutput(output.name, output.classification) for output in request.outputs)


def _listed(names: set[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


def _invalid(manifest: ModelManifest, problem: str) -> RequestError:
    return RequestError(Fault.INVALID, f"model '{manifest.name}' version {manifest.version}: {problem} (EG-504)")
