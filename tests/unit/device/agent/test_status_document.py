"""`edge-agent status --json`: every key is documented, and nothing is documented that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gateway.common.domain.activation import Activation, Installed
from gateway.common.domain.assignment import Assignment, Target
from gateway.common.domain.update import Failure, Step
from gateway.common.store.active import Active
from gateway.device.agent.report.report import (
    BEHIND,
    HELD,
    IN_STEP,
    NEW,
    REFUSED,
    UNASSIGNED,
    UNREACHABLE,
    UPDATING,
    WAITS,
    StatusInput,
    document,
)
from gateway.device.agent.state.identity import DeviceIdentity
from gateway.device.agent.state.polled import SUSPENDED
from gateway.device.store.journal_rows import Accepted, Update

README = (Path(__file__).parents[4] / "gateway/device/agent/README.md").read_text("utf-8")
NOW = datetime(2026, 11, 21, tzinfo=UTC)
TARGET = Target("models/acme/meter/2/release", 10, "a" * 64)
ACTIVATION = Activation("meter", TARGET.path, TARGET.sha256, ("onnx-int8",), ("b" * 64,), 1)
FAILURE = Failure(Step.PROBATION, "slow", {"run_us": 1.5})
FULL = StatusInput(
    DeviceIdentity("door-1", "https://a/", "https://a/b", b"", b""),
    Active({"meter": ACTIVATION}, {"meter": ACTIVATION}, (Installed(Target("profiles/x.toml", 1, "c" * 64), (), 1),)),
    Accepted(Assignment("door-1", 3, NOW, NOW + timedelta(days=1), {"meter": TARGET}), b"", ""),
    (Update(ACTIVATION, Step.FETCH, 3, NOW, NOW, FAILURE),),
    (Update(ACTIVATION, Step.ROLLED_BACK, 3, NOW, NOW, FAILURE),),
    {"at": "then", "reason": "expired", "problem": "words"},
    {"meter": "no network"},
    {"meter": "slow"},
    NOW.isoformat(),
    1,
    {"meter": {"change": "install", "until": None, "why": "words"}},
    {"problem": "", "certificate_expires": "then"},
    {"serial": ["a"], "uuid": ["b"], "macs": ["c"]},
)
BY_NAME = {"slots", "evidence"}
"""Their keys are names of models and of measurements."""


def keys(value: Any, under: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if under not in BY_NAME:
                yield key
            yield from keys(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)


def documented() -> set[str]:
    table = README.partition("## `edge-agent status --json`")[2].partition("## Settings")[0]
    return set(re.findall(r"`([a-z_-]+)`", table))


def test_every_key_and_state_is_documented_and_no_other() -> None:
    states = {BEHIND, HELD, IN_STEP, NEW, REFUSED, SUSPENDED, UNASSIGNED, UNREACHABLE, UPDATING, WAITS}
    assert documented() == set(keys(document(FULL))) | states
