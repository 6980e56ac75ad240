"""Verb `edge-gateway models new FILE…`: a version of a model, with its manifest, from model files; or a pipeline."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.common.domain.errors import ConfigurationError, VariantError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.domain.model_files import MODEL_STEM
from gateway.common.domain.pipeline import PIPELINE
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.common.domain.python310 import tomllib
from gateway.common.domain.release import Release
from gateway.common.domain.text_model import is_generative
from gateway.common.domain.verdict import Signature
from gateway.common.terminal.tables import plain, print_facts, print_json, print_lines, print_table, progress
from gateway.serving import assembly
from gateway.serving.cli.common import clean_up_on_signals, configured, warn
from gateway.serving.cli.explain import find_release
from gateway.serving.cli.pipelines import check_pipeline, served_manifest
from gateway.serving.config import Config, own_models_folder, state_folder
from gateway.serving.model_sources import releases_here
from gateway.serving.store.releases import MANIFEST
from gateway.serving.store.staging import check_absent, staged_folder, write_text
from gateway.serving.tasks.catalog import TASKS
from gateway.workshop.making.draft import ManifestDraft, make_draft
from gateway.workshop.making.labels import read_labels
from gateway.workshop.making.model_file import ModelFile, read_model_file
from gateway.workshop.making.new_model import CreatedModel, create_model, tensors_only
from gateway.workshop.making.pipeline_draft import draft_pipeline
from gateway.workshop.making.settings import WorkshopSettings
from gateway.workshop.making.wishes import ASSUMED, Question, Wishes

SETTINGS = WorkshopSettings()
LABELS_SHOWN = 5


def command(arguments: argparse.Namespace) -> int:
    """Write the version and print what was found."""
    clean_up_on_signals()
    config = configured(arguments)
    models = own_models_folder(config)
    if arguments.pipeline:
        return asyncio.run(_pipeline(config, models, arguments))
    wishes = _wishes(arguments, models)
    check_absent(models / wishes.name / wishes.version)
    files = asyncio.run(_read([Path(name) for name in arguments.files], config))
    draft = make_draft(files, wishes)
    if not arguments.yes and can_ask():
        _print_files(files)
        draft = _asked(files, draft, wishes)
    created = asyncio.run(_create(draft, models, config))
    if arguments.json:
        print_json(_json(draft, created))
    else:
        _print(draft, created)
    return 0


async def _pipeline(config: Config, models: Path, arguments: argparse.Namespace) -> int:
    """Draft a pipeline from models of the model directory, check it, and write it."""
    name = arguments.pipeline
    version = arguments.version or _next_version(models / name)
    _check_names(("--pipeline", name), ("--version", version))
    folder, releases = models / name / version, await releases_here(config)
    check_absent(folder)
    surveyed = await assembly.survey(config)
    with assembly.opened(config, surveyed, state_folder(None), warn) as loader:

        async def manifest_of(release: Release) -> ModelManifest:
            return await served_manifest(loader, release, config.selection.objective)

        try:
            named = list[tuple[str, ModelManifest]]()
            for model in arguments.files:
                model_name, _, model_version = model.partition("@")
                release = await find_release(config, model_name, model_version)
                checked = release.pipeline and check_pipeline(release, releases, manifest_of, config.pipelines)
                named.append((model, await (checked or manifest_of(release))))
            text = draft_pipeline(name, version, named)
            drafted = Release(name, version, folder, pipeline=read_pipeline(text, str(folder / PIPELINE)))
            await check_pipeline(drafted, releases, manifest_of, config.pipelines)
        except VariantError as error:
            raise ConfigurationError(f"no pipeline is drafted: {error}", key="--pipeline") from error
    with staged_folder(folder) as place:
        write_text(text, place / PIPELINE)
    if arguments.json:
        print_json({"folder": str(folder), "name": name, "version": version, "text": text})
    else:
        print_lines([*text.splitlines(), ""])
        print_facts([("written", str(folder / PIPELINE)), ("next", f"edge-gateway explain {name}")])
    return 0


def _wishes(arguments: argparse.Namespace, models: Path) -> Wishes:
    """Return what the options say. Raises ConfigurationError for a name, or for the file of labels."""
    name = arguments.name or _name(Path(arguments.files[0]))
    version = arguments.version or _next_version(models / name)
    _check_names(("--name", name), ("--version", version))
    labels = read_labels(Path(arguments.labels), SETTINGS) if arguments.labels else ()
    task, value_range = arguments.task or "", arguments.range or ""
    if task and task not in TASKS:
        raise ConfigurationError(f"--task must name one of {', '.join(TASKS)}, not {task!r:.80}")
    points = read_labels(Path(arguments.keypoints), SETTINGS) if arguments.keypoints else ()
    return Wishes(
        name,
        version,
        task=task,
        labels=labels,
        labels_file=arguments.labels or "",
        value_range=value_range,
        keypoints=points,
        keypoints_file=arguments.keypoints or "",
        size_px=arguments.size,
        options=dict(map(_option, arguments.set)),
    )


def _check_names(*named: tuple[str, str]) -> None:
    for option, value in named:
        if not NAME_PATTERN.fullmatch(value):
            words = "must be 1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit"
            raise ConfigurationError(f"{option} {words}, not {value!r:.150}")


def _option(text: str) -> tuple[str, Any]:
    """Return a key of the table [task] and its value: a value of TOML, else a text."""
    key, equals, value = text.partition("=")
    if not (equals and key.isidentifier()):
        raise ConfigurationError(f"--set must be KEY=VALUE, not {text!r:.150}")
    try:
        return key, tomllib.loads(f"{key} = {value}")[key]
    except ValueError:
        return key, value


def _name(file: Path) -> str:
    """Return a name of a model from that of a file, or from its folder if the file is only called `model`."""
    stem = file.resolve().parent.name if file.stem == MODEL_STEM else file.stem
    return re.sub(r"^[^A-Za-z0-9]+", "", re.sub(r"[^A-Za-z0-9._-]+", "-", stem))[:128] or MODEL_STEM


def _next_version(folder: Path) -> str:
    numbers = [int(entry.name) for entry in folder.glob("[0-9]*") if entry.name.isdecimal()]
    return str(max(numbers, default=0) + 1)


async def _read(paths: Sequence[Path], config: Config) -> list[ModelFile]:
    with progress() as bar:
        task = bar.add_task("reading", total=len(paths))
        files = []
        for path in paths:
            bar.update(task, description=f"reading {path.name}")
            files.append(await read_model_file(path, config.trial, SETTINGS))
            bar.advance(task)
        return files


async def _create(draft: ManifestDraft, models: Path, config: Config) -> CreatedModel:
    with progress() as bar:
        task = bar.add_task("writing", total=2 * len(draft.files))

        def stage(text: str) -> None:
            bar.update(task, advance=1, description=text)

        return await create_model(draft, models, config.trial, config.library, stage)


def _asked(files: Sequence[ModelFile], draft: ManifestDraft, wishes: Wishes) -> ManifestDraft:
    """Ask each open question once, and draft again after an answer."""
    known: set[str] = set()
    while question := next((each for each in draft.questions if each.key not in known), None):
        known.add(question.key)
        wishes = _with_answer(wishes, question, answer(question))
        draft = make_draft(files, wishes)
    return draft


def _with_answer(wishes: Wishes, question: Question, text: str) -> Wishes:
    match question.key:
        case "labels_file":
            return replace(wishes, labels=read_labels(Path(text), SETTINGS), labels_file=text) if text else wishes
        case "keypoints_file":
            return replace(wishes, keypoints=read_labels(Path(text), SETTINGS), keypoints_file=text) if text else wishes
        case "value_range":
            return replace(wishes, value_range=text)
        case _:
            return replace(wishes, task=text)


def _print_files(files: Sequence[ModelFile]) -> None:
    rows = [
        (
            file.path.name,
            file.runtime,
            file.precision,
            _tensors(file.signature.inputs),
            _tensors(file.signature.outputs),
        )
        for file in files
    ]
    print_table(("file", "runtime", "precision", "inputs", "outputs"), rows)
    for file in files:
        for remark in file.remarks:
            print(f"{file.path.name}: {remark}")
    print()


def _tensors(specs: Sequence[TensorSpec]) -> str:
    return "\n".join(f"{spec.name} {spec.datatype.label} {list(spec.shape)}" for spec in specs)


def _print(draft: ManifestDraft, created: CreatedModel) -> None:
    if not can_ask():
        _print_files(draft.files)
    manifest = created.manifest
    more = ", …" if len(manifest.labels) > LABELS_SHOWN else ""
    labels = f"{len(manifest.labels)}: {', '.join(manifest.labels[:LABELS_SHOWN])}{more}" if manifest.labels else "none"
    facts = [("task", manifest.task or f"none: {draft.proposal.why}"), ("labels", labels)]
    facts += [("adapters", ", ".join(manifest.adapters))] if manifest.adapters else []
    facts += [(name, verdict.reason) for name, verdict in created.verdicts.items()]
    facts += [("assumed", f"{place}: {note.removeprefix(f'{ASSUMED}: ')}") for place, note in _assumed(created)]
    facts += [("results", tensors_only(created.lacking))] if created.lacking else []
    facts += [("written", str(created.folder / MANIFEST))]
    quantize = f"edge-gateway models quantize {created.folder} --calibration DATA"
    facts += [("next", "edge-gateway run" if is_generative(manifest) else quantize)]
    print_facts(facts)


def _assumed(created: CreatedModel) -> list[tuple[str, str]]:
    return [(place, note) for place, note in created.notes.items() if note.startswith(ASSUMED)]


def _json(draft: ManifestDraft, created: CreatedModel) -> dict[str, Any]:
    manifest = created.manifest
    signature = Signature(manifest.inputs, manifest.outputs)
    sides = {"inputs": signature.inputs, "outputs": signature.outputs}
    signature_json = {
        side: [
            {"name": s.name, "datatype": s.datatype.label, "shape": list(s.shape), "layout": s.layout} for s in specs
        ]
        for side, specs in sides.items()
    }
    return {
        "folder": str(created.folder),
        "name": manifest.name,
        "version": manifest.version,
        "task": {"kind": manifest.task, "options": dict(draft.proposal.options), "why": draft.proposal.why},
        "lacking": created.lacking,
        "labels": list(manifest.labels),
        "adapters": list(manifest.adapters),
        **signature_json,
        "variants": [
            {
                "name": variant.name,
                "file": str(file.path),
                "runtime": variant.runtime,
                "precision": variant.precision,
                "level": created.verdicts[variant.name].level,
                "reason": created.verdicts[variant.name].reason,
                "remarks": list(file.remarks),
            }
            for variant, file in zip(manifest.variants, draft.files, strict=True)
        ],
        "notes": created.notes,
        "assumed": [place for place, _ in _assumed(created)],
    }


def can_ask() -> bool:
    """Return True if a person is at the terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def answer(question: Question) -> str:
    """Return the answer to a question: one of its choices if it has any; its default for an empty line or the end."""
    choices = f" ({', '.join(filter(None, question.choices))})" if question.choices else ""
    default = f" [{question.default}]" if question.default else ""
    while True:
        print(plain(f"{question.text}{choices}{default}: "), end="", file=sys.stderr, flush=True)
        text = sys.stdin.readline().strip() or question.default
        if not question.choices or text in question.choices:
            return text
        print(plain(f"{text!r} is none of the choices"), file=sys.stderr)
