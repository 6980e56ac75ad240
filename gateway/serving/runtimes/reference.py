"""Reference runtime: a small graph of numpy operators from one npz, correct rather than fast, without any engine.

File format: an npz without pickles. `graph` is UTF-8 JSON as uint8: {"inputs": [{"name", "datatype", "shape"}],
"outputs": […], "nodes": [{"op", "inputs", "outputs", "attributes"}]}, nodes in order of evaluation. Every other key is
the name of a weight.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gateway.common.domain.errors import VariantError
from gateway.common.domain.inventory import CPU
from gateway.common.domain.manifest import ModelManifest, TensorSpec, Variant
from gateway.common.domain.tensor import DATATYPES, Array
from gateway.common.domain.verdict import SessionBudget, Signature
from gateway.serving.domain.ports import RowProof, RowTensors, Session
from gateway.serving.domain.rows import graph as rows
from gateway.serving.domain.rows.proof import prove_rows
from gateway.serving.runtimes.binding import Port
from gateway.serving.runtimes.installed import require
from gateway.serving.runtimes.opening import check_accelerator, existing, model_file, read_options
from gateway.serving.runtimes.operators import OPERATORS
from gateway.serving.runtimes.session import bind

GRAPH = "graph"
OPSET = 13
"""Opset of ONNX whose operators the graph has."""
DAMAGE = (
    *(ValueError, TypeError, IndexError, AttributeError, RuntimeError, MemoryError, OSError, EOFError),
    *(zipfile.BadZipFile, zlib.error, SyntaxError, struct.error),
)
"""Exceptions of zipfile, numpy and json for damaged files (numpy's array headers are Python literals)."""
FAULTS = (ValueError, TypeError, KeyError, IndexError, AttributeError, ArithmeticError, MemoryError)
"""Exceptions of an operator for unsuitable arrays or attributes."""
FILE_LIMIT_BYTES = 256 * 2**20
"""Largest model once unpacked: it must fit into a small device's memory."""


class ReferenceRuntime:
    """Runtime for .npz graphs. Implements `serving.domain.ports.Runtime`. It uses one thread, whatever the budget."""

    name = "reference"

    def version(self) -> str:
        """Return numpy's version."""
        return require(self.name)

    def import_engine(self) -> None:
        """Do nothing: numpy is imported with this module."""

    def devices(self, plugin: str = "") -> Sequence[str]:
        """Return the CPU, always."""
        return ("CPU",)

    def open(self, manifest: ModelManifest, variant: Variant, files: Path, budget: SessionBudget) -> Session:
        """Read and check the graph. Raises VariantError."""
        check_accelerator(self.name, budget, (CPU,))
        read_options(self.name, budget, {})
        return bind(ReferenceEngine(read_graph(model_file(variant, files, ".npz"))), manifest, variant)

    def inspect(self, file: Path) -> Signature:
        """Return inputs and outputs as the graph declares them."""
        graph = read_graph(existing(file))
        return Signature(tuple(map(_spec, graph.inputs)), tuple(map(_spec, graph.outputs)))

    def prove_rows(self, variant: Variant, files: Path, tensors: RowTensors) -> RowProof:
        """Follow the rows through the graph, whose operators are ONNX's. Raises VariantError."""
        graph = read_graph(model_file(variant, files, ".npz"))
        nodes = tuple(
            rows.Node(node.op, "", node.inputs, (node.output,), _tuples(node.attributes)) for node in graph.nodes
        )
        constants = {
            name: rows.Constant(array.shape, tuple(array.ravel().tolist()) if array.dtype.kind in "iu" else None)
            for name, array in graph.weights.items()
        }
        shapes = {port.name: tuple(None if size < 0 else size for size in port.shape or ()) for port in graph.inputs}
        followed = rows.Graph(shapes, tuple(port.name for port in graph.outputs), constants, nodes)
        return prove_rows(rows.ModelGraph(followed, {"": OPSET}), tensors)

    def operators(self, variant: Variant, files: Path) -> frozenset[str]:
        """Return the operators of the graph. Raises VariantError."""
        return frozenset(node.op for node in read_graph(model_file(variant, files, ".npz")).nodes)


@dataclass(frozen=True, slots=True)
class OperatorNode:
    """Operator of a graph; an empty input name means that an optional input is omitted."""

    op: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReferenceGraph:
    """ReferenceGraph with its nodes in order of evaluation."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    nodes: tuple[OperatorNode, ...]
    weights: Mapping[str, Array]


class ReferenceEngine:
    """Engine over a graph. Implements `gateway.serving.runtimes.session.CompiledGraph`.

    Outputs are new arrays, never views of an input: the caller may refill inputs while the outputs are still lent.
    """

    def __init__(self, graph: ReferenceGraph) -> None:
        self.inputs, self.outputs = graph.inputs, graph.outputs
        self._graph: ReferenceGraph | None = graph

    def run(self, feeds: Mapping[str, Array], wanted: Sequence[str]) -> Sequence[Array]:
        """Return the `wanted` outputs. Raises VariantError with the operator that failed."""
        if self._graph is None:
            raise VariantError("the graph is closed")
        values = {**self._graph.weights, **feeds}
        with np.errstate(all="ignore"):  # infinities and NaN are propagated, as in the other engines
            for node in self._graph.nodes:
                values[node.output] = _evaluate(node, values)
        return [_own(values[name], feeds) for name in wanted]

    def cancel(self) -> bool:
        """Return False: a run consists of numpy calls, which cannot be cancelled."""
        return False

    def peer(self) -> ReferenceEngine:
        """Return an engine of the same graph, which a run does not change."""
        return copy(self)

    def close(self) -> None:
        """Free the weights."""
        self._graph = None


def read_graph(file: Path) -> ReferenceGraph:
    """Parse and check a graph file. Raises VariantError."""
    try:
        arrays = _load(file)
        described = json.loads(arrays.pop(GRAPH).tobytes())
        graph = ReferenceGraph(
            tuple(_port(each) for each in described["inputs"]),
            tuple(_port(each) for each in described["outputs"]),
            tuple(_node(each) for each in described["nodes"]),
            arrays,
        )
    except KeyError as error:
        raise VariantError(f"{file.name} is not a reference graph: it lacks {error.args[0]!r}") from error
    except DAMAGE as error:
        raise VariantError(f"{file.name} is not a reference graph (npz without pickles): {error}") from error
    known = {port.name for port in graph.inputs} | graph.weights.keys()
    for node in graph.nodes:
        if node.op not in OPERATORS:
            raise VariantError(f"{file.name}: no operator {node.op!r}; there are {', '.join(OPERATORS)}")
        _check_known([name for name in node.inputs if name], known, f"{file.name}: {node.op} to {node.output!r}")
        known.add(node.output)
    _check_known([port.name for port in graph.outputs], known, f"{file.name}: the graph's outputs")
    return graph


def _load(file: Path) -> dict[str, Array]:
    with zipfile.ZipFile(file) as archive:
        size = sum(entry.file_size for entry in archive.infolist())
    if size > FILE_LIMIT_BYTES:
        raise ValueError(f"{size} bytes unpacked, at most {FILE_LIMIT_BYTES} are allowed")
    with np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def _port(described: Mapping[str, Any]) -> Port:
    return Port(
        str(described["name"]), DATATYPES[described["datatype"]], tuple(int(size) for size in described["shape"])
    )


def _tuples(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in attributes.items()}


def _node(described: Mapping[str, Any]) -> OperatorNode:
    if len(described["outputs"]) != 1:
        raise ValueError(f"operator {described['op']} must have one output, not {described['outputs']}")
    return OperatorNode(
        str(described["op"]),
        tuple(map(str, described["inputs"])),
        str(described["outputs"][0]),
        dict(described["attributes"]),
    )


def _check_known(names: Sequence[str], known: set[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise VariantError(f"{where}: {name!r} is no input, weight or earlier output")


def _evaluate(node: OperatorNode, values: Mapping[str, Array]) -> Array:
    try:
        return OPERATORS[node.op]([values[name] for name in node.inputs if name], node.attributes)
    except FAULTS as error:
        raise VariantError(f"the reference runtime failed at {node.op} to {node.output!r}: {error}") from error


def _own(answer: Array, feeds: Mapping[str, Array]) -> Array:
    return answer.copy() if any(np.may_share_memory(answer, fed) for fed in feeds.values()) else answer


def _spec(port: Port) -> TensorSpec:
    return TensorSpec(port.name, port.datatype, port.shape or ())
