"""Preview of a rollout: the devices of each wave, told before anything is created, are what happens then."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.controller.control.rollouts_preview import wave_sizes
from fleet.controller.rollouts.facts import Joined
from tests.simulators.examples import examples
from tests.simulators.rollouts import Record, offered, spec_of

KINDS = ("cpu", "hailo-8", "coral-usb")
shares = st.lists(st.integers(1, 99), max_size=3, unique=True).map(sorted)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=40), shares, st.integers(0, 3), st.integers(0, 20))
def test_waves_take_what_was_foretold(strata: list[str], percents: list[int], canaries: int, count: int):
    waves: list[dict[str, Any]] = [{"percent": percent} for percent in [*percents, 100]]
    waves = ([{"count": count}] if count else []) + waves
    canary = {"canary": {"per_accelerator": canaries, "soak_s": 0}} if canaries else {}
    spec = spec_of(waves=waves, success={"min_sample": 1, "min_percent": 100}, **canary)
    record = Record(spec).start(Joined(f"d-{n}", (kind,)) for n, kind in enumerate(strata))
    taken = Counter[int]()
    while reached := offered(record.tick(1)):
        for device in reached:
            taken[record.member(device).wave] += 1
            record.report(device, "committed")
    found = wave_sizes(spec, Counter(strata))
    assert sum(found.values()) == len(strata)
    assert {wave: size for wave, size in found.items() if size} == dict(taken)
