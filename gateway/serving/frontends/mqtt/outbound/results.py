"""Results of one route: which are published, on which topic and in which form, and the messages of its rules."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec

from gateway.common.domain.errors import RequestError
from gateway.common.domain.tensor import Tensor
from gateway.serving.domain.infer import InferResponse, ResponseForm
from gateway.serving.frontends.mqtt.messages import JSON, OutgoingPublish
from gateway.serving.frontends.mqtt.outbound.contents import (
    Line,
    ResultPlan,
    check_size,
    read_documents,
    timestamp,
    write_error,
    write_results,
)
from gateway.serving.frontends.mqtt.outbound.context import RouteContext
from gateway.serving.frontends.mqtt.outbound.delivery import Debt
from gateway.serving.frontends.mqtt.outbound.inputs import Ready
from gateway.serving.frontends.mqtt.outbound.rows import ResultRow, document_rows, read_rows
from gateway.serving.frontends.mqtt.outbound.rules import RouteRules, SensorRule
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.templates import (
    NAMES,
    RESULT_NAMES,
    RULE_NAMES,
    MessageTemplate,
    Value,
    Values,
    read_template,
    render_topic,
    write_json,
    write_text,
)

TEXT = "text/plain"
PlanOf = Callable[[Ready, str], ResultPlan]
"""Function that returns the content of the result of an input, from the version that answered."""
_NO_VALUES: Values = dict.fromkeys(NAMES)


class RouteResults:
    """Results of one route, and the rules on them.

    A rule's message is published before the result that caused it. If it cannot be published, it is due again at the
    next result of its sensor. `clock` returns monotonic nanoseconds.
    """

    def __init__(self, route: MqttRoute, context: RouteContext, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._route, self._settings, self._gateway_id = route, route.result, context.gateway_id
        self._outlet, self._counters, self._topics = context.outlet, context.counters, context.topics
        self._limit_bytes, self._seen, self._clock = context.settings.max_result_bytes, context.seen, clock
        self._topic = read_template(self._settings.topic, NAMES)
        self._errors = f"edge/{context.gateway_id}/errors"
        self._template = read_template(self._settings.template, NAMES)
        settings = self._settings
        self._form = OutgoingPublish(
            "", b"", settings.max_qos, settings.retain, _content_type(settings.payload), expiry_s=settings.expiry_s
        )
        self._rules = RouteRules(route.rule, route.max_sensors, context.counters)
        self._templates = {
            rule.name: (read_template(rule.topic, RULE_NAMES), read_template(rule.template, RULE_NAMES))
            for rule in route.rule
        }
        self._sensor_topics: dict[str, str] = {}
        """Permitted topics by sensor, if they depend on nothing else."""
        self._last: OrderedDict[str, Value] = OrderedDict()
        """Last published label or value of each sensor, for `publish = "change"`."""
        reads_payload = settings.payload != "json" or bool(settings.template)
        reads_values = settings.publish == "change" or reads_payload or bool(self._topic.names & RESULT_NAMES)
        self._needs_rows = bool(route.rule) or reads_values
        """True if rules, the decision to publish a result, its topic or its payload depend on its values."""
        self.is_plain = context.seen is None and settings.publish == "always" and not self._needs_rows
        """True if `encode_plain` writes the same as `encode`: the result depends on message and outputs only."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns: int | None = None
        self._closed = False

    def encode(self, debt: Debt, ready: Ready, plan_of: PlanOf, response: InferResponse) -> bytes | None:
        """Apply the rules to an answer. Return the payload of its result, or None if it is not to be published.

        Topic and properties of the message become the debt's. Raises RequestError TOO_LARGE, UNSUPPORTED for values
        that JSON cannot carry, and DENIED for a topic that is not permitted.
        """
        plan = plan_of(ready, response.version)
        if self._seen is not None:
            self._seen(self._route, ready, plan)
        sensor, values = ready.sensor, list[Values]()
        if self._needs_rows:
            rows = _read_rows(plan, response.outputs, _rows_of(ready))
            values = [self._values(debt.identity, ready, response, row) for row in rows]
            for row, placeholders in zip(rows, values, strict=True) if self._route.rule else ():
                self._send(self._rules.observe(sensor, row, placeholders, self._clock()))
        if self._settings.publish != "always" and not self._publishes(sensor, values):
            return None
        if self._settings.payload != "json" or self._settings.template:
            payload = _written(self._settings.payload, self._template, values, "value")
        else:
            contents = write_results(plan, response.outputs, _rows_of(ready), self._limit_bytes)
            payload = write_result(debt.identity, ready, response, contents)
        check_size(len(payload), self._limit_bytes)
        debt.topic = self._sensor_topics.get(sensor) or self._topic_of(sensor, values)
        debt.result, user = self._form, debt.message.user
        if user:
            repeated = tuple(pair for pair in user if pair[0] in self._settings.user_properties)
            debt.result = replace(self._form, user=repeated)
        if self._settings.publish == "change":
            debt.dropped = partial(self._last.pop, sensor, None)
        return payload

    def encode_plain(
        self, debt: Debt, sensor: str, like: Ready, plan: ResultPlan, answer: tuple[ResponseForm, Mapping[str, Tensor]]
    ) -> bytes:
        """Return what `encode` returns for a message like `like` without user properties. Raises as `encode`."""
        form, outputs = answer
        contents = write_results(plan, outputs, _rows_of(like), self._limit_bytes)
        at = timestamp(debt.message.wall_ns)
        line = {
            "id": debt.identity,
            **contents,
            "model": form.model,
            "version": form.version,
            "variant": form.variant,
            "sensor": sensor,
            "started_at": at,
            "ended_at": at,
        }
        payload = msgspec.json.encode(line)
        check_size(len(payload), self._limit_bytes)
        debt.topic, debt.result = self._sensor_topics.get(sensor) or self._topic_of(sensor, ()), self._form
        return payload

    def forget(self, sensor: str) -> None:
        """Forget a sensor, whose rules send nothing any more."""
        self._rules.forget(sensor)
        self._last.pop(sensor, None)

    def close(self) -> None:
        """Publish no more messages of rules without a result."""
        self._closed = True
        self._set_timer(None)

    def _topic_of(self, sensor: str, values: Sequence[Values]) -> str:
        """Return the topic of a result, and remember it. Raises RequestError DENIED if it is not permitted."""
        topic = render_topic(self._topic, values[0] if values else {**_NO_VALUES, **self._sensor_values(sensor)})
        self._topics.check(topic)
        if not self._topic.names & RESULT_NAMES:
            if len(self._sensor_topics) >= self._route.max_sensors:
                self._sensor_topics.clear()
            self._sensor_topics[sensor] = topic
        return topic

    def _publishes(self, sensor: str, values: Sequence[Values]) -> bool:
        """Return True if the result is to be published: with `change`, if it differs from the sensor's last one."""
        if self._settings.publish == "never" or not values:
            return self._settings.publish != "never"
        state = values[-1]["value"] if values[-1]["label"] is None else values[-1]["label"]
        if sensor in self._last and state is not None and self._last[sensor] == state:
            self._last.move_to_end(sensor)
            return False
        self._last[sensor] = state
        self._last.move_to_end(sensor)
        if len(self._last) > self._route.max_sensors:
            self._last.popitem(last=False)
        return True

    # ---- rules -----------------------------------------------------------------------------------------------------
    def _expire(self) -> None:
        """Publish what is due without a result."""
        self._timer = self._timer_ns = None
        self._send(self._rules.expire(self._clock()))

    def _send(self, due: Iterator[SensorRule]) -> None:
        """Publish messages of rules, and set the timer for the next one that will be due without a result."""
        for one in due:
            rule = one.rule
            topic, template = self._templates[rule.name]
            publication = OutgoingPublish(
                render_topic(topic, one.values),
                _written(rule.payload, template, [one.values], "state"),
                rule.qos,
                rule.retain,
                _content_type(rule.payload),
                expiry_s=rule.expiry_s,
            )
            accepted = self._publish_state(publication)
            one.sent(self._clock(), accepted=accepted)
        due_ns = self._rules.due_ns()
        if due_ns != self._timer_ns and not self._closed:
            self._set_timer(due_ns)

    def _set_timer(self, due_ns: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_ns = None, due_ns
        if due_ns is not None:
            wait_s = max(0.0, (due_ns - self._clock()) / 1e9)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._expire)

    def _publish_state(self, publication: OutgoingPublish) -> bool:
        """Publish a message of a rule. Return False if it is due again at the sensor's next result.

        A refused one is not: its error, which is published in its place, would be repeated with each result. A
        camera's is due again while the outbox is full: sensors are not read then, but frames go on.
        """
        if self._route.cameras and self._outlet.full:
            self._counters["dropped_outbox_full"] += 1
            return False
        try:
            self._topics.check(publication.topic)
        except RequestError as refused:
            payload = write_error("", publication.topic, refused)
            return self._outlet.publish(OutgoingPublish(self._errors, payload, content_type=JSON))
        accepted = self._outlet.publish(publication)
        self._counters["rule_messages"] += accepted
        return accepted

    # ---- values ----------------------------------------------------------------------------------------------------
    def _values(self, identity: str, ready: Ready, response: InferResponse, row: ResultRow) -> Values:
        """Return the values of the placeholders; `value` is the label if there is no other value."""
        label = row.label
        return {
            **self._sensor_values(ready.sensor),
            "model": response.model,
            "version": response.version,
            "variant": response.variant,
            "id": identity,
            "started_at": timestamp(ready.started_ns),
            "ended_at": timestamp(ready.ended_ns),
            "label": label,
            "score": row.score,
            "value": row.value if row.scores is None else label,
        }

    def _sensor_values(self, sensor: str) -> Values:
        return {"gateway": self._gateway_id, "route": self._route.name, "sensor": sensor}


def _rows_of(ready: Ready) -> int:
    """Return the number of rows of a request."""
    shape = ready.tensor.array.shape
    return shape[0] if shape else 1


def _read_rows(plan: ResultPlan, outputs: Mapping[str, Tensor], count: int) -> Sequence[ResultRow]:
    documents = read_documents(plan.document, outputs)
    if documents is None:
        return read_rows(plan, outputs, count)
    return document_rows(plan, documents, {name: outputs[name].array for name in plan.named})


def _written(form: str, template: MessageTemplate, values: Sequence[Values], value: str) -> bytes:
    """Return the payload for the rows of a result: one line each, or a JSON array if there are several."""
    if form == "json":
        lines = [template.render(each, write_json) for each in values]
        return (lines[0] if len(lines) == 1 else f"[{','.join(lines)}]").encode(errors="replace")
    if form == "value":
        return "\n".join(write_text(each[value]) for each in values).encode(errors="replace")
    return "\n".join(template.render(each, write_text) for each in values).encode(errors="replace")


def _content_type(form: str) -> str:
    return JSON if form == "json" else TEXT


def write_result(identity: str, ready: Ready, response: InferResponse, contents: Line) -> bytes:
    """Return a result: its contents, the version that ran, the sensor, and the time of its samples.

    A window tells how many samples are missing in it, and its longest gap, if there are any. A session tells its rows,
    and how many were added to them.
    """
    started_at, window = timestamp(ready.started_ns), ready.window
    line = {
        "id": identity,
        **contents,
        "model": response.model,
        "version": response.version,
        "variant": response.variant,
        "sensor": ready.sensor,
        "started_at": started_at,
        "ended_at": started_at if ready.ended_ns == ready.started_ns else timestamp(ready.ended_ns),
    }
    if window is not None and window.missing_rows:
        line["missing_samples"] = window.missing_rows
    if window is not None and window.gap_ns > ready.gap_limit_ns:
        line["longest_gap_s"] = window.gap_ns / 1e9
    if window is not None and ready.padded_rows is not None:
        line["rows"] = len(window.rows)
        if ready.padded_rows:
            line["padded_samples"] = ready.padded_rows
    return msgspec.json.encode(line)
