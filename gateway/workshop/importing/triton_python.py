"""Models of Triton's Python backend as pipelines of one step. Pure.

The code is not run here. What it names of the backend and a step does not offer is refused by name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from keyword import iskeyword
from typing import Any

from gateway.common.domain.errors import ConfigurationError, UnofferedError
from gateway.common.domain.manifest import ROWS
from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.domain.pipeline import CODE_PATTERN
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.triton_config import ConfigTensor, TritonConfig
from gateway.workshop.importing.graphs import plain_names, row_kind
from gateway.workshop.importing.imported import ImportedPipeline, ImportFinding, SkippedModel, left_out, taken, to_add
from gateway.workshop.importing.source import Documents, joined
from gateway.workshop.importing.versions import numbered_versions, refused_versions
from gateway.workshop.making.toml_text import toml_lines, toml_table

FILE, CLASS, STEP = "model.py", "TritonPythonModel", "model"
ENVIRONMENT = "EXECUTION_ENV_PATH"
_REFUSED = {
    "exec": "it calls other models (BLS); write them as steps of a pipeline",
    "async_exec": "it calls other models (BLS); write them as steps of a pipeline",
    "load_model": "it loads models; pipelines run what the models folder has",
    "get_response_sender": "it answers in parts (decoupled); a step has one answer",
    "MetricFamily": "it has metrics of its own; a step has none",
    "from_dlpack": "it makes tensors by DLPack; use pb_utils.Tensor(name, array)",
    "to_dlpack": "it reads tensors by DLPack; use as_numpy()",
}
"""Names of the backend that a step does not offer, each with the reason and the remedy."""


def python_models(
    documents: Documents, name: str, folder: str, config: TritonConfig
) -> Iterator[ImportedPipeline | SkippedModel]:
    """Yield a pipeline for each version, or why it is skipped. Raises UnofferedError for what no step can do."""
    if ENVIRONMENT in config.parameters:
        raise UnofferedError(f"{ENVIRONMENT} is not offered: code runs with the gateway's packages", file=config.file)
    if config.sequence is not None:
        raise UnofferedError(
            "sequence_batching is not offered for Python code; write its step with stream = true", file=config.file
        )
    versions = numbered_versions(documents, folder)
    unserved = config.unserved(versions.served)
    if not versions.served:
        yield SkippedModel(name, "", f"holds no folder of a version, such as 1, with {FILE}; add it")
    for version in versions.served:
        if version not in unserved:
            try:
                yield _pipeline(documents, (name, version), joined(folder, version), config)
            except (ConfigurationError, UnofferedError) as error:
                yield SkippedModel(name, version, str(error))
    yield from refused_versions(name, versions)
    for version, problem in config.missing(versions.served).items():
        yield SkippedModel(name, version, problem)


def _pipeline(documents: Documents, release: tuple[str, str], folder: str, config: TritonConfig) -> ImportedPipeline:
    place, is_batched = joined(folder, FILE), bool(config.max_batch_size)
    code = documents.text(place)
    check_code(code, place)
    others = [file for file in documents.within(folder) if file != FILE]
    if documents.folders(folder) or not all(map(NAME_PATTERN.fullmatch, others)):
        raise UnofferedError(
            "has folders, or files with odd names; a release of a pipeline has plain files", file=folder
        )
    findings = [taken(f"step {STEP}", f"runs {FILE}; needs [pipelines] python = true")]
    findings += [left_out(*remark.split(" is not applied: ")) for remark in config.remarks]
    if is_batched:
        findings.append(left_out("max_batch_size", "a pipeline takes as many rows as [limits] max_batch_rows allows"))
    inputs, outputs = (_kinds(each, config.file, findings) for each in (config.inputs, config.outputs))
    given, made = plain_names(inputs, "input", findings), plain_names(outputs, "output", findings)
    if not inputs or not outputs:
        raise UnofferedError("names no inputs, or no outputs; describe them there", file=config.file)
    findings += [] if is_batched else _rows(config.inputs)
    step: dict[str, Any] = {"name": STEP, "python": FILE, "class": CLASS}
    step |= {"files": others} if others else {}
    step |= {"inputs": given, "outputs": outputs}
    step |= {} if is_batched else {"batch": False}
    step |= {"stream": True} if "correlation_id" in code else {}
    step |= {"parameters": dict(config.parameters)} if config.parameters else {}
    answers = "[output]\n" + "".join(toml_lines({made[key]: f"{STEP}.{key}" for key in outputs}))
    body = "\n".join(
        (
            toml_table("[input]", {given[key]: kind for key, kind in inputs.items()}),
            toml_table("[[step]]", step),
            answers,
        )
    )
    files = tuple(joined(folder, file) for file in (FILE, *others))
    return ImportedPipeline(*release, body, (), tuple(findings), files=files)


def check_code(text: str, file: str) -> None:
    """Check that a step can run code. Raises ConfigurationError if it is no Python, UnofferedError."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last: nested too deeply
        raise ConfigurationError(f"is no Python: {str(error) or 'it is nested too deeply'}", file=file) from None
    if not any(isinstance(node, ast.ClassDef) and node.name == CLASS for node in ast.walk(tree)):
        raise ConfigurationError(f"has no class {CLASS}", file=file)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (why := _REFUSED.get(node.attr)) is not None:
            raise UnofferedError(f"uses {node.attr}: {why}", file=file, line=node.lineno)


def _kinds(tensors: Sequence[ConfigTensor], file: str, findings: list[ImportFinding]) -> dict[str, str]:
    """Return what a pipeline declares of tensors. Raises UnofferedError."""
    found = dict[str, str]()
    for each in tensors:
        if not CODE_PATTERN.fullmatch(each.name) or iskeyword(each.name):
            raise UnofferedError(f"tensor {each.name!r:.80} needs a name of letters, digits or '_'", file=file)
        if each.optional or each.reshape is not None:
            problem = f"tensor {each.name} is {'optional' if each.optional else 'reshaped'}; write what the code gets"
            raise UnofferedError(problem, file=file)
        dims = each.dims
        if each.datatype is Datatype.BYTES and dims == (ROWS,):  # mostly meant so
            dims = (1,)
            findings.append(to_add(f"tensor {each.name}", "is one text for a row; several are not offered"))
        found[each.name] = row_kind(each.datatype, dims, f"tensor {each.name}", file)
    return found


def _rows(tensors: Sequence[ConfigTensor]) -> list[ImportFinding]:
    """Return how requests of a model without rows change: each is a row here."""
    words = "a pipeline has rows, and the code gets them one by one"
    return [to_add(f"input {each.name}", f"clients send the shape {[1, *each.dims]}: {words}") for each in tensors]
