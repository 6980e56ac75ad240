"""Source `huggingface`: an export of a Transformers model to ONNX, as Optimum writes it.

Source: huggingface.co/docs, "Export a model to ONNX with optimum.exporters.onnx", and `config.json` of Transformers.
The model files are in the folder itself or in `onnx/`: `model.onnx` and its siblings `model_fp16.onnx`,
`model_quantized.onnx` and the like, which become variants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ROWS, TensorSpec
from gateway.common.domain.verdict import Signature
from gateway.workshop.importing.hugging_face_images import PROCESSOR, read_steps
from gateway.workshop.importing.imported import (
    ImportedModel,
    ImportedSource,
    ImportedVariant,
    ImportFinding,
    fitting_labels,
    left_out,
    plain_name,
    shapes,
    taken,
    to_add,
    variant_of,
)
from gateway.workshop.importing.json_document import read_json
from gateway.workshop.importing.pixels import image_spec, preprocess_keys
from gateway.workshop.importing.source import Documents, SourceModel, joined

CONFIG = "config.json"
FOLDERS = ("", "onnx")
MAIN = "model.onnx"
MASK = "pixel_mask"
"""Input of DETR and its kin: 1 where a pixel belongs to the image, 0 where it pads a batch."""
LABELS_LIMIT = 100_000
PRECISIONS: Mapping[str, str] = {
    "": "fp32",
    "fp16": "fp16",
    "bf16": "bf16",
    "quantized": "int8",
    "int8": "int8",
    "uint8": "int8",
    "quint8": "int8",
}
"""Precision by the end of a file's name, `model_…`."""
KINDS: Mapping[str, str] = {
    "ForImageClassification": "image-classification",
    "ForImageClassificationWithTeacher": "image-classification",
    "ForObjectDetection": "object-detection",
    "ForSemanticSegmentation": "semantic-segmentation",
    "ForAudioClassification": "audio-classification",
    "ForSequenceClassification": "text-classification",
}
"""Task by the end of an architecture's name."""
_GENERATORS = ("decoder_model", "decoder_with_past", "decoder_model_merged")
_TOKENS = "input_ids"


def is_hugging_face(documents: Documents) -> bool:
    """Return True for a config.json of Transformers with an ONNX file where Optimum puts it."""
    text = documents.texts.get(CONFIG, "")
    return ('"model_type"' in text or '"architectures"' in text) and bool(_files(documents))


def read_hugging_face(documents: Documents) -> ImportedSource:
    """Return the model. Raises ConfigurationError for damaged documents, and models that generate text."""
    config = read_json(documents.text(CONFIG), CONFIG)
    files = _files(documents)
    main = _main(files)
    signature = main.tensors()
    kind = _kind(config)
    inputs, preprocess, pixels = _images(documents, signature)
    outputs, labels, remark = _labelled(config, kind, signature.outputs)
    variants, others = _variants(main, files)
    options, facts = _task(config, kind, outputs)
    name, renamed = plain_name(_name(config, documents))
    tensors = shapes(Signature(inputs, outputs))
    imported = ImportedModel(
        name,
        "1",
        inputs,
        outputs,
        variants,
        labels=labels,
        task=kind,
        task_options=options,
        preprocess=preprocess,
        findings=(*renamed, *facts, *remark, *tensors, *pixels, *_tokens(inputs), *others),
    )
    return ImportedSource((imported,))


def _files(documents: Documents) -> Mapping[str, SourceModel]:
    """Return the ONNX files by their stem, of the first folder that has some."""
    for folder in FOLDERS:
        names = [name for name in documents.within(folder) if name.endswith(".onnx")]
        if names:
            return {PurePosixPath(name).stem: documents.model(joined(folder, name)) for name in names}
    return {}


def _main(files: Mapping[str, SourceModel]) -> SourceModel:
    if any(stem in files for stem in _GENERATORS):
        problem = "is a model that generates text step by step, which is not offered here; use a server for text"
        raise ConfigurationError(problem, file=next(files[stem].path for stem in _GENERATORS if stem in files))
    main = files.get("model") or (next(iter(files.values())) if len(files) == 1 else None)
    if main is None:
        names = ", ".join(sorted(files)[:5])
        raise ConfigurationError(f"holds no {MAIN}, but {names}; import one file alone", file=CONFIG)
    return main


def _kind(config: Mapping[str, Any]) -> str:
    """Return the task that the architecture tells, or ""."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    return next((kind for end, kind in KINDS.items() if name.endswith(end)), "")


def _name(config: Mapping[str, Any], documents: Documents) -> str:
    """Return the folder's name; that of the model's type, if the folder is only called `onnx` or `model`."""
    kind = config.get("model_type")
    return kind if documents.name in {"onnx", "model"} and isinstance(kind, str) else documents.name


def _images(
    documents: Documents, signature: Signature
) -> tuple[tuple[TensorSpec, ...], Mapping[str, Mapping[str, Any]], tuple[ImportFinding, ...]]:
    """Return the inputs with the images of the processor, its keys, and what was found."""
    if PROCESSOR not in documents.files:
        return signature.inputs, {}, ()
    values = read_json(documents.text(PROCESSOR), PROCESSOR)
    if "sampling_rate" in values:
        advice = f"sampling_rate {values['sampling_rate']!r:.20}: clients send prepared tensors"
        return signature.inputs, {}, (left_out(PROCESSOR, advice),)
    steps, found = read_steps(values)
    place = next((at for at, spec in enumerate(signature.inputs) if len(spec.shape) == 4), None)
    spec = image_spec(signature.inputs[place], steps) if place is not None and steps else None
    if spec is None or steps is None or place is None:
        problem = "its images do not fit the inputs of the model; write [input.preprocess], or send prepared tensors"
        return signature.inputs, {}, (*found, to_add(PROCESSOR, problem))
    inputs = tuple(spec if at == place else _whole(each, steps.size) for at, each in enumerate(signature.inputs))
    keys = preprocess_keys(steps)
    summary = f"{steps.fit} to {steps.size[0]} × {steps.size[1]} pixels, scale {keys['scale']:g}, mean {keys['mean']}"
    return inputs, {spec.name: keys}, (taken(PROCESSOR, summary), *found)


def _whole(spec: TensorSpec, size: tuple[int, int]) -> TensorSpec:
    """Return the mask of an image's pixels with ones as default: images have no padding here. Others stay as is."""
    if spec.name != MASK or len(spec.shape) != 3:
        return spec
    return replace(spec, shape=(spec.shape[0], *size), default=1.0)


def _labelled(
    config: Mapping[str, Any], kind: str, outputs: tuple[TensorSpec, ...]
) -> tuple[tuple[TensorSpec, ...], tuple[str, ...], tuple[ImportFinding, ...]]:
    """Return the outputs, with softmax where classes exclude each other, and the labels."""
    labels = _labels(config)
    if not kind.endswith("classification"):
        facts = (taken("id2label", f"labels: {len(labels)}"),) if labels else ()
        return outputs, labels, facts
    scores = _scores(outputs)
    known, remark = fitting_labels(labels, (scores,), "id2label")
    if scores.shape[-1] == ROWS and known:
        scores = replace(scores, shape=(*scores.shape[:-1], len(known)))
    if not _is_multi_label(config):
        scores = replace(scores, postprocess="softmax")
    return tuple(scores if spec.name == scores.name else spec for spec in outputs), known, remark


def _scores(outputs: Sequence[TensorSpec]) -> TensorSpec:
    return next((spec for spec in outputs if spec.name == "logits"), outputs[0])


def _is_multi_label(config: Mapping[str, Any]) -> bool:
    return config.get("problem_type") == "multi_label_classification"


def _labels(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the classes in order. Raises ConfigurationError for numbers with gaps."""
    found = config.get("id2label")
    if found is None:
        return ()
    if not isinstance(found, dict) or len(found) > LABELS_LIMIT:
        raise ConfigurationError("must name the classes by their numbers", file=CONFIG, key="id2label")
    if all(str(found.get(str(number))) == f"LABEL_{number}" for number in range(len(found))):
        return ()  # Transformers' own names for a model without any
    if set(found) != set(map(str, range(len(found)))):
        problem = f"must number {len(found)} classes from 0 without gaps; correct it"
        raise ConfigurationError(problem, file=CONFIG, key="id2label")
    return tuple(str(found[str(number)]) for number in range(len(found)))


def _task(
    config: Mapping[str, Any], kind: str, outputs: Sequence[TensorSpec]
) -> tuple[Mapping[str, Any] | None, tuple[ImportFinding, ...]]:
    """Return the options of the task; None where it has none here."""
    if not kind:
        names = config.get("architectures")
        return None, (to_add("task", f"the architecture {names!r:.100} does not tell it; write [task]"),)
    fact = taken("task", kind)
    if kind == "object-detection":
        return {"head": "detr", "boxes": "pred_boxes", "scores": "logits"}, (fact,)
    if kind == "semantic-segmentation":  # as post_process_semantic_segmentation
        return {"resize": "bilinear"}, (fact,)
    activation = {"activation": "sigmoid"} if _is_multi_label(config) else {}
    return {"output": _scores(outputs).name, **activation}, (fact,)


def _tokens(inputs: Sequence[TensorSpec]) -> tuple[ImportFinding, ...]:
    if not any(spec.name == _TOKENS for spec in inputs):
        return ()
    return (left_out("tokenizer", "clients send the numbers of tokens; the gateway has no tokenizer"),)


def _variants(
    main: SourceModel, files: Mapping[str, SourceModel]
) -> tuple[tuple[ImportedVariant, ...], tuple[ImportFinding, ...]]:
    """Return the main file and those siblings whose precision and tensors have a place next to it."""
    variants, remarks = [variant_of(main)], []
    for stem, model in sorted(files.items()):
        if model is main:
            continue
        end = stem.removeprefix("model_")
        problem = _obstacle(main, model, end)
        if problem:
            remarks.append(left_out(model.path, problem))
            continue
        variants.append(replace(variant_of(model, f"onnx-{end}"), precision=PRECISIONS[end]))
        remarks.append(taken(model.path, f"variant onnx-{end}, {PRECISIONS[end]}"))
    return tuple(variants), tuple(remarks)


def _obstacle(main: SourceModel, model: SourceModel, end: str) -> str:
    """Return why a sibling is no variant, or ""."""
    if end not in PRECISIONS:
        return "its precision has no name here; import it alone"
    if model.signature is None:
        return model.problem
    if _forms(model.signature) != _forms(main.tensors()):
        return f"its tensors are not those of {main.path}; import it alone"
    return ""


def _forms(signature: Signature) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(spec.name, spec.datatype.label, spec.shape) for spec in (*signature.inputs, *signature.outputs)]
