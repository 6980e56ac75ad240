"""Discovery documents of Home Assistant: one device per gateway, and one per sensor of a route. Pure functions.

Format: MQTT integration of Home Assistant, "Device discovery payload" (since release 2024.11).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from gateway import __version__
from gateway.common.domain.manifest import ROWS, ModelManifest
from gateway.common.domain.pipeline import DURATIONS, TOTALS
from gateway.common.domain.tensor import Datatype
from gateway.serving.frontends.mqtt.outbound.contents import ResultPlan
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.rules import RuleSettings
from gateway.serving.frontends.mqtt.settings.templates import (
    NAMES,
    RESULT_NAMES,
    RULE_NAMES,
    read_template,
    render_topic,
)

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


GATEWAY_OBJECT = "gateway"
"""Object id of the gateway's own device."""
DIGEST_CHARS = 12
OBJECTS_REMEMBERED = 1_024
"""Sensors whose object id is remembered: it is needed for each result."""
_SAFE = re.compile(r"[A-Za-z0-9_-]+")
Components = dict[str, dict[str, Any]]


def node_id(gateway_id: str) -> str:
    """Return the node id of a gateway, which all its discovery topics have."""
    return f"edge_{_slug(gateway_id)}"


@lru_cache(maxsize=OBJECTS_REMEMBERED)
def object_id(route: str, sensor: str) -> str:
    """Return the object id of a sensor of a route."""
    return f"{_slug(route)}_{_digest(f'{route}/{sensor}')}"


def model_topic(gateway_id: str, model: str, what: str = "status") -> str:
    """Return the topic of a model's readiness, `online` or `offline`; or of what it lacks (`degraded`, JSON)."""
    return render_topic(
        read_template(f"edge/{{gateway}}/models/{{model}}/{what}", NAMES), {"gateway": gateway_id, "model": model}
    )


def gateway_document(gateway_id: str, models: Iterable[str] = ()) -> dict[str, Any]:
    """Return the document of the gateway: its connection to the broker, and which models are degraded."""
    node = node_id(gateway_id)
    connection = {
        "platform": "binary_sensor",
        "unique_id": f"{node}_connection",
        "name": "Connection",
        "device_class": "connectivity",
        "entity_category": "diagnostic",
        "state_topic": f"edge/{gateway_id}/status",
        "payload_on": "online",
        "payload_off": "offline",
    }
    components = {"binary_sensor_connection": connection}
    for model in models:
        topic, key = model_topic(gateway_id, model, "degraded"), f"{_slug(model)}_degraded"
        components[f"binary_sensor_{key}"] = {
            "platform": "binary_sensor",
            "unique_id": f"{node}_model_{key}",
            "name": f"{model} degraded",
            "device_class": "problem",
            "entity_category": "diagnostic",
            "state_topic": topic,
            "value_template": "{{ 'ON' if value_json.degraded else 'OFF' }}",
            "json_attributes_topic": topic,
        }
    device = {"identifiers": [node], "name": f"Edge gateway {gateway_id}", "sw_version": __version__}
    return {"device": device, "origin": _origin(), "components": components}


def sensor_document(
    gateway_id: str,
    route: MqttRoute,
    sensor: str,
    manifest: ModelManifest,
    plan: ResultPlan,
    *,
    has_pictures: bool = False,
) -> dict[str, Any] | None:
    """Return the document of a sensor: its results and the states of its rules. None if it has nothing to show.

    A camera has a state of its own, and with `has_pictures` the picture of its last event.
    """
    node, object_ = node_id(gateway_id), object_id(route.name, sensor)
    values = {"gateway": gateway_id, "route": route.name, "sensor": sensor}
    components = _results(route, values, manifest, plan)
    for rule in route.rule:
        components |= _rule(rule, values)
    if route.cameras and has_pictures:
        picture = {"name": "Snapshot", "image_topic": f"edge/{gateway_id}/cameras/{sensor}/snapshot"}
        components["image_snapshot"] = {"platform": "image", "content_type": "image/jpeg", **picture}
    if not components:
        return None
    for key, component in components.items():
        component["unique_id"] = f"{node}_{object_}_{key}"
    device = {
        "identifiers": [f"{node}_{object_}"],
        "name": f"{sensor} {route.name}",
        "serial_number": sensor,
        "model": manifest.name,
        "sw_version": manifest.version,
        "via_device": node,
    }
    topics = [f"edge/{gateway_id}/status", model_topic(gateway_id, route.model or manifest.name)]
    topics += [f"edge/{gateway_id}/cameras/{sensor}/status"] if route.cameras else []
    return {
        "device": device,
        "origin": _origin(),
        "availability": [{"topic": topic} for topic in topics],
        "availability_mode": "all",
        "components": components,
    }


def with_removals(document: dict[str, Any], former: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document that also removes those components of the `former` one that it no longer has.

    Home Assistant removes a component that has nothing but its platform.
    """
    held = former.get("components")  # from the broker: any client may have written it
    gone = {
        key: {"platform": component["platform"]}
        for key, component in (held if isinstance(held, dict) else {}).items()
        if key not in document["components"]
        and isinstance(component, dict)
        and isinstance(component.get("platform"), str)
    }
    return {**document, "components": {**document["components"], **gone}} if gone else document


def _results(route: MqttRoute, values: dict[str, Any], manifest: ModelManifest, plan: ResultPlan) -> Components:
    """Return components for label and score, or for the only value of a result."""
    settings = route.result
    topic = read_template(settings.topic, NAMES)
    if settings.publish == "never" or topic.names & RESULT_NAMES or settings.template:
        return {}
    state = {"state_topic": render_topic(topic, values)}
    entities = list[Entity]()
    if plan.document:
        entities = task_entities(manifest, route)
    elif plan.scores:
        entities = [Entity("Label", "value_json.label"), Entity("Score", "value_json.score", SCORE_DIGITS)]
    elif _is_single(manifest, plan):
        path = "value" if settings.content == "values" else "outputs[0].data[0]"
        named = plan.named[0] if plan.named else manifest.outputs[0].name
        entities = [as_number(Entity("Value", f"value_json.{path}"), route, named)]
    if settings.payload != "value":
        return {key: state | component for key, component in map(_component, entities)}
    valued = [_component(replace(each, expression="")) for each in entities[:1] if each.is_value]
    return {key: state | component for key, component in valued}


def _is_single(manifest: ModelManifest, plan: ResultPlan) -> bool:
    """Return True if results hold one output, with one element."""
    outputs = [spec for spec in manifest.outputs if spec.name in (plan.named or (spec.name,))]
    return (
        len(outputs) == 1
        and all(side in {ROWS, 1} for side in outputs[0].shape[:1])
        and all(side == 1 for side in outputs[0].shape[1:])
    )


def _component(entity: Entity) -> tuple[str, dict[str, Any]]:
    """Return key and component of an entity, without its topic."""
    component: dict[str, Any] = {"name": entity.name}
    if entity.expression:
        component["value_template"] = f"{{{{ {entity.expression} }}}}"
    if entity.is_verdict:
        component |= {"payload_on": "True", "payload_off": "False"}
    if entity.device_class:
        component["device_class"] = entity.device_class
    if entity.digits is not None:
        kind = "total_increasing" if entity.is_total else "measurement"
        component |= {"state_class": kind, "suggested_display_precision": entity.digits}
    if entity.unit:
        component["unit_of_measurement"] = entity.unit
    platform = "binary_sensor" if entity.is_verdict else "sensor"
    return f"{platform}_{entity.key or entity.name.lower()}", {"platform": platform, **component}


def _rule(rule: RuleSettings, values: dict[str, Any]) -> Components:
    """Return the component of a rule: on or off, an event, or a sensor; none if its messages are of another form."""
    topic = read_template(rule.topic, RULE_NAMES)
    if topic.names & RESULT_NAMES or rule.payload != "value":
        return {}
    state = {"name": rule.name, "state_topic": render_topic(topic, {**values, "rule": rule.name})}
    if rule.value == "anomalous" and rule.is_condition and rule.publish not in {"enter", "leave"}:
        state["device_class"] = "problem"
    key = f"rule_{_slug(rule.name)}"
    if not rule.is_condition:
        if rule.needs_number or rule.value.startswith(("score", "count")):
            state["state_class"] = "measurement"
        return {f"sensor_{key}": {"platform": "sensor", **state}}
    if rule.publish in {"enter", "leave"}:
        if rule.retain:
            return {}
        # a message says that the condition begins or ends, and no state follows
        word, value = "on" if rule.publish == "enter" else "off", '{"event_type": "{{ value }}"}'
        return {f"event_{key}": {"platform": "event", "event_types": [word], "value_template": value, **state}}
    return {f"binary_sensor_{key}": {"platform": "binary_sensor", "payload_on": "on", "payload_off": "off", **state}}


def _origin() -> dict[str, str]:
    return {"name": "edge-gateway", "sw_version": __version__}


def _slug(text: str) -> str:
    """Return `text` in the characters of an object id. A text that loses some gets a part of its digest."""
    return text if _SAFE.fullmatch(text) else f"{re.sub('[^A-Za-z0-9_-]', '_', text)}_{_digest(text)[:6]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:DIGEST_CHARS]
