"""Signatures of TFLite files: choice of the served one, its tensor names, and graphs other than the file's first.

A signature names one graph of a file, its inputs and its outputs. Files with one signature keep the names of the
graph's own tensors, under which they have always been served; the other names are aliases that a binding may use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.common.domain.errors import VariantError

DEFAULT_SIGNATURE = "serving_default"
TOLD_LIMIT = 8
"""Most signatures that a message names."""

Details = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Signature that is served: its `key` ("": the file has none) and the number of its graph.

    `named`: tensors have the signature's names. `remark` lists the other signatures of the file.
    """

    key: str = ""
    graph: int = 0
    named: bool = False
    remark: str = ""


def choose(graphs: Mapping[str, int], wanted: str) -> Chosen:
    """Return the signature to serve among those of a file (graph number by key).

    That is `wanted` (the manifest's), else `serving_default`, else the one of the file's first graph. Raises
    VariantError if the file has no `wanted`.
    """
    if wanted and wanted not in graphs:
        problem = f"the file has no signature {wanted!r}; it has {_listed(sorted(graphs))}"
        raise VariantError(problem, remedy="correct signature of [[variant]] in the manifest")
    if not graphs:
        return Chosen()
    first = min(graphs, key=lambda key: (graphs[key], key))
    key = wanted or (DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in graphs else first)
    others = sorted(graphs.keys() - {key})
    remark = f'signature {key!r} is served, not {_listed(others)}; signature = "…" in a manifest\'s [[variant]] chooses'
    return Chosen(key, graphs[key], bool(others) or graphs[key] > 0, remark if others and not wanted else "")


def signature_graphs(interpreter: Any) -> dict[str, int]:
    """Return the number of each signature's graph by key; empty if the file has no signatures."""
    runners = {key: interpreter.get_signature_runner(key) for key in interpreter.get_signature_list()}
    return {key: int(getattr(runner, "_subgraph_index", 0)) for key, runner in runners.items()}


def named_details(details: Sequence[Details], signature: Mapping[str, Details], *, named: bool) -> list[dict[str, Any]]:
    """Return the engine's details of tensors with `name` and `aliases` as the gateway offers them.

    `signature` holds the same tensors by the signature's names. An alias that could mean two tensors is dropped.
    """
    own = {int(each["index"]): key for key, each in signature.items()}
    pairs = [(str(each["name"]), own.get(int(each["index"]), "")) for each in details]
    if named or len(dict(pairs)) < len(pairs):
        pairs = [(key or name, name) for name, key in pairs]
    names, aliases = [name for name, _ in pairs], Counter(alias for _, alias in pairs)
    kept = [(alias,) if alias and alias not in names and aliases[alias] == 1 else () for _, alias in pairs]
    return [{**each, "name": name, "aliases": alias} for each, name, alias in zip(details, names, kept, strict=True)]


class SignatureGraph:
    """Graph of one signature, with those methods of an interpreter that an engine needs.

    The signature's runner is the engine's only public interface to a graph that is not the first. It fits the graph to
    its inputs at every run, for which it takes 2 us more than the first graph (measured). Nothing must be resized or
    allocated before.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._inputs = {int(each["index"]): key for key, each in runner.get_input_details().items()}
        self._outputs = {int(each["index"]): key for key, each in runner.get_output_details().items()}
        self._feeds: dict[str, Any] = {}
        self._answers: Mapping[str, Any] = {}

    def get_input_details(self) -> list[Details]:
        """Return the engine's details of the signature's inputs."""
        return list(self._runner.get_input_details().values())

    def get_output_details(self) -> list[Details]:
        """Return the engine's details of the signature's outputs."""
        return list(self._runner.get_output_details().values())

    def resize_tensor_input(self, index: int, shape: Sequence[int]) -> None:
        """Do nothing: the runner resizes inputs."""

    def allocate_tensors(self) -> None:
        """Do nothing: the runner allocates."""

    def set_tensor(self, index: int, value: Any) -> None:
        """Keep one input for the next run."""
        self._feeds[self._inputs[index]] = value

    def invoke(self) -> None:
        """Run the graph on the inputs that were set. Raises the engine's errors."""
        feeds, self._feeds = self._feeds, {}
        self._answers = self._runner(**feeds)

    def get_tensor(self, index: int) -> Any:
        """Return one output of the last run."""
        return self._answers[self._outputs[index]]


def _listed(keys: Sequence[str]) -> str:
    listed = ", ".join(f"{key!r:.80}" for key in keys[:TOLD_LIMIT]) or "none"
    return f"{listed} and {len(keys) - TOLD_LIMIT} others" if len(keys) > TOLD_LIMIT else listed
