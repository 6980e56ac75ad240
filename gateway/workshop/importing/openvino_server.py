"""Source `ovms`: `config.json` of OpenVINO Model Server with the folders of its models, or one folder of versions.

Source: "Model Server Parameters", "Model Repository" and "Batch, Shape and Layout" in its documentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from gateway.common.domain.document import Table
from gateway.common.domain.errors import ConfigurationError, UnofferedError
from gateway.common.domain.manifest import ROWS
from gateway.common.domain.model_files import is_model
from gateway.common.domain.triton_config import VersionPolicy
from gateway.workshop.importing.graphs import (
    Place,
    StepGraph,
    StepNode,
    imported_pipeline,
    row_kind,
    row_shape,
    with_absent,
)
from gateway.workshop.importing.imported import (
    ImportedModel,
    ImportedPipeline,
    ImportedSource,
    ImportFinding,
    SkippedModel,
    check_name,
    left_out,
    precision_finding,
    shapes,
    taken,
    variant_of,
)
from gateway.workshop.importing.json_document import json_value, read_json
from gateway.workshop.importing.server_tensors import TensorWishes, wished_tensors
from gateway.workshop.importing.source import Documents, SourceModel, joined
from gateway.workshop.importing.versions import build_versions, numbered_versions, refused_versions, sorted_out

CONFIG = "config.json"
LIST, DAGS = "model_config_list", "pipeline_config_list"
VERSION_LIMIT = 2**63 - 1
_REMARKS = {
    "nireq": "a version has one session; [[limits.queue]] bounds the requests that wait",
    "target_device": "the trials choose the accelerator",
    "plugin_config": "the trials choose threads and options",
    "allow_cache": "compiled models are always kept",
    "idle_sequence_cleanup": "requests have no sequences",
    "max_sequence_number": "requests have no sequences",
    "precision": "tensors are as the model has them",
    "mean": "clients send prepared tensors; for images write [input.preprocess] mean (it comes after scale)",
    "scale": "clients send prepared tensors; for images write [input.preprocess] scale (a factor, no divisor)",
    "color_format": "clients send prepared tensors; for images write [input.preprocess] color",
}
_UNOFFERED = {
    "stateful": "state between requests is not kept",
    "low_latency_transformation": "it belongs to models with state",
    "custom_loader_options": "models are files here; add the model as IR or ONNX",
}
_SECTIONS = {
    "mediapipe_config_list": "a graph of MediaPipe is not offered; serve its models and compute the rest in the client",
}
_OTHER_SECTIONS = ("monitoring", "custom_node_library_config_list", "custom_loader_config_list")


@dataclass(frozen=True, slots=True)
class ServerModel:
    """Entry of the list: name, folder in the source, versions, and what it says about tensors."""

    name: str
    folder: str
    policy: VersionPolicy = VersionPolicy()
    wishes: TensorWishes = field(default_factory=TensorWishes)
    findings: tuple[ImportFinding, ...] = ()


def is_openvino_server(documents: Documents) -> bool:
    """Return True for a config.json with a list of models, or a folder of numbered versions with models."""
    if f'"{LIST}"' in documents.texts.get(CONFIG, ""):
        return True
    return any(name.isdecimal() and any(map(is_model, documents.within(name))) for name in documents.folders())


def read_openvino_server(documents: Documents) -> ImportedSource:
    """Return the models of a configuration, or those of a folder of versions.

    Raises ConfigurationError for text that is damaged, unknown keys, and names that are given twice.
    """
    if CONFIG not in documents.files:
        one = ServerModel(check_name(documents.name, "name"), "")
        return ImportedSource(*sorted_out(list(_versions(documents, one))))
    top = Table(read_json(text := documents.text(CONFIG), CONFIG), file=CONFIG, text=text)
    found: list[ImportedModel | ImportedPipeline | SkippedModel] = []
    names: set[str] = set()
    for entry in top.tables(LIST):
        config = entry.table("config", required=True)
        entry.finish()
        if config is not None:
            found += _entry(documents, config, names)
    for entry in top.tables(DAGS):
        found.append(_dag(entry, [each for each in found if isinstance(each, ImportedModel)]))
    found += _skipped_sections(top)
    top.finish()
    return with_absent(ImportedSource(*sorted_out(found)))


def _entry(documents: Documents, config: Table, names: set[str]) -> Iterator[ImportedModel | SkippedModel]:
    name = check_name(config.text("name"), "name", CONFIG)
    if name in names:
        config.refuse("name", f"two models are called {name!r}; rename one")
    names.add(name)
    try:
        model = _server_model(documents, config, name)
    except UnofferedError as error:
        yield SkippedModel(name, "", str(error))
        return
    yield from _versions(documents, model)


def _dag(entry: Table, models: Sequence[ImportedModel]) -> ImportedPipeline | SkippedModel:
    """Return a graph of models as a pipeline, with the inputs of the models that read its own."""
    name = check_name(entry.text("name"), "name", CONFIG)
    try:
        _refuse_demultiplexing(entry)
        inputs, aliases, nodes = entry.texts("inputs"), dict[Place, str](), list[StepNode]()
        for table in entry.tables("nodes"):
            nodes.append(_node(table, aliases))
        outputs = _places(entry, "outputs")
        entry.finish()
        nodes = [replace(node, inputs=_named(node.inputs, aliases)) for node in nodes]
        findings = list[ImportFinding]()
        kinds = {each: _kind(each, nodes, models, findings) for each in inputs}
        graph = StepGraph(name, "1", kinds, nodes, _named(outputs, aliases), CONFIG, tuple(findings))
        return imported_pipeline(graph)
    except UnofferedError as error:
        entry.rest()
        return SkippedModel(name, "", str(error))


def _node(table: Table, aliases: dict[Place, str]) -> StepNode:
    """Return a node of a graph; note the names that it gives to outputs of its model."""
    name, kind = table.text("name"), table.text("type")
    if kind != "DL model":
        library = table.text("library_name", "")
        problem = (
            f"node {name!r:.100} of the type {kind!r:.40} {f'({library:.100}) ' if library else ''}is not offered here"
        )
        remedy = (
            "steps such as crop, tile and select replace nodes of OpenVINO's examples: see the reference of pipelines"
        )
        raise UnofferedError(f"{problem}; {remedy}", file=CONFIG)
    _refuse_demultiplexing(table)
    model, version = table.text("model_name"), table.take("version")
    inputs = _places(table, "inputs")
    for output in table.tables("outputs"):
        item = output.text("data_item")
        aliases[name, output.text("alias", item)] = item
        output.finish()
    table.finish()
    return StepNode(name, model, _text(version), inputs)


def _refuse_demultiplexing(table: Table) -> None:
    for key in ("demultiply_count", "gather_from_node"):
        if table.take(key) not in (None, 0):
            problem = f"{key} is not offered here; the rows of a detector or of tile fan out by themselves"
            raise UnofferedError(problem, file=CONFIG, table=table.name, key=key)


def _places(table: Table, key: str) -> dict[str, Place]:
    """Take a list of objects with one name each, and return the origins by name."""
    found = dict[str, Place]()
    for each in table.tables(key):
        for name in each.remaining():
            place = each.table(name, required=True)
            if place is not None:
                node, item = place.text("node_name"), place.text("data_item")
                place.finish()
                found[name] = ("" if node == "request" else node, item)
        each.finish()
    return found


def _named(places: Mapping[str, Place], aliases: Mapping[Place, str]) -> dict[str, Place]:
    """Return origins with the models' own names of outputs."""
    return {name: (place[0], aliases.get(place, place[1])) for name, place in places.items()}


def _kind(name: str, nodes: Sequence[StepNode], models: Sequence[ImportedModel], findings: list[ImportFinding]) -> str:
    """Return the kind of a graph's input: that of the first model's input which reads it."""
    readers = [(node, key) for node in nodes for key, place in node.inputs.items() if place == ("", name)]
    for node, key in readers:
        for model in reversed(models):
            specs = [spec for spec in model.inputs if spec.name == key]
            if model.name == node.model and node.version in {"", model.version} and specs:
                shape, what = specs[0].shape, f"input {name}"
                batched = model.batch and all(spec.shape[:1] == (ROWS,) for spec in (*model.inputs, *model.outputs))
                return row_kind(
                    specs[0].datatype, shape[1:] if batched else row_shape(shape, what, findings), what, CONFIG
                )
    raise UnofferedError(f"the type of input {name!r:.100} is not known: no imported model reads it", file=CONFIG)


def _skipped_sections(top: Table) -> Iterator[SkippedModel]:
    for key, why in _SECTIONS.items():
        for entry in top.tables(key):
            yield SkippedModel(entry.text("name", key)[:128], "", f"{key}: {why}")
            entry.rest()
    for key in _OTHER_SECTIONS:
        if key in top:
            top.take(key)


def _server_model(documents: Documents, config: Table, name: str) -> ServerModel:
    folder, findings = _folder(documents, config)
    for key, why in _UNOFFERED.items():
        if config.take(key) not in (None, False):
            raise UnofferedError(f"{key} is not offered here: {why}", file=CONFIG, table=config.name, key=key)
    remarks = [left_out(key, why) for key, why in _REMARKS.items() if config.take(key) is not None]
    policy = _policy(config.table("model_version_policy"))
    wishes = TensorWishes(
        shapes=_by_input(config, "shape"), layouts=_by_input(config, "layout"), rows=_text(config.take("batch_size"))
    )
    config.finish()
    return ServerModel(name, folder, policy, wishes, (*findings, *remarks))


def _folder(documents: Documents, config: Table) -> tuple[str, tuple[ImportFinding, ...]]:
    """Return the folder of a model. An absolute path is one of another machine: its end is looked for."""
    path = config.text("base_path")
    if "://" in path:
        problem = f"{path:.150} is in the cloud; download it into the source, and name its folder"
        raise UnofferedError(problem, file=CONFIG, table=config.name, key="base_path")
    if not PurePosixPath(path).is_absolute():
        return joined(path), ()
    parts = PurePosixPath(path).parts[1:]
    for begin in range(len(parts)):
        end = joined(*parts[begin:])
        if any(file.startswith(f"{end}/") for file in documents.files):
            return end, (taken("base_path", f"{path} is the folder {end} of the source"),)
    problem = f"{path:.150} is not in the source; import the folder that holds it and {CONFIG}"
    raise ConfigurationError(problem, file=CONFIG, table=config.name, key="base_path")


def _policy(table: Table | None) -> VersionPolicy:
    """Return the versions to serve; without a policy the newest, as the server does."""
    if table is None:
        return VersionPolicy(latest=1)
    found = VersionPolicy()
    latest, specific, everything = (table.table(key) for key in ("latest", "specific", "all"))
    if latest is not None:
        found = VersionPolicy(latest=latest.integer("num_versions", 1, low=1, high=VERSION_LIMIT))
        latest.finish()
    elif specific is not None:
        found = VersionPolicy(specific=tuple(map(str, specific.integers("versions"))))
        specific.finish()
    elif everything is None:
        table.refuse("", "must hold latest, specific or all")
    table.finish()
    return found


def _by_input(config: Table, key: str) -> dict[str, str]:
    """Take a text for the only input (its name is ""), or an object or JSON text of texts by input."""
    value = config.take(key)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = json_value(value, f"{CONFIG}: {key}")
    if value is None:
        return {}
    by_input = value if isinstance(value, dict) else {"": value}
    if not all(isinstance(text, str) for text in by_input.values()):
        config.refuse(key, "must be text, or texts by the name of the input")
    return by_input


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _versions(documents: Documents, model: ServerModel) -> Iterator[ImportedModel | SkippedModel]:
    versions = numbered_versions(documents, model.folder)
    served = _served(model.policy, versions.served)
    if not versions.served:
        yield SkippedModel(model.name, "", f"{model.folder or '.'} holds no folder of a version, such as 1; add it")

    def build(version: str, file: SourceModel) -> ImportedModel:
        return _release(model, version, file, versions.served)

    yield from build_versions(documents, model.name, model.folder, served, build)
    yield from refused_versions(model.name, versions)
    for version in model.policy.specific:
        if version not in versions.served:
            yield SkippedModel(model.name, version, "is missing, and model_version_policy names it; add it there")


def _served(policy: VersionPolicy, versions: tuple[str, ...]) -> tuple[str, ...]:
    if policy.specific:
        return tuple(version for version in versions if version in policy.specific)
    return versions[-policy.latest :] if policy.latest else versions


def _release(model: ServerModel, version: str, file: SourceModel, versions: tuple[str, ...]) -> ImportedModel:
    tensors = wished_tensors(file.tensors(), model.wishes, f"{model.name} version {version}")
    others = [each for each in versions if each not in _served(model.policy, versions)]
    policy = (
        (left_out("model_version_policy", f"versions {', '.join(others)}: not among those served"),) if others else ()
    )
    return ImportedModel(
        model.name,
        version,
        tensors.signature.inputs,
        tensors.signature.outputs,
        (variant_of(file, bind=tensors.bind),),
        max_batch_rows=tensors.rows,
        findings=(*model.findings, *policy, *tensors.findings, *shapes(tensors.signature), *precision_finding(file)),
    )
