"""Proof that every row of the outputs depends on the same row of the inputs and on nothing else of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter

from gateway.serving.domain.ports import RowInput, RowProof, RowTensors
from gateway.serving.domain.rows.graph import Attribute, Constant, Graph, ModelGraph, Node, Reference
from gateway.serving.domain.rows.rules import RANDOM, REASONS, RULES
from gateway.serving.domain.rows.sizes import ROWS, DependentRowsError, Symbols, size
from gateway.serving.domain.rows.values import SINGLE, Blocked, Operation, TensorScope, Value, constant_value, rowed

OLDEST_OPSET = 7
"""Before it, operands were aligned by attributes when they were broadcast."""
STEPS_LIMIT = 200_000
"""Most operators that one proof follows, those of bodies once for each time."""
DEPTH_LIMIT = 32
"""Most bodies and functions inside each other."""


def prove_rows(model: ModelGraph, tensors: RowTensors) -> RowProof:
    """Follow the rows of the inputs to the outputs. Never raises."""
    try:
        return _Proof(model).prove(tensors.inputs, tensors.outputs)
    except DependentRowsError as error:
        return RowProof(reason=str(error))
    except (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError) as error:  # a graph that is not valid
        return RowProof(reason=f"its graph could not be followed: {type(error).__name__}: {error}"[:200])


class _Proof:
    """Values of all tensors of one model."""

    def __init__(self, model: ModelGraph) -> None:
        self._model, self._symbols = model, Symbols()
        self._steps = self._depth = 0

    def prove(self, inputs: Mapping[str, RowInput], outputs: Mapping[str, int]) -> RowProof:
        """Return the result for outputs that need their rows on an axis."""
        scope = self.follow(inputs)
        for name, axis in outputs.items():
            value = scope.find(self._model.aliases.get(name, name))
            if isinstance(value, Blocked):
                return RowProof(value.operator, value.reason)
            if value.axis != axis or value.entries != SINGLE:
                return RowProof(reason=f"output {name!r:.80} {_rows_of(value, axis)}")
        return RowProof()

    def follow(self, inputs: Mapping[str, RowInput]) -> TensorScope:
        """Return the values of the graph's tensors. Raises DependentRowsError for a graph without rules."""
        if self._model.opsets.get("", OLDEST_OPSET) < OLDEST_OPSET:
            raise DependentRowsError(f"it is of an opset before {OLDEST_OPSET}")
        graph = self._model.graph
        inputs = {self._model.aliases.get(name, name): rows for name, rows in inputs.items()}
        if unknown := inputs.keys() - graph.inputs.keys():
            raise DependentRowsError(f"it has no input called {min(unknown)!r:.80}")
        scope = TensorScope({name: constant_value(self._symbols, each) for name, each in graph.constants.items()})
        for name, declared in graph.inputs.items():
            if name in inputs or name not in graph.constants:
                scope.values[name] = self._input(name, declared, inputs.get(name))
        self._follow(graph, scope, {})
        return scope

    def _input(self, name: str, declared: tuple[int | None, ...] | None, rows: RowInput | None) -> Value:
        """Return an input. Its sizes are those that requests may have, else those of the file."""
        if declared is None and rows is None:
            return Value()
        known = declared if declared is not None else (None,) * len(rows.shape if rows else ())
        stated = rows.shape if rows is not None and len(rows.shape) == len(known) else (-1,) * len(known)
        sizes = [
            size(fixed)
            if (fixed := own if own is not None else stated_size if stated_size >= 0 else None) is not None
            else self._symbols.dimension("input", name, place)
            for place, (own, stated_size) in enumerate(zip(known, stated, strict=True))
        ]
        if rows is None:
            return Value(tuple(sizes))
        if known[rows.axis] is not None:
            raise DependentRowsError(f"input {name!r:.80} takes {known[rows.axis]} rows")
        return rowed((*sizes[: rows.axis], ROWS, *sizes[rows.axis + 1 :]), rows.axis)

    def _follow(self, graph: Graph, scope: TensorScope, attributes: Mapping[str, Attribute]) -> None:
        for node in _ordered(graph):
            self._steps += 1
            if self._steps > STEPS_LIMIT:
                raise DependentRowsError(f"it has more than {STEPS_LIMIT} operators")
            try:
                made: Sequence[Value | Blocked] = self._results(node, scope, attributes)
            except DependentRowsError as error:
                made = [Blocked(error.operator or _label(node), str(error))] * len(node.outputs)
            scope.values.update(zip(node.outputs, made, strict=False))

    def _results(
        self, node: Node, scope: TensorScope, attributes: Mapping[str, Attribute]
    ) -> Sequence[Value | Blocked]:
        values = [scope.find(name) if name else None for name in node.inputs]
        if blocked := next((value for value in values if isinstance(value, Blocked)), None):
            return [blocked] * len(node.outputs)
        given = [value for value in values if not isinstance(value, Blocked)]
        own = {name: _resolved(each, attributes) for name, each in node.attributes.items()}
        if node.kind in {"Constant", "ai.onnx::Constant"}:
            return [self._constant(own)]

        def body(graph: Graph, fed: Mapping[str, Value]) -> list[Value]:
            return self._body(graph, fed, scope, attributes)

        opset = self._model.opsets.get("", OLDEST_OPSET)
        operation = Operation(node, given, opset, self._symbols, body, own)
        if node.kind in self._model.functions:
            function = self._model.functions[node.kind]
            fed = {name: each or Value() for name, each in zip(function.inputs, given, strict=False)}
            return self._body(function, fed, None, own)
        rule = RULES.get(node.kind)
        return rule(operation) if rule else self._without_rule(operation)

    def _without_rule(self, op: Operation) -> list[Value]:
        has_rows = any(value.axis is not None or value.counts_rows for value in op.inputs if value is not None)
        if has_rows or any(isinstance(each, Graph) for each in op.attributes.values()):
            raise DependentRowsError(REASONS.get(op.node.kind, "there is no rule for this operator"))
        if op.node.kind in RANDOM:
            raise DependentRowsError("its result is random")
        return [Value()] * len(op.node.outputs)

    def _constant(self, attributes: Mapping[str, Attribute]) -> Value:
        (found,) = attributes.values() or (None,)
        if isinstance(found, tuple):
            found = Constant((len(found),), found, floats=any(isinstance(each, float) for each in found))
        elif isinstance(found, int | float):
            found = Constant((), (found,), floats=isinstance(found, float))
        return constant_value(self._symbols, found) if isinstance(found, Constant) else Value()

    def _body(
        self, graph: Graph, fed: Mapping[str, Value], outer: TensorScope | None, attributes: Mapping[str, Attribute]
    ) -> list[Value]:
        """Follow a body or a function, and return its outputs. Raises with the operator that ended the proof."""
        self._depth += 1
        if self._depth > DEPTH_LIMIT:
            raise DependentRowsError(f"more than {DEPTH_LIMIT} bodies lie inside each other")
        for name, value in fed.items():  # ONNX Runtime holds a body to the sizes that it declares
            declared = graph.inputs.get(name)
            if value.axis is not None and declared and (*declared, None)[value.axis] is not None:
                raise DependentRowsError(f"its body declares {declared[value.axis]} rows of {name!r:.80}")
        try:
            constants = {name: constant_value(self._symbols, each) for name, each in graph.constants.items()}
            scope = TensorScope({**constants, **fed}, outer)
            self._follow(graph, scope, attributes)
            found = [scope.find(name) for name in graph.outputs]
        finally:
            self._depth -= 1
        for each in found:
            if isinstance(each, Blocked):
                raise DependentRowsError(each.reason, each.operator)
        return [each for each in found if isinstance(each, Value)]


def _resolved(attribute: Attribute, attributes: Mapping[str, Attribute]) -> Attribute:
    if not isinstance(attribute, Reference):
        return attribute
    if attribute.name not in attributes:
        raise DependentRowsError(f"the function's attribute {attribute.name!r:.80} is not known")
    return attributes[attribute.name]


def _label(node: Node) -> str:
    return (
        f"{node.kind} {node.name!r:.80}" if node.name else f"{node.kind} (output {next(iter(node.outputs), '')!r:.80})"
    )


def _rows_of(value: Value, axis: int) -> str:
    if value.axis is None:
        return "is the same for every number of rows"
    return f"has its rows on axis {value.axis}" if value.axis != axis else "has several entries for each row"


def _ordered(graph: Graph) -> Iterator[Node]:
    """Iterate over nodes so that each follows those whose results it uses, as bodies inside it do.

    Files need not have them in order. Raises CycleError, a ValueError.
    """
    makers = {name: place for place, node in enumerate(graph.nodes) for name in node.outputs if name}
    needed = {place: {makers[name] for name in _used(node) if name in makers} for place, node in enumerate(graph.nodes)}
    return (graph.nodes[place] for place in TopologicalSorter(needed).static_order())


def _used(node: Node) -> Iterator[str]:
    yield from node.inputs
    for attribute in node.attributes.values():
        if isinstance(attribute, Graph):
            yield from attribute.outputs
            for inner in attribute.nodes:
                yield from _used(inner)
