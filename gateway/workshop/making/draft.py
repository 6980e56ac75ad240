"""Draft of a manifest from model files and what their author says; each value that was inferred has a comment.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ROWS, Binding, ModelManifest, TensorSpec, Variant
from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.text_model import TEXT_INPUTS, TEXT_OUTPUTS
from gateway.common.domain.verdict import Signature
from gateway.serving.tasks.catalog import TASKS, task_of
from gateway.serving.tasks.keypoints import COCO_KEYPOINTS
from gateway.serving.tasks.postprocessed_head import ROLES, roles_of
from gateway.workshop.making.image_draft import with_layout, with_preprocess
from gateway.workshop.making.model_file import ModelFile
from gateway.workshop.making.task_proposal import TaskProposal, propose_task
from gateway.workshop.making.tensor_guesses import RowsGuess, guess_rows, merged_shape, rows_first, with_rows_second
from gateway.workshop.making.wishes import ASSUMED, INFERRED, Question, Remarks, Wishes

Specs = tuple[TensorSpec, ...]
HEADS = frozenset({"yolov5", "yolox", "yolov8", "end-to-end", "ssd", "mediapipe", "db"})
"""Formats of outputs that are heads of detection tasks."""
SSD_ROLES = {"boxes": "boxes", "classes": "classes_output", "scores": "scores", "count": "number"}
"""Options of the SSD head by the names of a proposal's outputs, if their own names do not tell it."""


@dataclass(frozen=True, slots=True)
class ManifestDraft:
    """Manifest without artifacts; `files` are in the order of its variants. `notes` as in `manifest_text`."""

    manifest: ModelManifest
    files: tuple[ModelFile, ...]
    proposal: TaskProposal
    notes: Mapping[str, str]
    questions: tuple[Question, ...]


def make_draft(files: Sequence[ModelFile], wishes: Wishes) -> ManifestDraft:
    """Return the draft of a model with one variant for each file.

    The first fp32 file, else the first one, decides the tensors. Raises ConfigurationError if the files do not belong
    to one model, or if the labels do not fit.
    """
    files = [replace(file, signature=with_rows_second(file.signature)) for file in files]
    ordered, remarks = tuple(sorted(files, key=lambda file: file.precision != "fp32")), Remarks()
    if any(file.signature.outputs in {TEXT_OUTPUTS, ()} for file in ordered):
        return _language_draft(ordered, wishes, remarks)
    inputs, outputs = _specs(ordered, remarks)
    labels, why = _labels(ordered, wishes)
    proposal = propose_task(Signature(inputs, outputs), labels, len(wishes.keypoints))
    if wishes.keypoints and proposal.options.get("points") != len(wishes.keypoints):
        problem = f"holds {len(wishes.keypoints)} names of key points, which the outputs do not have ({proposal.why})"
        raise ConfigurationError(
            f"{problem}; name the file that fits, and the labels of the boxes with --labels", file=wishes.keypoints_file
        )
    labels = _fitting_labels(labels, why, proposal, wishes, remarks)
    kind = wishes.task or proposal.kind
    if wishes.options and not kind:
        raise ConfigurationError(
            f"--set needs a task, which the tensors do not tell ({proposal.why}); name it by --task"
        )
    remarks.say("task", _task_note(proposal, wishes))
    table = {**(proposal.table if kind == proposal.kind else {}), **wishes.options}
    proposal = replace(proposal, table=table)
    proposal = _with_point_names(proposal, wishes, remarks)
    inputs = tuple(with_preprocess(spec, ordered[0], kind, wishes, remarks, proposal=proposal) for spec in inputs)
    outputs = _with_layouts(outputs, proposal)
    if not labels and proposal.options.get("classes", 1) > 1:
        remarks.ask("labels_file", "file with the labels, one in each line (empty: none)", "")
    variants, inputs, outputs = _variants(ordered, inputs, outputs, remarks)
    if not kind:
        remarks.ask("task", "task of the model (empty: none)", "", ("", *TASKS))
    if kind.startswith("time-series"):
        remarks.say("inputs", _window_note(inputs[0]))
    batch = "batch" not in remarks.notes
    manifest = ModelManifest(wishes.name, wishes.version, inputs, outputs, variants, kind, labels=labels, batch=batch)
    manifest, _ = with_task_table(manifest, proposal)
    if "classes" in (manifest.task_options or {}):
        remarks.assume("task.classes", "classes come before scores in the file, whose names do not tell them")
    return ManifestDraft(manifest, ordered, proposal, remarks.notes, tuple(remarks.questions))


def _language_draft(files: tuple[ModelFile, ...], wishes: Wishes, remarks: Remarks) -> ManifestDraft:
    """Return the draft of a language model: its tensors are known, and it has no task. Raises ConfigurationError."""
    if wishes.task or wishes.labels or wishes.keypoints or wishes.options:
        raise ConfigurationError(
            "is a language model, which has no task and no labels; leave these options out", file=str(files[0].path)
        )
    adapters = tuple(file.path for file in files if not file.signature.outputs)
    names = [path.stem for path in adapters]
    for path in adapters:
        if len(adapters) == len(files):
            raise ConfigurationError("is an adapter; name the language model that it belongs to, too", file=str(path))
        if names.count(path.stem) > 1 or not NAME_PATTERN.fullmatch(path.stem):
            problem = "gives its adapter a name that another has, or that is no name; rename the file"
            raise ConfigurationError(problem, file=str(path))
    for file in files:
        if adapters and file.signature.outputs not in {TEXT_OUTPUTS, ()}:
            problem = f"is no language model, and has no adapters; leave {', '.join(map(str, adapters))} out"
            raise ConfigurationError(problem, file=str(file.path))
    files = tuple(replace(file, adapters=adapters) for file in files if file.signature.outputs)
    bound, inputs, outputs = _variants(files, TEXT_INPUTS, TEXT_OUTPUTS, remarks)
    variants = tuple(replace(variant, bind={}) for variant in bound)  # all have the same names
    manifest = ModelManifest(wishes.name, wishes.version, inputs, outputs, variants, batch=False)
    return ManifestDraft(manifest, files, TaskProposal("", why="a language model"), remarks.notes, ())


def _with_point_names(proposal: TaskProposal, wishes: Wishes, remarks: Remarks) -> TaskProposal:
    """Return the proposal with names of the model's key points: the author's, or COCO's if there are as many."""
    count, names = proposal.options.get("points", 0), wishes.keypoints or proposal.options.get("keypoints", ())
    if count and not names and count != len(COCO_KEYPOINTS):
        remarks.ask("keypoints_file", f"file with the names of the {count} key points (empty: none)", "")
        remarks.say("task", f"{remarks.notes['task']}\nno table [task]: name the points with --keypoints FILE")
        return proposal
    if count and not names:
        remarks.assume("task.keypoints", f"the {count} points are those of a person in COCO; --keypoints names others")
        names = COCO_KEYPOINTS
    return replace(proposal, options={**proposal.options, "keypoints": names}) if names else proposal


def with_task_table(
    manifest: ModelManifest, proposal: TaskProposal, seen: Mapping[str, Any] | None = None
) -> tuple[ModelManifest, str]:
    """Return the manifest with a table of its task, and ""; without the table, and why, if something is missing.

    `seen` are options that runs of the model showed.
    """
    bare = replace(manifest, task_options=None)
    if not manifest.task:
        return bare, ""
    tabled = replace(manifest, task_options={**_task_options(manifest, proposal), **(seen or {}), **proposal.table})
    try:
        task_of(tabled)
    except ConfigurationError as error:
        return bare, f"{error.table}.{error.key}: {error.problem}" if error.key else error.problem
    return tabled, ""


def _task_options(manifest: ModelManifest, proposal: TaskProposal) -> dict[str, Any]:
    """Return the options that the proposal tells: head, output of scores, outputs by role, a space of CTC."""
    if manifest.task != proposal.kind:
        return {}
    given, options = proposal.options, dict[str, Any]()
    if given.get("format") in HEADS:
        options["head"] = given["format"]
    if given.get("format") == "ssd" and not set(ROLES[:3]) <= roles_of(manifest, {}).keys():
        options |= {role: given[key] for role, key in SSD_ROLES.items()}
    if "scores" in given and "format" not in given and len(manifest.outputs) > 1:
        options["output"] = given["scores"]
    if given.get("characters") == len(manifest.labels) + 2:
        options["space"] = True
    return options | {key: given[key] for key in ("keypoints", "values") if "keypoints" in given and key in given}


def labels_mismatch(count: int, proposal: TaskProposal) -> str:
    """Return why a number of labels does not fit the outputs, or "". CTC has a blank, and often a space, besides."""
    classes, characters = proposal.options.get("classes"), proposal.options.get("characters")
    if count == 0 or (classes in {None, count} and characters is None):
        return ""
    if characters is not None and characters - count in {0, 1, 2}:
        return ""
    wanted = classes if characters is None else f"{characters - 1} (and a blank)"
    return f"holds {count} labels, but the outputs have {wanted} classes ({proposal.why}); name the file that fits"


def _specs(files: Sequence[ModelFile], remarks: Remarks) -> tuple[Specs, Specs]:
    """Return the tensors of the first file with their rows and the layouts of images."""
    signature = rows_first(files[0].signature)
    rows = min(
        (guess_rows(rows_first(file.signature)) for file in files), key=lambda found: (found.counted, found.open)
    )
    for spec in files[0].signature.outputs:
        if spec.layout:
            remarks.infer(f"output.{spec.name}.layout", "the file calls its second dimension as the rows of the inputs")
    if not rows.counted:
        remarks.infer("batch", rows.why)
    elif not rows.open:
        remarks.infer(f"input.{signature.inputs[0].name}.shape", rows.why)
    inputs = tuple(_with_rows(spec, rows) for spec in signature.inputs)
    outputs = tuple(_with_rows(spec, rows) for spec in signature.outputs)
    return tuple(with_layout(spec, remarks) for spec in inputs), outputs


def _with_rows(spec: TensorSpec, rows: RowsGuess) -> TensorSpec:
    shape = (ROWS, *spec.shape[1:]) if rows.counted else spec.shape
    return replace(spec, shape=shape, axes=())


def _labels(files: Sequence[ModelFile], wishes: Wishes) -> tuple[tuple[str, ...], str]:
    if wishes.labels:
        return wishes.labels, f"from {wishes.labels_file}"
    return next(((file.labels, f"{INFERRED}: {file.labels_why}") for file in files if file.labels), ((), ""))


def _fitting_labels(
    labels: tuple[str, ...], why: str, proposal: TaskProposal, wishes: Wishes, remarks: Remarks
) -> tuple[str, ...]:
    """Return the labels if the outputs have as many classes; labels of the file itself that do not fit are left out.

    Raises ConfigurationError for labels of the author.
    """
    problem = labels_mismatch(len(labels), proposal)
    if problem and wishes.labels:
        raise ConfigurationError(problem, file=wishes.labels_file)
    if problem:
        remarks.say("labels", f"{ASSUMED}: left out, because {why.removeprefix(f'{INFERRED}: ')} {problem}")
        return ()
    if labels:
        remarks.say("labels", why)
    elif proposal.labels:
        remarks.assume("labels", "the only class of such models; --labels names another file")
    return labels or proposal.labels


def _task_note(proposal: TaskProposal, wishes: Wishes) -> str:
    if wishes.task and wishes.task != proposal.kind:
        return f"as --task says; the tensors tell: {proposal.kind or proposal.why}"
    options = ", ".join(f"{name} = {value}" for name, value in proposal.options.items())
    return f"{INFERRED}: {proposal.why}" + (f"\noptions of the task: {options}" if options else "")


def _with_layouts(outputs: Specs, proposal: TaskProposal) -> Specs:
    """Return the outputs; maps of scores have the layout of the image."""
    layout = str(proposal.options.get("layout", ""))
    return tuple(replace(spec, layout=layout) if len(spec.shape) == 4 else spec for spec in outputs)


def _variants(
    files: Sequence[ModelFile], inputs: Specs, outputs: Specs, remarks: Remarks
) -> tuple[tuple[Variant, ...], Specs, Specs]:
    """Return the variants without artifacts, and the tensors with the sizes that all files accept."""
    variants: list[Variant] = []
    for file in files:
        bind, shapes = match_tensors(inputs, file, file.signature.inputs)
        others, sizes = match_tensors(outputs, file, file.signature.outputs)
        inputs = tuple(replace(spec, shape=shape) for spec, shape in zip(inputs, shapes, strict=True))
        outputs = tuple(replace(spec, shape=shape) for spec, shape in zip(outputs, sizes, strict=True))
        name = _unused(f"{file.runtime}-{file.precision}", [variant.name for variant in variants])
        accelerators = RUNTIMES[file.runtime].accelerators
        variants.append(Variant(name, file.runtime, file.precision, (), accelerators, bind=bind | others))
        remarks.infer(f"variant.{name}.precision", f"the types of weights and operators in {file.path.name}")
    return tuple(variants), inputs, outputs


def _unused(name: str, used: Sequence[str]) -> str:
    number = next(number for number in range(1, len(used) + 2) if _numbered(name, number) not in used)
    return _numbered(name, number)


def _numbered(name: str, number: int) -> str:
    return name if number == 1 else f"{name}-{number}"


def _window_note(spec: TensorSpec) -> str:
    rows, channels = spec.shape[1], spec.shape[2]
    if spec.datatype is not Datatype.FP32 or rows < 1 or channels < 1:
        return "To serve windows of sensors, add the table [window] (docs/pages/reference/manifest.md)."
    names = ", ".join(f'"c{index}"' for index in range(channels))
    return (
        'To serve windows of sensors, name the channels and the rate of the training data, and remove the "#":\n'
        f"[window]\nchannels = [{names}]\nsize_rows = {rows}\nhop_rows = {max(1, rows // 2)}\nrate_hz = 10"
    )


_SWAPPED = {"NCHW": "NHWC", "NHWC": "NCHW"}


def match_tensors(
    specs: Sequence[TensorSpec], file: ModelFile, own: Sequence[TensorSpec]
) -> tuple[dict[str, Binding], list[tuple[int, ...]]]:
    """Return the binding of each tensor in `own` (the inputs or the outputs of `file`), and the shapes that fit both.

    A tensor of the same name is taken first, then the only one that fits, then the one in the same place. Raises
    ConfigurationError if a tensor has no counterpart.
    """
    bindings: dict[str, Binding] = {}
    shapes: list[tuple[int, ...]] = []
    left = list(own)
    for place, spec in enumerate(specs):
        fitting = [each for each in left if _fit(spec, each)]
        named = [each for each in fitting if each.name == spec.name]
        placed = [each for each in fitting if place < len(own) and each is own[place]]
        found = next(iter(named or (fitting if len(fitting) == 1 else placed)), None)
        if found is None:
            raise _no_variant(spec, file, own)
        left.remove(found)
        layout, shape = _fit(spec, found) or ("", spec.shape)
        bindings[spec.name] = Binding(found.name, layout)
        shapes.append(shape)
    return bindings, shapes


def _fit(spec: TensorSpec, own: TensorSpec) -> tuple[str, tuple[int, ...]] | None:
    """Return the layout of a file's tensor and the manifest's shape that both accept; None if they do not agree."""
    if _family(spec) != _family(own):
        return None
    layouts = [own.layout] if own.layout else [spec.layout, *filter(None, [_SWAPPED.get(spec.layout)])]
    for layout in layouts:
        turned = _turned(own.shape, layout, spec.layout)
        shape = merged_shape(_with_own_rows(spec.shape), _with_own_rows(turned))
        if shape is not None:
            return layout, (spec.shape[:1] + shape[1:])
    return None


def _with_own_rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape with an open first dimension in place of 1: the gateway runs rows one after the other."""
    return (ROWS, *shape[1:]) if shape[:1] == (1,) else shape


def _turned(shape: tuple[int, ...], layout: str, wanted: str) -> tuple[int, ...]:
    if not layout or layout == wanted or len(shape) != len(layout):
        return shape
    return tuple(shape[layout.index(axis)] for axis in wanted)


def _family(spec: TensorSpec) -> str:
    """Return the family of a datatype, as bindings convert: floats, integers, booleans, texts."""
    return spec.datatype.dtype.kind.replace("u", "i")


def _no_variant(spec: TensorSpec, file: ModelFile, own: Sequence[TensorSpec]) -> ConfigurationError:
    offered = ", ".join(f"{each.name!r} {each.datatype.label} {list(each.shape)}" for each in own[:4]) or "none"
    problem = (
        f"is no variant of the first file: nothing fits {spec.name!r} {spec.datatype.label} {list(spec.shape)}; it has "
        f"{offered}; make a model of its own of it"
    )
    return ConfigurationError(problem, file=str(file.path))
