"""The target query language: what matches, what is refused and where, and that text and query are one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.rollouts.query import FIELDS, All, And, FieldMatch, Not, Operator, Or, QueriedDevice, matches
from fleet.controller.rollouts.query_parser import (
    DEPTH_LIMIT,
    GLOBS_LIMIT,
    QUERY_LIMIT_CHARS,
    VALUE_LIMIT_CHARS,
    QueryError,
    parse,
    query_text,
)

CAMERA = QueriedDevice(
    "cam-7",
    site="san jose",
    profile="jetson-orin-nano",
    tags=frozenset({"lobby", "floor:3"}),
    accelerators=("nvidia-jetson-gpu", "coral-usb"),
    versions={"meter-reader": "1.10", "activity": "2-rc1"},
)
BARE = QueriedDevice("bare")


@pytest.mark.parametrize(
    "text",
    [
        "all",
        "id = cam-7",
        "id = cam-*",
        "id = cam-?",
        'site = "san jose"',
        "site = san*",
        "tag = lobby and tag = floor:3",
        "tag != attic",
        "accelerator = coral-*",
        "accelerator in (hailo-8, coral-usb)",
        "profile not in (rpi4, rpi5)",
        "not profile = rpi*",
        "slot = activity",
        "version.meter-reader = 1.10",
        "version.meter-reader > 1.9",
        "version.meter-reader >= 1.10",
        "version.meter-reader <= 1.10",
        "version.meter-reader < 2",
        "version.activity < 2",
        "version.activity = 2-*",
        "id = x or id = cam-7 and tag = lobby",
        "(id = x or id = cam-7) and not (tag = attic or tag = cellar)",
        "not not id = cam-7",
        "\tall\n",
    ],
)
def test_a_camera_is_matched(text):
    assert matches(parse(text), CAMERA)


@pytest.mark.parametrize(
    "text",
    [
        "not all",
        "id = cam",
        "id = am-7",
        "id = CAM-7",
        "id = cam-??",
        'id = "cam-[0-9]"',
        "tag != lobby",
        "tag not in (attic, lobby)",
        "accelerator = cpu",
        "version.other = *",
        "version.other < 9",
        "version.meter-reader < 1.10",
        "version.meter-reader > 1.10",
        "(id = cam-7 or id = x) and tag = attic",
    ],
)
def test_a_camera_is_not_matched(text):
    assert not matches(parse(text), CAMERA)


def test_what_a_device_lacks_matches_nothing_but_otherwise():
    assert not matches(parse("version.meter-reader < 2 or version.meter-reader >= 2 or tag = * or slot = *"), BARE)
    assert matches(parse("version.meter-reader != 2 and tag != lobby and accelerator = cpu"), BARE)


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 0, "expected one of id, site"),
        ("   ", 0, "expected one of id"),
        ("id", 2, "expected '=', '!='"),
        ("id =", 4, "expected a value"),
        ("id = a b", 7, "expected 'and', 'or' or the end, not 'b'"),
        ("id = and", 5, "expected a value"),
        ("id < 4", 3, "id has no order"),
        ("name = a", 0, "expected one of id"),
        ("version = 2", 0, "expected one of id"),
        ("version. = 2", 0, "expected one of id"),
        ("(id = a", 7, "expected ')', not the end"),
        ("id = a)", 6, "expected 'and', 'or' or the end"),
        ("id in a", 6, "expected '('"),
        ("id in (a,)", 9, "expected a value"),
        ("id not a", 7, "expected 'in'"),
        ("id = a and", 10, "expected one of id"),
        ("id = 'a'", 5, '"\'" means nothing here'),
        ('id = "a', 5, "this quotation does not end"),
        ('id = "a\\n"', 5, "this quotation does not end"),
        ("id = a; drop", 6, "';' means nothing here"),
        ("id == a", 4, "expected a value"),
        ("ID = a", 0, "expected one of id"),
        (f"id = {'a' * (VALUE_LIMIT_CHARS + 1)}", 5, "at most 128"),
        ("(" * DEPTH_LIMIT + "all", DEPTH_LIMIT, "nested more than 32 deep"),
        ("not " * 1000 + "all", 4 * DEPTH_LIMIT, "nested more than 32 deep"),
        ("a" * (QUERY_LIMIT_CHARS + 1), 0, "at most 4096"),
    ],
)
def test_what_cannot_be_read_is_refused_where_it_stands(text, position, problem):
    with pytest.raises(QueryError) as caught:
        parse(text)
    assert caught.value.position == position
    assert str(caught.value).startswith(f"at character {position + 1}: ")
    assert problem in str(caught.value)


def test_the_deepest_query_that_is_read_is_answered():
    depth = DEPTH_LIMIT - 1
    assert matches(parse("(" * depth + "all" + ")" * depth), BARE)
    assert not matches(parse("not " * depth + "all"), BARE)


words = st.sampled_from(["a", "b", "cam-7", "lobby", "1.10", "2", "2-rc1", "c*", "?", "san jose"]) | st.text(max_size=8)
sets = st.builds(
    lambda name, operator, values: FieldMatch(name, operator, tuple(values)),
    st.sampled_from([*FIELDS, "version.meter-reader"]),
    st.sampled_from([Operator.EQUAL, Operator.UNEQUAL]),
    st.lists(words, min_size=1, max_size=3),
)
ordered = st.builds(
    lambda operator, value: FieldMatch("version.meter-reader", operator, (value,)),
    st.sampled_from(list(Operator)[2:]),
    words,
)


def combined(inner):
    parts = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return parts.map(And) | parts.map(Or) | inner.map(Not)


queries = st.recursive(st.just(All()) | sets | ordered, combined, max_leaves=10)
devices = st.builds(
    QueriedDevice,
    words,
    words,
    words,
    st.frozensets(words, max_size=2),
    st.lists(words, max_size=2).map(tuple),
    st.dictionaries(st.sampled_from(["meter-reader", "x"]), words),
)


@given(queries)
def test_a_query_written_out_reads_back_as_itself(query):
    assert parse(query_text(query)) == query


@given(queries, queries, devices)
def test_and_or_and_not_are_those_of_logic(one, other, device):
    first, second = matches(one, device), matches(other, device)
    assert matches(And((one, other)), device) is (first and second)
    assert matches(Not(Or((Not(one), Not(other)))), device) is (first and second)
    assert matches(Or((one, other)), device) is (first or second)
    text = f"not ({query_text(one)}) or {query_text(Not(other))}"
    assert matches(parse(text), device) is (not first or not second)


@given(st.text(max_size=200) | st.text('idtag=<>!(),"\\ nor*.', max_size=60))
def test_nothing_but_a_query_or_an_error_with_its_place_comes_out(text):
    try:
        query = parse(text)
    except QueryError as error:
        position = error.position
    else:
        assert parse(query_text(query)) == query
        position = 0
    assert 0 <= position <= len(text)


def test_a_glob_of_many_stars_is_refused_quickly():
    query = parse("id = " + "*a" * 60 + "b")
    assert not matches(query, QueriedDevice("a" * 100_000))


def test_a_query_holds_only_so_many_globs() -> None:
    plain = ", ".join(f"camera-{number}" for number in range(200))
    globs = ", ".join(f"camera-{number}*" for number in range(GLOBS_LIMIT))
    assert parse(f"id in ({plain}) or id in ({globs})")
    with pytest.raises(QueryError, match="at most 32 values"):
        parse(f"id in ({globs}) or site = b*")
