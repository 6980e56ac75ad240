"""A specification as JSON: both ways, and every bound refused by the name of its key."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.rollouts.spec import Canary, OfferWindow, Retries, Rollback, Spec, Wave
from fleet.controller.rollouts.spec_form import (
    CANARY_LIMIT,
    DAYS,
    RETRIES_LIMIT,
    WAVES_LIMIT,
    WINDOWS_LIMIT,
    read_spec,
    spec_digest,
    spec_document,
)
from gateway.common.domain.errors import ConfigurationError
from tests.simulators.rollouts import document, spec_of

shares = st.lists(st.integers(1, 99), unique=True, max_size=4).map(sorted)
counts = st.builds(Wave, st.none(), st.integers(1, 10**6), st.booleans())


@st.composite
def specs(draw):
    waves = [Wave(float(percent), None, draw(st.booleans())) for percent in draw(shares)]
    waves += draw(st.lists(counts, max_size=3))
    minutes = st.integers(0, 1439)
    window = st.builds(
        OfferWindow,
        st.sets(st.integers(0, 6), min_size=1).map(lambda days: tuple(sorted(days))),
        minutes,
        minutes,
        st.sampled_from(["UTC", "site", "Europe/Berlin"]),
    )
    return replace(
        spec_of(),
        canary=draw(st.none() | st.builds(Canary, st.integers(1, CANARY_LIMIT), st.floats(0, 1e6))),
        waves=(*waves, Wave(100.0)),
        windows=tuple(draw(st.lists(window, max_size=3))),
        retries=draw(st.builds(Retries, st.integers(0, RETRIES_LIMIT), st.floats(1, 1e6), st.floats(1, 1e6))),
        dynamic=draw(st.booleans()),
        rollback=draw(st.sampled_from(Rollback)),
    )


@given(specs())
def test_what_is_written_reads_back(spec):
    document = json.loads(json.dumps(spec_document(spec)))
    assert read_spec(document) == spec
    assert spec_digest(read_spec(document)) == spec_digest(spec)


@given(specs(), specs())
def test_another_specification_has_another_digest(one, other):
    assert (spec_digest(one) == spec_digest(other)) is (one == other)


def test_whole_numbers_and_fractions_of_one_value_have_one_digest():
    assert spec_digest(replace(spec_of(), soak_s=7)) == spec_digest(replace(spec_of(), soak_s=7.0))


def test_what_may_be_left_out_has_a_default():
    short = document()
    for key in ("soak_s", "silence_s", "deadline_s"):
        del short[key]
    spec = read_spec(short)
    assert (spec.soak_s, spec.silence_s, spec.deadline_s) == (3600.0, 86_400.0, 604_800.0)
    assert spec.canary is None
    assert spec.retries == Retries()
    assert spec.rollback is Rollback.OFFERED
    assert spec.dynamic


def target(**changes):
    return {**document()["target"], **changes}


def window(**changes):
    return {"start": "22:00", "end": "05:00", **changes}


REFUSED = [
    ({"name": ""}, "name: must be a name"),
    ({"name": "a b"}, "name: must be a name"),
    ({"slot": "../x"}, "slot: must be a name"),
    ({"schema": 2}, "schema: must be between 1 and 1"),
    ({"priority": 1}, "priority: unknown key"),
    ({"target": "x"}, "target: must be a table"),
    ({"target": target(path="models/a/b/release")}, "target.path: must be models/"),
    ({"target": target(path="models/a/../2/release")}, "target.path: must be models/"),
    ({"target": target(path="profiles/a/b/2/release")}, "target.path: must be models/"),
    ({"target": target(sha256="A" * 64)}, "target.sha256: must be a SHA-256 digest"),
    ({"target": target(size_bytes=-1)}, "target.size_bytes: must be between"),
    ({"query": ""}, "query: at character 1: expected one of"),
    ({"query": "id = "}, "query: at character"),
    ({"canary": {"per_accelerator": 0}}, "canary.per_accelerator: must be between 1"),
    ({"canary": {"per_accelerator": 1, "soak_s": -1}}, "canary.soak_s: must be between 0"),
    ({"canary": {"per_accelerator": True}}, "canary.per_accelerator: must be an integer"),
    ({"waves": []}, "waves: must be 1 to 100 waves"),
    ({"waves": [{"count": 1}] * WAVES_LIMIT + [{"percent": 100}]}, "waves: must be 1 to 100 waves"),
    ({"waves": [{"percent": 50}]}, "waves: the last must reach all devices"),
    ({"waves": [{"count": 50}]}, "waves: the last must reach all devices"),
    ({"waves": [{"percent": 50}, {"percent": 50}, {"percent": 100}]}, "each must be above the one before"),
    ({"waves": [{"percent": 50}, {"count": 3}, {"percent": 40}, {"percent": 100}]}, "each must be above"),
    ({"waves": [{"percent": 10, "count": 1}]}, "waves[0].percent: a wave has either"),
    ({"waves": [{}]}, "waves[0].percent: a wave has either"),
    ({"waves": [{"percent": 0}]}, "waves[0].percent: must be between"),
    ({"waves": [{"percent": 101}]}, "waves[0].percent: must be between"),
    ({"waves": [{"percent": float("nan")}]}, "waves[0].percent: must be between"),
    ({"waves": [{"count": 0}]}, "waves[0].count: must be between"),
    ({"waves": [{"percent": 100, "soak": 1}]}, "waves[0].soak: unknown key"),
    ({"success": {"min_sample": 0, "min_percent": 90}}, "success.min_sample: must be between 1"),
    ({"success": {"min_sample": 1, "min_percent": 0}}, "success.min_percent: must be between"),
    ({"abort": {"min_sample": 1}}, "abort.max_failed_percent: missing"),
    ({"abort": {"min_sample": 1, "max_failed_percent": 1, "confidence": 1}}, "abort.confidence: must be between"),
    ({"silence_s": 59}, "silence_s: must be between 60"),
    ({"deadline_s": 1e9}, "deadline_s: must be between 60"),
    ({"soak_s": -1}, "soak_s: must be between 0"),
    ({"windows": [window()] * (WINDOWS_LIMIT + 1)}, "windows: must be at most 50"),
    ({"windows": [window(days=[])]}, "windows[0].days: must name a day"),
    ({"windows": [window(days=["monday"])]}, "windows[0].days: must hold only mon"),
    ({"windows": [window(start="24:00")]}, "windows[0].start: must be a time of day"),
    ({"windows": [window(end="9:00")]}, "windows[0].end: must be a time of day"),
    ({"windows": [window(end="09:60")]}, "windows[0].end: must be a time of day"),
    ({"windows": [window(zone="Mars/Olympus")]}, "windows[0].zone: must be 'site' or a time zone"),
    ({"blackouts": [{"start": "2027-01-02T00:00:00Z", "end": "2027-01-01T00:00:00Z"}]}, "blackouts[0].end: must come"),
    ({"retries": {"limit": 21}}, "retries.limit: must be between 0 and 20"),
    ({"retries": {"limit": 1, "backoff_s": 0}}, "retries.backoff_s: must be between 1"),
    ({"dynamic": 1}, "dynamic: must be true or false"),
    ({"rollback": "never"}, "rollback: must be one of offered, forced"),
]


@pytest.mark.parametrize(("change", "problem"), REFUSED, ids=[problem for _, problem in REFUSED])
def test_what_does_not_fit_is_refused_by_its_key(change, problem):
    with pytest.raises(ConfigurationError) as caught:
        read_spec(document(**change))
    assert str(caught.value).startswith("the rollout: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize("key", ["name", "slot", "target", "query", "waves", "success", "abort"])
def test_what_has_no_default_must_be_there(key):
    short = document()
    del short[key]
    with pytest.raises(ConfigurationError, match=key):
        read_spec(short)


values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["percent", "count", "start"]), inner),
    max_leaves=5,
)


@given(st.sampled_from(sorted(spec_document(spec_of()))), values)
def test_nothing_but_a_specification_or_a_refusal_comes_out(key, value):
    try:
        assert isinstance(read_spec(document(**{key: value})), Spec)
    except ConfigurationError:
        return


def test_days_are_those_of_a_calendar():
    assert len(DAYS) == 7
    assert spec_of(windows=[window(days=["sun", "mon"])]).windows[0].days == (0, 6)
