"""Results of a route, and errors, as JSON (docs/pages/howto/results.md): label and score, or outputs by name. Pure.

A result has label and score if an output is a score vector, else its outputs by name. This is decided once for each
model version and route. An output is a score vector if all of these hold:

1. Its datatype is FP16, BF16, FP32 or FP64, or INT8 or UINT8 (quantized scores).
2. Its declared shape is [classes], or [rows, classes] with rows open or 1. The classes are the last axis.
3. The manifest has labels, and classes equals their number. Without labels, the output is the only one of the model
and declares at least 2 classes: a class is then named by its index.
4. The output declares postprocess = "softmax", or the task ends in "classification", or there is no task but labels.

If the route names outputs, only those are considered. If there are several score vectors, the only one with softmax
counts. If that does not decide, none does: the gateway does not guess. A text output is never a label.

An answer whose shape is not the declared one is published by name as well.

`content = "scores"` adds the scores by label; `content = "values"` writes outputs as plain numbers and texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec
from gateway.common.domain.problem import error_text
from gateway.common.domain.tensor import Array, Datatype, Tensor
from gateway.serving.domain.decimals import decimals
from gateway.serving.frontends.mqtt.settings.results import DEFAULT, ResultSettings

SCORES = frozenset({Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64, Datatype.INT8, Datatype.UINT8})
Line = dict[str, Any]
TIMES_REMEMBERED = 256
"""Seconds whose text is remembered."""


@dataclass(frozen=True, slots=True)
class ResultPlan:
    """Content of the results of one model version on one route.

    `scores` names the score vector ("": there is none), `classes` is its size and `labels` names them (empty: by
    index). `named` are the outputs that the route asks for. `batched`: the first dimension of outputs counts rows.
    `content` and `top_k` are the route's settings (`settings`). `document` is the output with results of the model's
    task as JSON ("": it has none); they take the place of label and score.
    """

    scores: str = ""
    classes: int = 0
    labels: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    batched: bool = False
    content: str = "label"
    top_k: int = 0
    document: str = ""

    def label(self, index: int) -> str:
        """Return the label of a class."""
        return self.labels[index] if self.labels else str(index)

    def index(self, label: str) -> int | None:
        """Return the class that is called `label`, or None."""
        names = self.labels or tuple(map(str, range(self.classes)))
        return names.index(label) if label in names else None

    def __str__(self) -> str:
        label = f"a label from output '{self.scores}'" if self.scores else "the model's task" if self.document else ""
        named = f"outputs {', '.join(self.named)}" if self.named else ""
        return " and ".join(filter(None, (label, named))) or "all outputs by name: none is a score vector"


def plan_results(
    manifest: ModelManifest, named: tuple[str, ...] = (), settings: ResultSettings = DEFAULT
) -> ResultPlan:
    """Return what results carry, by the rule above; `named` are outputs of the manifest that the route names."""
    vectors = [spec for spec in manifest.outputs if spec.name in (named or (spec.name,)) and _scores(spec, manifest)]
    if len(vectors) > 1:
        vectors = [spec for spec in vectors if spec.postprocess == "softmax"]
    document = next(iter(manifest.answered), "")
    plan = ResultPlan("", 0, (), named, manifest.batched, settings.content, settings.top_k, document)
    if document or len(vectors) != 1:
        return plan
    return replace(plan, scores=vectors[0].name, classes=vectors[0].shape[-1], labels=manifest.labels)


def write_results(plan: ResultPlan, outputs: Mapping[str, Tensor], rows: int, limit_bytes: int) -> Line:
    """Return the part of a result that depends on the outputs of a request of `rows` rows.

    One row: `label` and `score`, or `outputs`, or both if the route names outputs. Other numbers of rows: `results`, a
    list with one such object per row, if every published output has that number of rows; else `outputs` as a whole.
    Raises RequestError TOO_LARGE if the JSON would certainly exceed `limit_bytes`, before it is built. Raises
    UNSUPPORTED if an output is not UTF-8.
    """
    count = rows if plan.batched else 1
    documents = read_documents(plan.document, outputs) if plan.document else None
    scores = score_rows(plan, outputs, count) if plan.scores else None
    names = plan.named if plan.named or documents or scores is not None else tuple(outputs)
    write = _values if plan.content == "values" else _outputs
    is_whole = count != 1 and any(outputs[name].array.shape[:1] != (count,) for name in names)
    least_bytes = 0 if scores is None or is_whole else _least_class_bytes(plan, scores)
    check_size(least_bytes + sum([_least_bytes(outputs[name]) for name in names]), limit_bytes)
    if is_whole:
        return write(names, outputs)
    best = documents or ([{}] * count if scores is None else _best_classes(plan, scores))
    if count == 1:
        return {**best[0], **write(names, outputs)}
    return {"results": [{**best[row], **write(names, outputs, slice(row, row + 1))} for row in range(count)]}


def read_documents(name: str, outputs: Mapping[str, Tensor]) -> list[Line] | None:
    """Return the results of a task, one for each row; None if there is no output `name`."""
    tensor = outputs.get(name)
    return None if tensor is None else [msgspec.json.decode(content) for content in tensor.array.ravel()]


def check_size(size_bytes: int, limit_bytes: int) -> None:
    """Raise RequestError TOO_LARGE if a result of at least `size_bytes` exceeds `limit_bytes`."""
    if size_bytes > limit_bytes:
        problem = f"the result has at least {size_bytes} bytes; at most {limit_bytes} are published"
        remedy = "name smaller outputs in the route's outputs, or raise mqtt.max_result_bytes"
        raise RequestError(Fault.TOO_LARGE, f"{problem}; {remedy}")


def _scores(spec: TensorSpec, manifest: ModelManifest) -> bool:
    """Return True if `spec` is a score vector (the four conditions above)."""
    classes = spec.shape[-1] if spec.shape else 0
    shaped = len(spec.shape) == 1 or (len(spec.shape) == 2 and spec.shape[0] in {ROWS, 1})
    if spec.datatype not in SCORES or not shaped:
        return False
    sized = classes == len(manifest.labels) if manifest.labels else classes > 1 and len(manifest.outputs) == 1
    classification = manifest.task.endswith("classification") if manifest.task else bool(manifest.labels)
    return sized and (spec.postprocess == "softmax" or classification)


def score_rows(plan: ResultPlan, outputs: Mapping[str, Tensor], count: int) -> Array | None:
    """Return the scores [count, classes] of an answer; None if it holds no such scores."""
    tensor = outputs.get(plan.scores)
    if tensor is None:
        return None
    scores, shape = tensor.array, tensor.array.shape
    if shape != (count, plan.classes):
        if count != 1 or shape != (plan.classes,):
            return None
        scores = scores.reshape(1, plan.classes)
    return scores


def best_indices(scores: Array, count: int) -> list[int]:
    """Return the classes of the `count` highest scores, best first; of equal ones the lower index comes first.

    NaN has no order: such a row has no best class.
    """
    if count == 1:
        index = int(scores.argmax())
        return [] if math.isnan(scores[index]) else [index]
    order: list[int] = np.argsort(-scores.astype(np.float64), kind="stable")[:count].tolist()
    return [] if np.isnan(scores.astype(np.float64)).any() else order


def finite(value: float) -> float | None:
    """Return a number as its shortest decimal; None if it is infinite or NaN."""
    return float(str(value)) if math.isfinite(value) else None


def _best_classes(plan: ResultPlan, scores: Array) -> list[Line]:
    """Return label and score of the best class of each row, and its scores, best first, if the route asks for them.

    The score is as the output holds it: None if it is infinite. NaN has no best class.
    """
    lines = list[Line]()
    for row, index in zip(scores, scores.argmax(axis=1).tolist(), strict=True):
        score = row[index]
        lines.append({"label": None if math.isnan(score) else plan.label(index), "score": finite(score)})
        if plan.content == "scores":
            best, numbers = best_indices(row, plan.top_k or plan.classes), decimals(row)
            lines[-1]["scores"] = {plan.label(each): finite(numbers[each]) for each in best}
    return lines


def _values(names: Sequence[str], outputs: Mapping[str, Tensor], rows: slice | None = None) -> Line:
    """Return the outputs `names`, or `rows` of them, as values: `value` if there is one in all, else `values`."""
    if not names:
        return {}
    values: Line = {}
    for name in names:
        array = outputs[name].array if rows is None else outputs[name].array[rows]
        data = _data(name, outputs[name].datatype, array)
        values[name] = data[0] if array.size == 1 else data
    only = values[names[0]]
    return {"values": values} if len(names) > 1 or isinstance(only, list) else {"value": only}


def _outputs(names: Sequence[str], outputs: Mapping[str, Tensor], rows: slice | None = None) -> Line:
    """Return the outputs `names`, or `rows` of them, as OIP's JSON tensors: name, datatype, shape, data in C order."""
    lines = list[Line]()
    for name in names:
        datatype, array = outputs[name].datatype, outputs[name].array
        array = array if rows is None else array[rows]
        data = _data(name, datatype, array)
        lines.append({"name": name, "datatype": datatype.label, "shape": list(array.shape), "data": data})
    return {"outputs": lines} if lines else {}


def _data(name: str, datatype: Datatype, array: Array) -> list[Any]:
    """Return the elements as JSON values. NaN and infinities, which JSON lacks, are the texts of ProtoJSON."""
    values = decimals(array)
    if datatype is Datatype.BYTES:
        return [_text(name, value) for value in values]
    if array.dtype.kind == "f" and not math.isfinite(sum(values)):  # 0.1 µs for 4 values; numpy takes 3
        texts = {math.inf: "Infinity", -math.inf: "-Infinity"}
        return [value if math.isfinite(value) else texts.get(value, "NaN") for value in values]
    return values


def _text(name: str, value: bytes | str) -> str:
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        problem = f"output '{name}' holds bytes that are not UTF-8, which JSON cannot carry; name other outputs of the "
        raise RequestError(Fault.UNSUPPORTED, f"{problem}model in the route's outputs") from None


def _least_bytes(tensor: Tensor) -> int:
    """Return the least JSON size of a tensor's data: a digit or two quotes, and a comma for each element."""
    if tensor.datatype is Datatype.BYTES:
        return sum(len(value) + 3 for value in tensor.array.ravel())
    return 2 * tensor.array.size


def _least_class_bytes(plan: ResultPlan, scores: Array) -> int:
    """Return the least JSON size of labels and scores: empty labels, and a digit for each score.

    A row with NaN has no scores by label, and labels that are equal share a score.
    """
    size_bytes = len(scores) * len('"label":"","score":0')
    if plan.content != "scores":
        return size_bytes
    count = min(plan.top_k or plan.classes, plan.classes)
    if plan.labels:
        count = max(0, count - len(plan.labels) + len(set(plan.labels)))
    ordered = len(scores) - int(np.isnan(scores).any(axis=1).sum())
    return size_bytes + ordered * count * len('"":0,')


def write_error(identity: str, topic: str, refused: RequestError, correlation: str = "") -> bytes:
    """Return a refusal. `error` repeats `message` because clients of the inference protocol read `error`.

    `correlation` is that of a request that brought it in its body.
    """
    message = error_text(refused.message)
    line = {"id": identity, "topic": topic, "fault": refused.fault.value, "message": message, "error": message}
    return msgspec.json.encode(line | ({"correlation": correlation} if correlation else {}))


def timestamp(wall_ns: int) -> str:
    """Return a time since the epoch as ISO 8601 in UTC, in whole milliseconds."""
    seconds, ms = divmod(wall_ns // 1_000_000, 1000)
    return f"{_written_second(seconds)}.{ms:03d}Z"


@lru_cache(maxsize=TIMES_REMEMBERED)
def _written_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat().removesuffix("+00:00")
