"""Strict TOML tables: right types are taken, the rest is refused with file, table, key and no misleading line."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.document import Source, Table, overlaid, parse_toml, read_document
from gateway.common.domain.document import refusal as place
from gateway.common.domain.errors import ConfigurationError
from tests.simulators.examples import examples

MARKED = "      | ^^^^^^^^^^^"


def doc(text: str) -> Table:
    return read_document(text, "f.toml")


def refusal(text: str, take: object) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as error:
        take(doc(text))  # type: ignore[operator]
    assert error.value.file == "f.toml"
    return error.value


def test_every_type_is_taken_and_nothing_is_left() -> None:
    table = doc('t = "x"\ni = 3\nn = 2\nf = true\nts = ["a"]\nis = [1, 2]\nns = [1, 2.5]\n[sub]\n[[many]]\n[[many]]\n')
    assert (table.text("t"), table.integer("i", low=0, high=9), table.number("n", low=0, high=9)) == ("x", 3, 2.0)
    assert (table.flag("f"), table.texts("ts"), table.integers("is"), table.numbers("ns")) == (
        True, ("a",), (1, 2), (1.0, 2.5),
    )  # fmt: skip
    sub = table.table("sub")
    assert sub is not None
    assert sub.name == "sub"
    assert [child.name for child in table.tables("many")] == ["many[0]", "many[1]"]
    table.finish()


def test_defaults_stand_for_what_is_absent() -> None:
    table = doc("")
    assert table.text("t", "x") == "x"
    assert table.flag("f", False) is False
    assert table.numbers("n", (1.0,)) == (1.0,)
    assert table.table("sub") is None
    assert table.tables("many") == ()
    assert "t" not in table
    table.finish()


TAKES = {
    "text": lambda table: table.text("k"),
    "time": lambda table: table.time("k", "%Y-%m-%d"),
    "integer": lambda table: table.integer("k", low=0, high=10),
    "number": lambda table: table.number("k", low=0, high=10),
    "flag": lambda table: table.flag("k"),
    "texts": lambda table: table.texts("k"),
    "integers": lambda table: table.integers("k"),
    "numbers": lambda table: table.numbers("k"),
    "table": lambda table: table.table("k", required=True),
    "tables": lambda table: table.tables("k"),
}
VALUES = {
    "text": '"x"', "time": '"2026-01-01"', "integer": "3", "number": "3.5", "flag": "true", "texts": '["x"]',
    "integers": "[3]", "numbers": "[3.5]", "table": "{}", "tables": "[{}]", "date": "2026-01-01",
}  # fmt: skip
FITS = {("text", "time"), ("number", "integer"), ("numbers", "integers")}


@pytest.mark.parametrize("wanted", TAKES)
@pytest.mark.parametrize("given_type", VALUES)
def test_a_wrong_type_is_refused_where_it_stands(wanted: str, given_type: str) -> None:
    text = f"other = 1\nk = {VALUES[given_type]}\n"
    if wanted == given_type or (wanted, given_type) in FITS:
        TAKES[wanted](doc(text))
        return
    error = refusal(text, TAKES[wanted])
    assert (error.key, error.line) == ("k", 2)
    assert str(error).startswith("f.toml:2: k: must be ")


@pytest.mark.parametrize("wanted", TAKES)
def test_what_is_missing_is_named_without_a_line(wanted: str) -> None:
    if wanted == "tables":
        return
    error = refusal("[elsewhere]\nk = 3\n", TAKES[wanted])
    assert (error.key, error.line) == ("k", None)
    assert "missing; it must be" in error.problem


@pytest.mark.parametrize("value", ["-1", "11", "nan", "inf", "1" + "0" * 400, "0x" + "f" * 5000, "true"])
def test_numbers_keep_their_bounds(value: str) -> None:
    refusal(f"k = {value}", TAKES["number"])
    assert len(str(refusal(f"k = [{value}]", lambda table: table.table("k")))) < 300


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1" + "0" * 400, "0x" + "f" * 5000])
def test_arrays_of_numbers_are_finite(value: str) -> None:
    refusal(f"k = [1, {value}]", TAKES["numbers"])


def test_choices_are_listed() -> None:
    take = lambda table: table.text("k", among=("a", "b"))  # noqa: E731
    assert "must be one of a, b, not 'c'" in str(refusal('k = "c"', take))
    assert "must hold only a, b, not 'c'" in str(refusal('k = ["a", "c"]', lambda t: t.texts("k", among=("a", "b"))))
    assert len(str(refusal(f'k = "{"x" * 10_000}"', take))) < 300


@pytest.mark.parametrize(
    ("form", "example", "microseconds"),
    [("%Y-%m-%dT%H:%M:%SZ", "2031-05-09T12:00:00Z", 0), ("%Y-%m-%dT%H:%M:%S.%fZ", "2031-05-09T12:00:00.000000Z", 250)],
)
def test_times_are_of_utc_and_of_one_form(form: str, example: str, microseconds: int) -> None:
    moment = datetime(2027, 3, 1, 12, 0, 1, microseconds, UTC)
    assert doc(f'k = "{moment.strftime(form)}"').time("k", form) == moment
    for wrong in ("today", "2027-03-01", moment.isoformat(), f"{moment.strftime(form)} ", "x" * 10_000):
        error = refusal(f'k = "{wrong}"', lambda table: table.time("k", form))
        assert error.problem == f"must be a time in UTC as {example}, not {wrong!r:.80}"
        assert error.line == 1


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\nbad = 2\n", 2),
        ("a = 1\n  bad=2\n", 2),
        ('a = 1\n"bad" = 2\n', 2),
        ("a = 1\n[bad]\n", 2),
        ("a = 1\n[[bad]]\n", 2),
        ("a = 1\n[bad.deeper]\nx = 1\n", 2),
        ("a = 1\nbad.deeper = 1\n", 2),
        ("a = 1\n# bad = 3\nbad = 2\n", 3),
        ("a = {bad = 1}\nbad = 2\n", None),
        ('a = "bad = 2"\nbad = 2\n', None),
        ("worse_bad = 1\nbad = 2\n", 2),
        ("badly = 1\nbad = 2\n", 2),
    ],
)
def test_the_line_is_the_only_one_that_sets_the_key_or_none(text: str, line: int | None) -> None:
    def take(table: Table) -> None:
        for key in ("a", "worse_bad", "badly"):
            if key in table:
                table._take(key, object, "anything", None)
        table.finish()

    error = refusal(text, take)
    assert (error.key, error.line) == ("bad", line)


def test_an_unknown_key_deep_inside_is_named_with_its_table() -> None:
    def take(table: Table) -> None:
        sub = table.table("a")
        assert sub is not None
        sub.tables("b")[1].finish()

    error = refusal("[a]\nb = [{}, {odd = 1}]\n", take)
    assert str(error) == "f.toml:2: a.b[1].odd: unknown key; remove it or correct its spelling (EG-101)"


@pytest.mark.parametrize(
    "text",
    ["k = ", "[a\n", "a = {b = 1, b = 2}", "k = " + "[" * 100_000, "k = " + "9" * 5000, "k = 2026-13-01", "\x00"],
)
def test_what_is_no_toml_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        doc(text)


@given(st.text(max_size=60))
@settings(max_examples=examples(200))
def test_any_text_is_a_document_or_refused(text: str) -> None:
    try:
        table = doc(text)
        for key in table.remaining():
            table.text(key)
    except ConfigurationError as error:
        assert error.file == "f.toml"  # noqa: PT017  both ways are right


def dotted(part: str, count: int) -> str:
    return " . ".join([part] * count)


@pytest.mark.parametrize("part", ["a", '"a b"', "'a.b'", r'"a\"b"'])
@pytest.mark.parametrize("form", ["{} = 1", "x = {{{} = 1}}", "[{}]"])
def test_a_key_of_many_parts_would_take_the_parser_hours(part: str, form: str) -> None:
    with pytest.raises(ConfigurationError, match="a key has more than 100 parts"):
        doc(form.format(dotted(part, 150_000)))


@pytest.mark.parametrize("text", [f"{dotted('a', 100)} = 1", "a = '" + "1, 2.5. " * 1000 + "'", "a" * 1_000_000 + "=1"])
def test_what_is_no_such_key_is_read_at_once(text: str) -> None:
    assert doc(text).remaining()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = 1\na = 2", "f.toml:2: the setting a is written twice, in lines 1 and 2; join them"),
        (
            "[a]\nx = 1\n[b]\nx = 1\n y=2\ny =[\n 3,\n 4]\n",
            "f.toml:6: the setting b.y is written twice, in lines 5 and 6",
        ),
        ("[a]\nx = 1\n\n[b]\n[a] # again\ny = 2\n", "f.toml:5: the table [a] is written twice, in lines 1 and 5; join"),
        ("[[r]]\n[r.t]\n[[r]]\n[r.t]\n[r.t]\n", "f.toml:5: the table [r.t] is written twice, in lines 4 and 5"),
        ("a = {x = 1}\n[a]\ny = 1\n", "f.toml:2: the table [a] is written twice, in lines 1 and 2; join them"),
        ("[ a ]\nx = 1\n[a]\n", "f.toml:3: the table [a] is written twice, in lines 1 and 3; join them"),
        ("[a]\nx = 1\n[ 'a' ]\n", "f.toml:3: the table [a] is written twice, in lines 1 and 3; join them"),
        ("b.x = 1\na.x = 1\n[a]\ny = 1\n", "f.toml:3: the table [a] is written twice, in lines 2 and 3; join them"),
        ("[a.b]\nx = 1\n[a]\n[a]\n", "f.toml:4: the table [a] is written twice, in lines 3 and 4; join them"),
        ("'a' . b = 1\na.\"b\" = 2", "f.toml:2: the setting a.b is written twice, in lines 1 and 2; join them"),
        ("[a.b]\n[a]\nb = 2", "f.toml:3: the setting a.b is written twice, in lines 1 and 3; join them"),
        ("[a]\n[[a]]\n", "f.toml:2: not valid TOML: Cannot overwrite a value (at line 2, column "),
        ("a = {x = 1}\na.y = 1\n", "f.toml:2: not valid TOML: Cannot mutate immutable namespace ('a',)"),
    ],
)
def test_what_is_written_twice_is_refused_with_both_lines(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        doc(text)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("text", "take", "excerpt"),
    [
        (
            "[grpc]\n  lissen = 3 # here\n",
            lambda top: top.table("grpc").finish(),
            "    2 |   lissen = …\n      |   ^^^^^^",
        ),
        ("x = 1\n[b]\ny=1\n[c]\ny=2\n", lambda top: top.table("c").finish(), "    5 | y= …\n      | ^"),
        ("[[r]]\nk=1\n[[r]]\nk=2\n", lambda top: top.tables("r")[1].text("k"), "    4 | k=2\n      | ^"),
        (
            "url = ['mqtt://me:pa/ss@word@host']",
            lambda top: top.text("url"),
            "    1 | url = ['mqtt://[withheld]@host']\n      | ^^^",
        ),
        ("my_password = 3 # x", lambda top: top.text("my_password"), f"    1 | my_password = …\n{MARKED}"),
        (
            "x = {pass = 'word', key = 'word'}",
            lambda top: top.table("x").finish(),
            "    1 | x = {pass = …\n      |      ^^^^",
        ),
        ("[word]", lambda top: top.finish(), "    1 | [word]\n      |  ^^^^"),
    ],
)
def test_an_excerpt_shows_the_line_and_marks_the_key(text: str, take: object, excerpt: str) -> None:
    assert refusal(text, take).excerpt == excerpt


@pytest.mark.parametrize(
    "text",
    [
        "tokens = [\n  'hunter2'\n  'horse',\n]",
        "tokens = ['hunter2' 'hunter2']",
        "passwort = 'hunter2' 'x'",
        "mqtt_pass: hunter2",
        "credentials = two words hunter2",
        "url = mqtt://me:hun/ter2@hunter2@host",
        "hunter2",
        "sesame = hunter2",
        "sesame = 1 hunter2",
        "sesame: hunter2",
        "a.sesame = 'hunter2' x",
        "sesame = 'hunter2'\nsesame = 'hunter2'",
    ],
)
def test_a_line_that_is_no_toml_shows_no_secret(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        doc(text)
    assert "hunter2" not in f"{caught.value}{caught.value.excerpt}"


def test_a_value_in_a_message_has_no_password() -> None:
    assert "hunter2" not in str(refusal("k = ['mqtt://me:hunter2@host']", TAKES["text"]))


def test_the_line_that_the_parser_reports_is_shown() -> None:
    with pytest.raises(ConfigurationError) as caught:
        doc("[a]\nx = 1 2\n")
    assert caught.value.excerpt == "    2 | x = …\n      | ^^^^^"


DOCUMENTS: st.SearchStrategy[dict[str, object]] = st.recursive(
    st.dictionaries(st.sampled_from("abc"), st.integers() | st.lists(st.integers(), max_size=2), max_size=3),
    lambda inner: st.dictionaries(
        st.sampled_from("abc"), inner | st.integers() | st.lists(inner, max_size=2), max_size=3
    ),
    max_leaves=8,
)


def leaves(values: dict[str, object], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], object]:
    """Return everything but tables by its path; an empty table is a leaf."""
    found: dict[tuple[str, ...], object] = {}
    for key, value in values.items():
        inner = leaves(value, (*path, key)) if isinstance(value, dict) else {}
        found |= inner or {(*path, key): value}
    return found


@given(st.lists(DOCUMENTS, max_size=4))
@settings(max_examples=examples(300))
def test_files_are_merged_key_by_key_and_the_later_one_wins(files: list[dict[str, object]]) -> None:
    merged: dict[str, object] = {}
    for values in files:
        merged = overlaid(merged, values)
    found, expected = leaves(merged), dict[tuple[str, ...], object]()
    for values in files:  # the same by paths: a leaf replaces what is at its path, below it and above it
        for path, value in leaves(values).items():
            if value == {} and any(known[: len(path)] == path and known != path for known in expected):
                continue  # an empty table adds nothing to a table
            expected = {
                known: kept
                for known, kept in expected.items()
                if known[: len(path)] != path and path[: len(known)] != known
            } | {path: value}
    assert found == expected


def test_a_setting_of_several_files_is_refused_where_it_stands() -> None:
    texts = {
        "main": "[a]\nx = 1\ny = 2\n[[r]]\nk = 1\n",
        "more": "\n[a]\ny = 3\n",
        "last": "[[r]]\n[[r]]\nk = 2\n[b]\n",
    }
    sources = [Source(file, text, parse_toml(text, file)) for file, text in texts.items()]
    assert [str(place(sources, "no", *where)) for where in (("a", "x"), ("a", "y"), ("a", "z"), ("r[1]", "k"))] == [
        "main:2: a.x: no",
        "more:3: a.y: no",
        "more: a.z: no",
        "last:3: r[1].k: no",
    ]
    assert str(place(sources, "no", "r[0]", "only")) == "last: r[0].only: no", "the list of an earlier file is replaced"
    assert [str(place(sources, "no", *where)) for where in (("b", "w"), ("c", "w"), ("", "b"))] == [
        "last: b.w: no",
        "main: c.w: no",
        "last:4: b: no",
    ]
