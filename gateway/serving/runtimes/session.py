"""Session for all engines: an engine with its own tensors, and the binding of a manifest around it.

Ownership of buffers: inputs belong to the caller, and are passed on unchanged unless they must be converted (see
`convert`). The engine reads them only during `run`. Outputs belong to the engine and are lent until the next `run` or
`close`, unless the runtime that bound it states otherwise (`lends`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Protocol

import numpy as np

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import ModelManifest, Variant
from gateway.common.domain.tensor import Array, Tensors
from gateway.serving.domain.ports import Part, RowInput, RowTensors
from gateway.serving.runtimes.binding import Passage, Port, convert, plan_inputs, plan_outputs, takes_single_rows


class CompiledGraph(Protocol):
    """Compiled graph with its own names, datatypes and layouts."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def run(self, feeds: Mapping[str, Array], wanted: Sequence[str]) -> Sequence[Array]:
        """Return the `wanted` outputs in that order, lent until the next run. Raises VariantError."""

    def cancel(self) -> bool:
        """Ask the run in progress to end with an error. Called by any thread; False if the engine cannot."""

    def peer(self) -> CompiledGraph:
        """Return an engine of the same compiled graph, which runs at the same time. Raises VariantError.

        An engine without this method takes one run at a time.
        """

    def close(self) -> None:
        """Free the engine's memory. Calling it twice is harmless."""


class SingleRows:
    """Engine for batches over an engine whose graph accepts exactly one row: one run per row, into new arrays."""

    def __init__(self, engine: CompiledGraph) -> None:
        self.inputs, self.outputs = engine.inputs, engine.outputs
        self._engine = engine

    def run(self, feeds: Mapping[str, Array], wanted: Sequence[str]) -> Sequence[Array]:
        """Run as `CompiledGraph.run` does, but the caller owns the outputs if there is more than one row."""
        rows = len(next(iter(feeds.values())))
        if rows == 1:
            return self._engine.run(feeds, wanted)
        if rows == 0:
            raise VariantError("a run needs at least one row")
        gathered: list[Array] = []
        for row in range(rows):
            answers = self._engine.run({name: array[row : row + 1] for name, array in feeds.items()}, wanted)
            if row == 0:
                gathered = [np.empty((rows, *answer.shape[1:]), answer.dtype) for answer in answers]
            for whole, answer in zip(gathered, answers, strict=True):
                whole[row] = answer[0]
        return gathered

    def cancel(self) -> bool:
        """Cancel the engine's run; the following rows are not run."""
        return self._engine.cancel()

    def peer(self) -> CompiledGraph:
        """Return the same over a peer of the engine."""
        return SingleRows(_peer(self._engine))

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()


class BoundSession:
    """Session over an engine. Implements `gateway.serving.domain.ports.Session`.

    Raises VariantError if the variant does not fit.
    """

    remarks: tuple[str, ...] = ()
    in_parts = False

    def __init__(self, engine: CompiledGraph, manifest: ModelManifest, variant: Variant, *, lends: bool = True) -> None:
        self.lends = lends
        self.peers: list[BoundSession] = []
        self._into = plan_inputs(manifest, variant, engine.inputs)
        self._out = plan_outputs(manifest, variant, engine.outputs)
        ports = engine.inputs + engine.outputs
        single = takes_single_rows(manifest, self._into + self._out, ports)
        self._engine: CompiledGraph | None = SingleRows(engine) if single else engine
        self.rows = None if single or not manifest.batched else _row_tensors(manifest, self._into, self._out)
        self._wanted = [passage.port for passage in self._out]
        self._plain = all(
            passage.axes is None and passage.dtype is None and passage.shape is None
            for passage in self._into + self._out
        )

    def run(self, inputs: Tensors) -> Tensors:
        """Run with the manifest's names, dtypes and layouts; `lends` states who owns the outputs."""
        engine = self._engine
        if engine is None:
            raise VariantError("the session is closed")
        plain = self._plain  # nothing must be converted
        feeds: dict[str, Array] = {}
        outputs: dict[str, Array] = {}
        try:
            for passage in self._into:
                array = inputs[passage.name]
                feeds[passage.port] = array if plain and array.flags.c_contiguous else convert(passage, array)
        except KeyError as error:
            raise VariantError(f"input {error.args[0]!r} is missing from the run") from None
        for passage, array in zip(self._out, engine.run(feeds, self._wanted), strict=True):
            outputs[passage.name] = array if plain and array.flags.c_contiguous else convert(passage, array)
        return outputs

    def run_in_parts(self, inputs: Tensors, part: Part) -> Tensors:
        """Implement `Session.run_in_parts`: a graph gives no parts."""
        del part
        return self.run(inputs)

    def cancel(self) -> bool:
        """Ask the run in progress to end with an error. Called by any thread; False if the engine cannot."""
        engine = self._engine
        return engine is not None and engine.cancel()

    def widen(self, runs: int) -> None:
        """Implement `Session.widen`."""
        while len(self.peers) < runs - 1 and self._engine is not None:
            peer = copy(self)
            peer.peers, peer._engine = [], _peer(self._engine)
            self.peers.append(peer)

    def close(self) -> None:
        """Free the engine's memory, with that of the peers. Calling it twice is harmless."""
        for peer in self.peers:
            peer.close()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()


def _peer(engine: CompiledGraph) -> CompiledGraph:
    if not hasattr(engine, "peer"):
        raise VariantError("the engine takes one run at a time")
    return engine.peer()


def _row_tensors(manifest: ModelManifest, into: Sequence[Passage], out: Sequence[Passage]) -> RowTensors:
    shapes = {spec.name: spec.shape for spec in manifest.inputs}
    inputs = {}
    for passage in into:
        axes, shape = passage.axes or tuple(range(len(shapes[passage.name]))), shapes[passage.name]
        own = passage.shape or tuple(shape[axis] for axis in axes)
        inputs[passage.port] = RowInput(own, axes.index(0))
    return RowTensors(inputs, {passage.port: passage.axes[0] if passage.axes else 0 for passage in out})


def bind(engine: CompiledGraph, manifest: ModelManifest, variant: Variant, *, lends: bool = True) -> BoundSession:
    """Return the session of an opened engine. If the manifest does not fit, the engine is closed."""
    try:
        return BoundSession(engine, manifest, variant, lends=lends)
    except VariantError:
        engine.close()
        raise
