"""Scopes by tag in queries: what a scoped token drafts reaches only devices of its scope, whatever it asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.control.rollouts import covers, within
from fleet.controller.database.errors import RefusedError
from fleet.controller.rollouts.query import All, And, FieldMatch, Not, Operator, Or, QueriedDevice, Query, matches
from fleet.controller.rollouts.query_parser import parse

TAGS = ("a", "b", "c", "a*", "?")
tags = st.sampled_from(TAGS)
atoms = st.one_of(
    st.just(All()),
    st.builds(
        FieldMatch,
        st.sampled_from(["tag", "site"]),
        st.sampled_from([Operator.EQUAL, Operator.UNEQUAL]),
        st.lists(tags, min_size=1, max_size=3).map(tuple),
    ),
)
queries = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(And, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=6,
)
scopes = st.frozensets(tags, min_size=1)
devices = st.builds(QueriedDevice, st.just("d"), st.just("a"), tags=st.frozensets(tags))


@given(queries, scopes, devices)
def test_a_query_with_its_scope_matches_devices_of_the_scope_only(
    query: Query, scope: frozenset[str], device: QueriedDevice
):
    if scope <= {"a*", "?"} and not covers(scope, query):
        with pytest.raises(RefusedError, match="each holds"):
            within(query, scope)
        return
    narrowed = parse(within(query, scope))
    assert covers(scope, narrowed)
    if matches(narrowed, device):
        assert matches(query, device)
        assert device.tags & scope


@given(queries, scopes, devices)
def test_what_a_scope_covers_has_no_device_beyond_it(query: Query, scope: frozenset[str], device: QueriedDevice):
    if covers(scope, query) and matches(query, device):
        assert device.tags & scope


@given(queries)
def test_without_a_scope_all_is_covered_and_stays(query: Query):
    assert covers((), query)
    assert parse(within(query, ())) == query


@pytest.mark.parametrize(
    ("query", "covered"),
    [
        ("tag = a", True),
        ("tag = a and site = x", True),
        ("site = x and tag in (a, b)", True),
        ("tag in (a, c)", False),
        ("tag = a or site = x", False),
        ("tag != c", False),
        ("tag = *", False),
        ("not tag = a", False),
        ("all", False),
    ],
)
def test_which_queries_a_scope_covers(query: str, covered: bool):
    assert covers({"a", "b"}, parse(query)) is covered
