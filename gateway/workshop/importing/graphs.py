"""Graphs of models of other servers as pipelines: names, order, and the TOML text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from keyword import iskeyword
from typing import Any

from gateway.common.domain.errors import UnofferedError
from gateway.common.domain.manifest import ROWS
from gateway.common.domain.pipeline import RESERVED, TEXT
from gateway.common.domain.tensor import Datatype
from gateway.workshop.importing.imported import ImportedPipeline, ImportedSource, ImportFinding, taken, to_add
from gateway.workshop.making.toml_text import toml_lines, toml_table

LENGTH = 32
"""Most characters of a name in a pipeline."""
Place = tuple[str, str]
"""Origin of a tensor: node and its output; node "": an input of the graph."""


@dataclass(frozen=True, slots=True)
class StepNode:
    """Run of a model: `inputs` are the origins of its inputs. `version` "": the one that is served."""

    name: str
    model: str
    version: str
    inputs: Mapping[str, Place]


@dataclass(frozen=True, slots=True)
class StepGraph:
    """Graph as another server describes it: its inputs as pipelines write them, nodes, and the origins of outputs."""

    name: str
    version: str
    inputs: Mapping[str, str]
    nodes: Sequence[StepNode]
    outputs: Mapping[str, Place]
    file: str
    findings: tuple[ImportFinding, ...] = ()


def imported_pipeline(graph: StepGraph) -> ImportedPipeline:
    """Return the pipeline. Raises UnofferedError for what pipelines cannot do."""
    findings = list(graph.findings)
    inputs = plain_names(graph.inputs, "input", findings)
    nodes = _ordered(graph)
    steps = plain_names([node.name for node in nodes], "step", findings, used=inputs.values())

    def expression(place: Place) -> str:
        node, item = place
        if not node:
            return inputs[item]
        if not item.isidentifier() or iskeyword(item):
            problem = (
                f"output {item!r:.100} of {node!r:.100} is no name in an expression; bind it to another name in the"
            )
            raise UnofferedError(f"{problem} manifest of its model", file=graph.file)
        return f"{steps[node]}.{item}"

    parts = [toml_table("[input]", {inputs[name]: kind for name, kind in graph.inputs.items()})]
    for node in nodes:
        model = f"{node.model}@{node.version}" if node.version else node.model
        values: dict[str, Any] = {"name": steps[node.name], "model": model}
        values["inputs"] = {name: expression(place) for name, place in node.inputs.items()}
        parts.append(toml_table("[[step]]", values))
        findings.append(taken(f"step {steps[node.name]}", f"runs {model}"))
    outputs = plain_names(graph.outputs, "output", findings)
    parts.append("[output]\n" + "".join(toml_lines({outputs[n]: expression(p) for n, p in graph.outputs.items()})))
    models = tuple(dict.fromkeys(node.model for node in nodes))
    return ImportedPipeline(graph.name, graph.version, "\n".join(parts), models, tuple(findings))


def row_kind(datatype: Datatype, shape: Sequence[int], what: str, file: str) -> str:
    """Return an input as a pipeline declares it, from the shape of one row. Raises UnofferedError."""
    if datatype is not Datatype.BYTES:
        return f"{datatype.label}{list(shape)}"
    if tuple(shape) not in {(), (1,)}:
        raise UnofferedError(f"{what} has several texts for a row; a pipeline takes one", file=file)
    return TEXT


def row_shape(shape: Sequence[int], what: str, findings: list[ImportFinding]) -> Sequence[int]:
    """Return the shape of one row of a tensor without a declared batch dimension: its first size counts rows if it may.

    Of another one each request is one row, in front of which clients write a first dimension of 1.
    """
    if shape and shape[0] in {ROWS, 1}:
        return shape[1:]
    findings.append(to_add(what, f"clients send the shape {[1, *shape]}: a pipeline has rows"))
    return shape


def with_absent(source: ImportedSource) -> ImportedSource:
    """Return the source; its pipelines have a remark for each model that they run and that is not imported."""
    names = {release.name for release in source.releases}
    remedy = "it is not imported; the pipeline serves when there is a model of that name"
    marked = list[ImportedPipeline]()
    for pipeline in source.pipelines:
        absent = tuple(to_add(f"model {name}", remedy) for name in pipeline.models if name not in names)
        marked.append(replace(pipeline, findings=(*pipeline.findings, *absent)))
    return replace(source, pipelines=tuple(marked))


def _ordered(graph: StepGraph) -> list[StepNode]:
    """Return the nodes, each after those that it reads. Raises UnofferedError for cycles and unknown origins."""
    ordered, left = list[StepNode](), list(graph.nodes)
    known = {node.name for node in graph.nodes}
    places = [place for node in left for place in node.inputs.values()] + list(graph.outputs.values())
    for node_name, item in places:
        if node_name not in known if node_name else item not in graph.inputs:
            raise UnofferedError(f"nothing makes {item!r:.100}, which a step or output reads", file=graph.file)
    while left:
        done = {"", *(node.name for node in ordered)}
        ready = [node for node in left if all(place[0] in done for place in node.inputs.values())]
        if not ready:
            raise UnofferedError(f"the steps {', '.join(node.name for node in left)} read each other", file=graph.file)
        ordered += ready
        left = [node for node in left if node not in ready]
    return ordered


def plain_names(
    wanted: Iterable[str], what: str, findings: list[ImportFinding], used: Iterable[str] = ()
) -> dict[str, str]:
    """Return the names that a pipeline can have, each once, and note those that differ for its callers."""
    found, others = dict[str, str](), set(used)
    for name in wanted:
        plain = re.sub("[^A-Za-z0-9_]", "_", name.lower() if what == "step" else name)
        plain = plain if plain[:1].isalpha() else f"t{plain}"
        base, number = f"{plain}_" if plain in RESERVED else plain[:LENGTH], 1
        plain = base
        while plain in others:
            number += 1
            plain = f"{base[: LENGTH - 4]}_{number}"
        others.add(plain)
        found[name] = plain
        if what != "step" and plain != name:
            findings.append(to_add(f"{what} {name}", f"is called {plain} here: change the clients"))
    return found
