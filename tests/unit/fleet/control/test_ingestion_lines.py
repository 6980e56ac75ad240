"""Lines of telemetry: what is read, what is refused and by which line; nothing that is sent does more than that."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.control.ingestion_lines import IntakeLimits, batches, document_of, plain_body
from fleet.controller.problems import ProblemError
from gateway.common.domain.errors import Fault, RequestError
from tests.simulators.asking import gap, record

LIMITS = IntakeLimits(50, 4, 1000)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
documents = st.dictionaries(texts, values, max_size=4)
names = st.sampled_from(["vitals", "state", "updates"])
records = st.builds(record, names, st.integers(1, 2**63 - 1), documents, epoch=st.integers(0, 2))
gaps = st.builds(lambda s, first, more: gap(s, first, first + more), names, st.integers(1, 2**60), st.integers(0, 99))


def body(*lines: object) -> bytes:
    return "".join(f"{json.dumps(line)}\n" for line in lines).encode()


def tried(read: Callable[[], Any]) -> tuple[Any, Fault | None, str]:
    """Return what came of it, or why nothing did."""
    try:
        return read(), None, ""
    except RequestError as error:
        return None, error.fault, error.message


def refusal(content: bytes, limits: IntakeLimits = LIMITS) -> RequestError:
    with pytest.raises(RequestError) as refused:
        batches(content, limits)
    return refused.value


@given(st.lists(records | gaps, max_size=30))
def test_what_a_device_sends_comes_out_by_source_in_its_order(lines) -> None:
    found = batches(body(*lines), IntakeLimits(50, 100, 100_000))
    expected: dict[tuple[str, int], tuple[list[object], list[object]]] = {}
    for line in lines:
        rows, lost = expected.setdefault((line["stream"], line["boot_epoch"]), ([], []))
        if "last" in line:
            lost.append((line["seq"], line["last"]))
        else:
            rows.append((line["seq"], line["document"]))
    said = {(b.stream, b.boot_epoch): ([(r.seq, r.document) for r in b.rows], list(b.lost)) for b in found}
    assert said == expected
    assert list(said) == list(expected)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="replace")))
def test_rubbish_is_refused_or_read_and_nothing_else(content) -> None:
    assert tried(lambda: batches(content, LIMITS))[1] in {None, Fault.INVALID, Fault.TOO_LARGE}


@given(documents, st.sampled_from(["stream", "boot_epoch", "seq", "at", "kind", "document"]), values)
def test_a_line_with_one_odd_value_is_named_or_harmless(document, key, value) -> None:
    line = record("vitals", 1, document) | {key: value}
    content = body(record("vitals", 2, {}), line)
    found, fault, message = tried(lambda: batches(content, IntakeLimits(50, 4, 100_000)))
    if fault:
        assert (fault, message[:8]) == (Fault.INVALID, "line 2: ")
    else:
        assert sum(len(batch.rows) for batch in found) == 2


BAD = {
    "no JSON": b"{",
    "no object": b"[]",
    "nothing": b"{}",
    "NaN": body(record("a", 1, {})).replace(b"{}", b'{"x":NaN}'),
    "half a surrogate": body(record("a", 1, {})).replace(b"{}", b'{"x":"\\ud800"}'),
    "not UTF-8": body(record("a", 1, {})).replace(b"{}", b'{"x":"\xff"}'),
    "no document": body({**record("a", 1, {}), "document": None}),
    "a document that is none": body(record("a", 1, [])),
    "number 0": body(record("a", 0, {})),
    "a number beyond 63 bits": body(record("a", 2**63, {})),
    "a number that is true": body({**record("a", 1, {}), "seq": True}),
    "an epoch below 0": body(record("a", 1, {}, epoch=-1)),
    "NUL in a name": body(record("a\0", 1, {})),
    "no name": body(record("", 1, {})),
    "no kind": body(record("a", 1, {}, kind="")),
    "SQL": body(record("x'; DROP TABLE devices; --", 1, {})),
    "no time": body(record("a", 1, {}, at="yesterday")),
    "a time without its zone": body(record("a", 1, {}, at="2026-03-01T12:00:00")),
    "a time before 1970": body(record("a", 1, {}, at="1969-12-31T23:59:59+00:00")),
    "very deep": b'{"document":' + b'{"x":' * 5000 + b"1" + b"}" * 5001,
    "a long number": body(record("a", 1, {})).replace(b'"seq": 1', b'"seq": ' + b"9" * 5000),
    "a large document": body(record("a", 1, {"x": "y" * 1000})),
    "large once it is kept": body(record("a", 1, {})).replace(b"{}", b'{"x":"' + "é".encode() * 200 + b'"}'),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_named(name) -> None:
    error = refusal(body(record("vitals", 1, {})) + b"\n" + BAD[name])
    assert error.fault is Fault.INVALID
    assert error.message.startswith("line 3: "), error.message


def test_too_much_is_refused_before_it_is_read() -> None:
    assert refusal(b"{\n" * 51).fault is Fault.TOO_LARGE
    many = body(*(record("vitals", 1, {}, epoch=epoch) for epoch in range(5)))
    assert refusal(many).fault is Fault.TOO_LARGE


# ---- bodies ----------------------------------------------------------------------------------------------------------
@given(st.binary(max_size=5000), st.integers(0, 6000), st.integers(1, 3))
def test_what_was_packed_comes_out_or_is_too_large(content, limit, members) -> None:
    packed = b"".join(gzip.compress(content) for _ in range(members))
    if len(content) * members > limit:
        with pytest.raises(RequestError, match="more than"):
            plain_body(packed, "gzip", limit)
    else:
        assert plain_body(packed, "gzip", limit) == content * members


@given(st.binary(max_size=300))
def test_what_is_no_gzip_is_refused(content) -> None:
    found, fault, _ = tried(lambda: plain_body(content, "gzip", 1000))
    assert fault in {Fault.INVALID, Fault.TOO_LARGE} or found == b"" or content.startswith(b"\x1f\x8b")


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_half_of_a_gzip_is_none(cut) -> None:
    with pytest.raises(RequestError, match="not gzip"):
        plain_body(gzip.compress(b"0123456789" * 20)[:-cut], "gzip", 1000)


def test_a_bomb_is_given_up_as_soon_as_it_is_one() -> None:
    packing = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packing.compress(bytes(1_048_576)) for _ in range(256)) + packing.flush()
    tracemalloc.start()
    with pytest.raises(RequestError) as refused:
        plain_body(bomb, "gzip", 100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refused.value.fault is Fault.TOO_LARGE
    assert peak < 2_000_000


def test_a_body_of_many_members_is_given_up() -> None:
    """Each would be cut off what follows, and 52,000 empty ones fit a megabyte: seconds of copying."""
    assert plain_body(gzip.compress(b"x") * 16, "gzip", 100) == b"x" * 16
    for content in (b"", b"x"):
        with pytest.raises(RequestError, match="more than 16 members") as refused:
            plain_body(gzip.compress(content) * 17, "gzip", 100)
        assert refused.value.fault is Fault.INVALID


def test_other_encodings_are_not_understood() -> None:
    with pytest.raises(ProblemError, match="gzip"):
        plain_body(b"", "br", 10)
    assert plain_body(b"abc", "", 3) == b"abc"
    with pytest.raises(RequestError):
        plain_body(b"abcd", "identity", 3)


@given(st.binary(max_size=100))
def test_a_document_is_an_object(content) -> None:
    found, fault, _ = tried(lambda: document_of(content))
    assert fault is Fault.INVALID or isinstance(found, dict)
