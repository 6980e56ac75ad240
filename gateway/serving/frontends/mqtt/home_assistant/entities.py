"""Entities that Home Assistant shows of the results of a model's task, by its kind. Pure functions."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gateway.common.domain.manifest import ROWS, ModelManifest
from gateway.common.domain.pipeline import DURATIONS, TOTALS
from gateway.common.domain.tensor import Datatype
from gateway.serving.frontends.mqtt.settings.route import MqttRoute

SCORE_DIGITS, VALUE_DIGITS, DIGITS_LIMIT = 3, 2, 6
"""Decimals that are shown of scores from 0 to 1, of other numbers of the size of 1, and at most."""
VALUES_LIMIT = 32
"""Most values or channels of a result that have an entity each."""


@dataclass(frozen=True, slots=True)
class Entity:
    """Sensor with the value of a Jinja `expression`. `digits` are the decimals that are shown; None: it is a text.

    `is_value`: a result with `payload = "value"` is this value. `is_verdict`: it is true or false. `is_total`: it only
    grows, until it begins again.
    """

    name: str
    expression: str
    digits: int | None = None
    unit: str = ""
    key: str = ""
    is_value: bool = True
    is_verdict: bool = False
    device_class: str = ""
    is_total: bool = False


def task_entities(manifest: ModelManifest, route: MqttRoute) -> list[Entity]:
    """Return the entities of a model with a task. That of the result's value, if it has one, is the first."""
    kind, options = manifest.task, manifest.task_options or {}
    if kind == "anomaly-detection":
        score = Entity("Score", "value_json.score", _digits(options["threshold"]))
        return [score, Entity("Anomalous", "value_json.anomalous", is_verdict=True, device_class="problem")]
    if kind == "text-recognition":  # a state has at most 255 characters
        text = Entity("Text", "value_json.text[:255] if value_json.text is string else None")
        return [text, Entity("Score", "value_json.score", SCORE_DIGITS)]
    if kind == "tabular-regression":
        return _quantities(manifest, route, "names", "value_json['values'][{}].value")
    if kind == "time-series-forecasting":
        has_values = 0.5 in (options.get("quantiles") or [0.5])
        return _quantities(manifest, route, "channels", "value_json.channels[{}]['values'][0]") if has_values else []
    if kind == "semantic-segmentation":
        return _best("classes", "Share")
    if kind.endswith("classification") or kind == "keyword-spotting":
        return _best("classes", "Score")
    if not kind:
        return list(_outputs(manifest))
    detections = Entity("Detections", "value_json.detections | count", 0)
    return [] if kind == "embedding" else [detections, *_best("detections", "Score"), *_counts(manifest.labels)]


def as_number(entity: Entity, route: MqttRoute, name: str, scale: float = 1.0) -> Entity:
    """Return the entity of a number that is called `name`, with decimals, and a unit.

    What the task does not tell is that of the route's channel of this name.
    """
    channel = next((each for each in route.channel if name in {each.name, each.path}), None)
    if scale == 1 and channel is not None and channel.scale != 1:
        scale = 100 * channel.scale  # one step of the channel is the last decimal
    return replace(entity, digits=_digits(scale), unit=entity.unit or (channel.unit if channel else ""))


def _quantities(manifest: ModelManifest, route: MqttRoute, key: str, expression: str) -> list[Entity]:
    """Return the entities of the numbers that a task names (`gateway.serving.tasks.quantities`)."""
    options = manifest.task_options or {}
    result = next(spec for spec in manifest.outputs if spec.name in manifest.answered[1:])
    count = result.shape[1 if key == "names" else 2]
    output = options.get("output") or next(spec.name for spec in manifest.outputs if spec.name not in manifest.answered)
    window = manifest.window.channels if manifest.window and key == "channels" else ()
    named = (options.get(key, ()), window, manifest.labels)
    names = next((each for each in named if len(each) == count or (count < 0 and each)), (output,))
    units, scales = ([*(options.get(each) or [none])] for each, none in (("units", ""), ("scale", 1.0)))
    single, entities = key == "names" and len(names) == 1, list[Entity]()
    for place, name in enumerate(names[:VALUES_LIMIT]):
        unit, own_key = units[place % len(units)], "value" if single else f"value_{place}"
        entity = Entity(name, expression.format(place), None, unit, own_key, is_value=single)
        entities.append(as_number(entity, route, name, scales[place % len(scales)]))
    return entities


def _outputs(manifest: ModelManifest) -> Iterator[Entity]:
    """Yield the entities of the outputs of a pipeline: numbers, texts, flags, and the lengths of lists."""
    totals, durations = (manifest.parameters.get(key, "").split() for key in (TOTALS, DURATIONS))
    listed = dict[str, None]()
    for spec in manifest.outputs[1 : VALUES_LIMIT + 1]:
        value = "value_json" + "".join(f"['{key}']" for key in spec.name.split("."))
        entity = Entity(
            re.sub("[._]", " ", spec.name).capitalize(), value, 0, key=f"output_{spec.name}", is_value=False
        )
        if spec.shape[1:2] == (-1,):
            name = spec.name.partition(".")[0]
            if name not in listed:
                yield replace(
                    entity, name=name.capitalize(), expression=f"value_json['{name}'] | count", key=f"output_{name}"
                )
            listed[name] = None
        elif spec.shape != (ROWS,):
            continue
        elif spec.datatype is Datatype.BYTES:
            yield replace(entity, expression=f"{value}[:255] if {value} is string else None", digits=None)
        elif spec.datatype is Datatype.BOOL:
            yield replace(entity, digits=None, is_verdict=True)
        elif spec.name in durations:
            yield replace(entity, digits=1, unit="s", device_class="duration")
        else:
            digits = VALUE_DIGITS if spec.datatype.dtype.kind == "f" else 0
            yield replace(entity, digits=digits, is_total=spec.name in totals)


def _counts(labels: Sequence[str]) -> list[Entity]:
    """Return the entities of the number of detections of each label; none if there are too many, or only one."""
    if not 1 < len(labels) <= VALUES_LIMIT:
        return []
    found = "value_json.detections | selectattr('label', 'eq', {}) | list | count"
    return [
        Entity(label, found.format(json.dumps(label)), 0, key=f"count_{place}", is_value=False)
        for place, label in enumerate(labels)
    ]


def _best(key: str, score: str) -> list[Entity]:
    """Return the entities of the first place of a list: its label, and its score or share."""
    return [
        Entity(name, f"value_json.{key}[0].{name.lower()} if value_json.{key} else None", digits)
        for name, digits in (("Label", None), (score, SCORE_DIGITS))
    ]


def _digits(size: float) -> int:
    """Return the decimals that tell numbers of this size apart."""
    return min(DIGITS_LIMIT, max(0, VALUE_DIGITS - math.floor(math.log10(abs(size) or 1.0))))
