"""The decision what a caller may do: every scope against every need, patterns, grants."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.access import Security, read_tokens
from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.rights import (
    ANY_CALLER,
    CAMERAS,
    CONTROL,
    EVERYTHING,
    INFER,
    MEMORY,
    METRICS,
    NOTHING,
    READ,
    Caller,
    Grant,
    Needs,
    Rights,
    Scope,
    check_identity,
    check_model,
    check_scope,
    read_rights,
)

ALLOWED: dict[Scope | None, set[Needs]] = {
    None: {ANY_CALLER},
    Scope.INFER: {ANY_CALLER, READ, INFER},
    Scope.MODELS: {ANY_CALLER, READ, CONTROL},
    Scope.MEMORY: {ANY_CALLER, MEMORY},
    Scope.METRICS: {ANY_CALLER, METRICS},
    Scope.CAMERAS: {ANY_CALLER, CAMERAS},
    Scope.ADMIN: {ANY_CALLER, READ, INFER, CONTROL, MEMORY, METRICS, CAMERAS},
}


@pytest.mark.parametrize(("scope", "needs"), [*product(ALLOWED, ALLOWED[Scope.ADMIN])])
def test_every_scope_against_every_need(scope: Scope | None, needs: Needs) -> None:
    rights = read_rights([scope], ()) if scope else NOTHING
    if needs in ALLOWED[scope]:
        check_scope("ann", rights, needs)
        return
    with pytest.raises(RequestError) as refused:
        check_scope("ann", rights, needs)
    assert refused.value.fault is Fault.DENIED
    for part in ("'ann'", *needs, "tokens_file", "[[auth.grant]]"):
        assert part in refused.value.message


@pytest.mark.parametrize(
    ("patterns", "seen", "unseen"),
    [
        ("", ["anything", ""], []),
        ("*", ["anything", ""], []),
        ("cam-*", ["cam-", "cam-7", "cam-a/b"], ["cam", "Cam-7", "xcam-7", ""]),
        ("cam-?", ["cam-7"], ["cam-", "cam-17"]),
        ("cam-[0-3],door", ["cam-0", "door"], ["cam-4", "doors", "cam-[0-3]"]),
        ("cam-[!0-3]", ["cam-4", "cam-a"], ["cam-0"]),
        (".*", [".hidden"], ["shown"]),
        ("a.c", ["a.c"], ["abc"]),
    ],
)
def test_patterns_are_those_of_shells(patterns: str, seen: list[str], unseen: list[str]) -> None:
    rights = read_rights(["infer"], patterns.split(",") if patterns else ())
    for model in seen:
        check_model("ann", rights, model)
    for model in unseen:
        with pytest.raises(RequestError, match="'ann' may not use model") as refused:
            check_model("ann", rights, model)
        assert refused.value.fault is Fault.DENIED


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_pattern_is_tried_without_an_error(pattern: str, model: str) -> None:
    assert Rights(EVERYTHING.scopes, (pattern,)).sees(model) in {True, False}


@pytest.mark.parametrize(
    ("scopes", "models", "key"),
    [
        ((), (), "scopes"),
        (("",), (), "scopes"),
        (("Infer",), (), "scopes"),
        (("infer", "all"), (), "scopes"),
        (("infer",), ("",), "models"),
        (("infer",), ("x" * 201,), "models"),
        (("infer",), ("x",) * 65, "models"),
    ],
)
def test_words_that_are_no_rights(scopes: tuple[str, ...], models: tuple[str, ...], key: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_rights(scopes, models)
    assert refused.value.key == key


# ---- callers without a token -----------------------------------------------------------------------------------------
ONLY_INFER = Rights(frozenset({Scope.INFER}))
STRANGER = Rights(frozenset({Scope.INFER, Scope.METRICS}))
LOOPBACK = ("loopback", "anonymous")


@pytest.mark.parametrize(
    ("identities", "rights"),
    [
        (("cert:camera-7",), EVERYTHING),
        (("uid:1000", "gid:1000"), EVERYTHING),
        (("uid:?",), EVERYTHING),
        (LOOPBACK, EVERYTHING),
        (("anonymous",), STRANGER),
        ((), NOTHING),
    ],
)
def test_rights_where_nothing_is_configured(identities: tuple[str, ...], rights: Rights) -> None:
    assert Security().caller("x", identities, None) == Caller("x", rights)
    assert Security().caller("x", identities, "Bearer nonsense") == Caller("x", rights)


@pytest.mark.parametrize(
    ("granted", "identities", "meant"),
    [
        ("cert:camera-7", ("cert:camera-7",), True),
        ("cert:camera-*", ("cert:camera-7",), True),
        ("cert:camera-7", ("cert:camera-77",), False),
        ("uid:0", ("cert:uid:0",), False),
        ("cert:*", ("uid:0", "gid:0"), False),
        ("uid:1000", ("uid:1000", "gid:5"), True),
        ("uid:100", ("uid:1000", "gid:100"), False),
        ("gid:5", ("uid:1000", "gid:1000", "gid:5"), True),
        ("uid:*", ("uid:?",), True),
        ("loopback", LOOPBACK, True),
        ("loopback", ("anonymous",), False),
        ("anonymous", LOOPBACK, True),
        ("anonymous", ("uid:1000", "gid:5"), False),
    ],
)
def test_a_grant_means_its_callers_only(granted: str, identities: tuple[str, ...], meant: bool) -> None:
    check_identity(granted)
    security = Security(grants=(Grant(granted, ONLY_INFER),))
    assert (security.caller("x", identities, None).rights == ONLY_INFER) is meant


def test_the_first_grant_counts() -> None:
    security = Security(grants=(Grant("uid:5", ONLY_INFER), Grant("uid:*", EVERYTHING), Grant("uid:5", NOTHING)))
    assert security.caller("x", ("uid:5",), None).rights == ONLY_INFER
    assert security.caller("x", ("uid:6",), None).rights == EVERYTHING


@pytest.mark.parametrize(
    "text", ["", "*", "ann", "uid:", "uid:root", "uid:-1", "cert:", "token:ann", "anonymous ", "uid:?"]
)
def test_words_that_name_no_caller(text: str) -> None:
    with pytest.raises(ConfigurationError, match="names no caller"):
        check_identity(text)


def test_where_tokens_are_asked_for_only_a_grant_spares_them() -> None:
    tokens = read_tokens("ann secret scopes=infer", "tokens")
    security = Security(tokens=tokens, grants=(Grant("loopback", STRANGER),))
    assert security.caller("127.0.0.1", LOOPBACK, None) == Caller("127.0.0.1", STRANGER)
    assert security.caller("127.0.0.1", LOOPBACK, "Bearer secret") == Caller("ann", ONLY_INFER, by_token=True)
    for identities, sent in ((LOOPBACK, "Bearer wrong"), (("anonymous",), None), (("uid:0", "gid:0"), None)):
        with pytest.raises(RequestError) as refused:
            security.caller("x", identities, sent)
        assert refused.value.fault is Fault.UNAUTHENTICATED
