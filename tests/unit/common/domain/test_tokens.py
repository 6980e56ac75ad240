"""Lines of a tokens file: rights, digests, expiry; and what is said of lines that are none."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.access import AuthenticationError, Security, Tokens, read_expiry, read_tokens
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.rights import EVERYTHING, Caller, Rights, Scope

DIGEST = hashlib.sha256(b"secret").hexdigest()
INFER = Rights(frozenset({Scope.INFER}))


@pytest.mark.parametrize(
    ("line", "holder"),
    [
        ("ann secret", Caller("ann", EVERYTHING)),
        ("secret", Caller(f"token-{DIGEST[:8]}", EVERYTHING)),
        (f"ann sha256:{DIGEST}", Caller("ann", EVERYTHING)),
        (f"ann sha256:{DIGEST.upper()} scopes=infer", Caller("ann", INFER)),
        (f"sha256:{DIGEST}", Caller(f"token-{DIGEST[:8]}", EVERYTHING)),
        ("ann secret scopes=admin # everything", Caller("ann", EVERYTHING)),
        ("ann secret models=cam-*,door scopes=infer", Caller("ann", Rights(INFER.scopes, ("cam-*", "door")))),
        ("ann secret models=cam-*", Caller("ann", Rights(EVERYTHING.scopes, ("cam-*",)))),
        ("scopes=ann secret", Caller("scopes=ann", EVERYTHING)),
    ],
)
def test_lines(line: str, holder: Caller) -> None:
    tokens = read_tokens(line, "tokens")
    assert tokens.caller("Bearer secret") == replace(holder, by_token=True)
    assert "secret" not in repr(tokens)


def test_a_digest_is_no_token() -> None:
    tokens = read_tokens(f"ann sha256:{DIGEST}", "tokens")
    for sent in (f"Bearer sha256:{DIGEST}", f"Bearer {DIGEST}"):
        with pytest.raises(AuthenticationError) as refused:
            tokens.caller(sent)
        assert refused.value.reason == "unknown"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ann hidden scopes=", "scopes= must name some of infer"),
        ("ann hidden scopes=infer,root", "not 'root'"),
        ("ann hidden models=", "models= must be"),
        ("ann hidden models=a,,b", "models= must be"),
        ("ann hidden expires=tomorrow", "expires= must be a date"),
        ("ann hidden hidden", "then scopes="),
        ("ann hidden until=2030-01-01", "then scopes="),
        ("ann hidden scopes=infer scopes=models", "once each"),
        ("hidden scopes=infer", "needs a name"),
        ("ann sha256:hidden", "64 hex digits"),
        ("ann hidden\nben hidden", "another line"),
        ("ann hidden\nann hidden scopes=infer", "another line"),
    ],
)
def test_lines_that_are_none(line: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        read_tokens(f"# first\n{line}\n", "tokens")
    assert refused.value.line == 2 + line.count("\n")
    assert "hidden" not in str(refused.value)


@given(st.text(max_size=60))
def test_any_text_is_tokens_or_refused(text: str) -> None:
    try:
        tokens = read_tokens(text, "tokens")
    except ConfigurationError:
        return
    assert tokens.by_digest


# ---- expiry ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2031-05-09", datetime(2031, 5, 9, tzinfo=UTC)),
        ("2031-05-09T12:00:00Z", datetime(2031, 5, 9, 12, tzinfo=UTC)),
        ("2031-05-09t12:00:00.5z", datetime(2031, 5, 9, 12, 0, 0, 500_000, tzinfo=UTC)),
        ("2031-05-09T12:00:00+02:00", datetime(2031, 5, 9, 10, tzinfo=UTC)),
    ],
)
def test_times(text: str, moment: datetime) -> None:
    assert read_expiry(text) == moment.timestamp()


@pytest.mark.parametrize(
    "text", ["", "2031", "2031-5-9", "20310509", "2031-02-30", "2031-05-09T12:00:00", "2031-05-09T25:00:00Z",
             "2031-W05-1", "٢٠٣١-05-09", "0000-01-01"],
)  # fmt: skip
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(ConfigurationError, match="RFC 3339"):
        read_expiry(text)


def test_a_token_expires() -> None:
    tokens = read_tokens("ann secret expires=1970-01-01T00:01:40Z\nben other", "tokens")
    assert tokens.at(99.0).caller("Bearer secret").name == "ann"
    assert tokens.at(99.0) == tokens
    late = tokens.at(100.0)
    with pytest.raises(AuthenticationError, match="of 'ann' has expired; ask the operator") as refused:
        late.caller("Bearer secret")
    assert refused.value.reason == "expired"
    assert late.caller("Bearer other").name == "ben"
    assert (tokens.next_expiry_s, late.next_expiry_s) == (100.0, None)
    assert late.at(99.0) == tokens  # a clock that was set back
    assert Security(tokens=tokens).at(100.0) == Security(tokens=late)
    assert Security().at(100.0) == Security()


@pytest.mark.parametrize(("sent", "reason"), [(None, "missing"), ("Basic x", "missing"), ("Bearer x", "unknown")])
def test_reasons_for_metrics(sent: str | None, reason: str) -> None:
    with pytest.raises(AuthenticationError) as refused:
        Tokens({}).caller(sent)
    assert refused.value.reason == reason
