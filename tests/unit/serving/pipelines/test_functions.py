"""Expressions on columns: what each function gives, what is refused, random ones against Python row by row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.expressions import ExpressionError, parse_expression
from gateway.common.domain.tensor import Datatype
from gateway.serving.pipelines.columns import (
    FLAG_TYPE,
    NUMBER,
    NUMBER_TYPE,
    TEXT_TYPE,
    ColumnType,
    ColumnValue,
    RowSet,
    StepError,
    Values,
    spread,
)
from gateway.serving.pipelines.compiler import ExpressionNames
from gateway.serving.pipelines.functions import compiled

VECTOR = ColumnType(NUMBER, (3,), Datatype.FP32)
BOX = ColumnType(NUMBER, (4,), Datatype.FP32)
Row = Mapping[str, Any]
ROWS: list[Row] = [
    {"a": 2.0, "b": -1.5, "f": True, "t": b"Car", "v": [1.0, 5.0, 2.0], "cars": [(0.5, b"red"), (0.75, b"blue")]},
    {"a": 0.0, "b": 4.0, "f": False, "t": b"", "v": [0.0, 0.0, 0.0], "cars": []},
    {"a": -3.0, "b": 0.0, "f": False, "t": "Zäh".encode(), "v": [-1.0, 3.0, 3.0], "cars": [(0.25, b"red")]},
]


@dataclass
class Table:
    """Columns of a request with the inputs a, b (numbers), f (flag), t (text), v (3 numbers), and the step `cars`.

    `cars` has rows with `s` (number), `k` (text) and `box`. `m.y` is a number that may be absent where f is false.
    """

    rows: Sequence[Row]
    values: Values = field(default_factory=list)

    def __post_init__(self) -> None:
        cars = [(row, *car) for row, each in enumerate(self.rows) for car in each["cars"]]
        self.root = RowSet("input", 0, 1)
        self.cars = RowSet("cars", 2, 3, self.root, self.root)
        self.dogs = RowSet("dogs", 4, 5, self.root, self.root)
        count = len(self.rows)
        columns = [
            np.array([row["a"] for row in self.rows], np.float64),
            np.array([row["b"] for row in self.rows], np.float64),
            np.array([row["f"] for row in self.rows], bool),
            self._texts([row["t"] for row in self.rows]),
            np.array([row["v"] for row in self.rows], np.float32).reshape(count, 3),
            np.array([car[1] for car in cars], np.float64),
            self._texts([car[2] for car in cars]),
            np.array([(0, 0, 2 + car[1], 4) for car in cars], np.float32).reshape(-1, 4),
        ]
        index = np.array([car[0] for car in cars], int)
        self.values = [None, count, index, len(cars), np.zeros(0, int), 0, *columns]

    @staticmethod
    def _texts(texts: list[bytes]) -> np.ndarray:
        found = np.empty(len(texts), object)
        found[:] = texts
        return found

    def scope(self) -> ExpressionNames:
        types = [NUMBER_TYPE, NUMBER_TYPE, FLAG_TYPE, TEXT_TYPE, VECTOR, NUMBER_TYPE, TEXT_TYPE, BOX]
        made = [
            ColumnValue(of, self.root if slot < 5 else self.cars, lambda values, slot=slot: values[6 + slot])  # type: ignore[misc]
            for slot, of in enumerate(types)
        ]
        a, b, f, t, v, s, k, box = made
        absent = ColumnType(NUMBER, optional=True)
        maybe = ColumnValue(absent, self.root, a.of, f.of)
        dogs = ColumnValue(NUMBER_TYPE, self.dogs, lambda _: np.zeros(0))
        steps = {"cars": {"s": s, "k": k, "box": box}, "m": {"y": maybe}, "dogs": {"s": dogs}}
        return ExpressionNames(
            columns=lambda step, name: steps.get(step, {}).get(name),
            bare={"a": a, "b": b, "f": f, "t": t, "v": v},
            rows={"cars": self.cars, "dogs": self.dogs},
            labels={"m": ("zero", "one")},
            known=lambda step: list(steps.get(step, {})),
        )

    def of(self, text: str, *, optional: bool = False) -> list[Any]:
        """Return the values of an expression, one for each row."""
        value = compiled(parse_expression(text), self.scope(), optional=optional)
        count = len(self.rows) if value.rows in {None, self.root} else self.values[3]
        found = spread(value, self.values, count)
        assert len(found) == count
        return found.tolist()  # type: ignore[no-any-return]


nan = math.nan


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1 + 2 * 3", [7, 7, 7]),
        ("-a", [-2, 0, 3]),
        ("a - b * 2", [5, -8, -3]),
        ("b % 2", [0.5, 0, 0]),
        ("a / 2", [1, 0, -1.5]),
        ("f + f", [2, 0, 0]),
        ("t + '!'", [b"Car!", b"!", "Zäh!".encode()]),
        ("'a' + t + 'b' + t", [b"aCarbCar", b"ab", "aZähbZäh".encode()]),
        ("'a' + 'b'", [b"ab", b"ab", b"ab"]),
        ("text(a)", [b"2", b"0", b"-3"]),
        ("text(1234567 + a)", [b"1234569", b"1234567", b"1234564"]),
        ("text(f)", [b"1", b"0", b"0"]),
        ("text(1e17 + 0)", [b"1e+17"] * 3),
        ("text(0.4 * b / 10, 0)", [b"0", b"0", b"0"]),
        ("text(b / 3, 2)", [b"-0.50", b"1.33", b"0.00"]),
        ("text(1 / 3)", [b"0.333333"] * 3),
        ("join(cars.k)", [b"red, blue", b"", b"red"]),
        (
            "'seen: ' + join(upper(cars.k), '; ') + ' ' + text(count(cars))",
            [b"seen: RED; BLUE 2", b"seen:  0", b"seen: RED 1"],
        ),
        ("a == 0", [False, True, False]),
        ("not f or a > 1", [True, True, True]),
        ("f and a > 1 and b < 0", [True, False, False]),
        ("true if f else a < 0", [True, False, True]),
        ("a if f else b", [2, 4, 0]),
        ("v if f else v + 1", [[1, 5, 2], [1, 1, 1], [0, 4, 4]]),
        ("v if f else 0", [[1, 5, 2], [0, 0, 0], [0, 0, 0]]),
        ("v * a", [[2, 10, 4], [0, 0, 0], [3, -9, -9]]),
        ("v[1] - v[-1]", [3, 0, 0]),
        ("t == 'Car'", [True, False, False]),
        ("t != ''", [True, False, True]),
        ("t in ['Car', '']", [True, True, False]),
        ("a not in [0, -3]", [True, False, False]),
        ("f in [true]", [True, False, False]),
        ("a in []", [False, False, False]),
        ("'x' if f else t", [b"x", b"", "Zäh".encode()]),
        ("'block' if f else 'go'", [b"block", b"go", b"go"]),
        ("abs(b)", [1.5, 4, 0]),
        ("floor(b)", [-2, 4, 0]),
        ("round(b)", [-2, 4, 0]),
        ("sqrt(a + 3)", [math.sqrt(5), math.sqrt(3), 0]),
        ("exp(b * 0)", [1, 1, 1]),
        ("atan2(a, b)", [math.atan2(2, -1.5), 0, math.atan2(-3, 0)]),
        ("atan2(v, 1)[0]", [math.pi / 4, 0, -math.pi / 4]),
        ("log(exp(1))", [1, 1, 1]),
        ("min(a, b)", [-1.5, 0, -3]),
        ("max(a, b, 1)", [2, 4, 1]),
        ("max(v, 1)", [[1, 5, 2], [1, 1, 1], [1, 3, 3]]),
        ("mean(a, b)", [0.25, 2, -1.5]),
        ("mean(v, 1)", [[1, 3, 1.5], [0.5, 0.5, 0.5], [0, 2, 2]]),
        ("argmax(v)", [1, 0, 1]),
        ("top(v)", [5, 0, 3]),
        ("top(softmax(v * 0)) * 3", [1, 1, 1]),
        ("dot(v, v)", [30, 0, 19]),
        ("len(t)", [3, 0, 3]),
        ("lower(t)", [b"car", b"", "zäh".encode()]),
        ("upper(t)", [b"CAR", b"", "ZÄH".encode()]),
        ("number('2.5') + a", [4.5, 2.5, -0.5]),
        ("contains(t, 'a')", [True, False, False]),
        ("contains('abc', 'b')", [True, True, True]),
        ("vote(t, 'Car', 'bus')", [b"Car", b"", "Zäh".encode()]),
        ("label(a, m)", [b"2", b"zero", b"-3"]),
        ("label(f, m)", [b"one", b"zero", b"zero"]),
        ("default(m.y, b)", [2, 4, 0]),
        ("default(m.y, -1)", [2, -1, -1]),
        ("present(m.y)", [True, False, False]),
        # of the rows of a step
        ("count(cars)", [2, 0, 1]),
        ("count(cars.s > 0.3)", [2, 0, 0]),
        ("count(dogs)", [0, 0, 0]),
        ("any(cars.k == 'red')", [True, False, True]),
        ("all(cars.k == 'red')", [False, True, True]),
        ("sum(cars.s)", [1.25, 0, 0.25]),
        ("max(cars.s, default=-1)", [0.75, -1, 0.25]),
        ("min(cars.s, default=9)", [0.5, 9, 0.25]),
        ("mean(cars.s, default=0)", [0.625, 0, 0.25]),
        ("first(cars.k, default='none')", [b"red", b"none", b"red"]),
        ("first(cars.s > 0.4, default=false)", [True, False, False]),
        ("default(max(cars.s), 3)", [0.75, 3, 0.25]),
        ("present(mean(cars.s))", [True, False, True]),
        ("default(max(dogs.s), a)", [2, 0, -3]),
        ("a + sum(cars.s + b)", [2 + 1.25 - 3, 0, -3 + 0.25]),
        ("count(cars.s > max(a, 0.6))", [0, 0, 0]),
        # with the rows of a step
        ("cars.s * a", [1, 1.5, -0.75]),
        ("cars.s if f else 0", [0.5, 0.75, 0]),
        ("cars.k == 'red' and f", [True, False, False]),
        ("cars.s - max(cars.s, default=0)", [-0.25, 0, 0]),
        ("vote(cars.k, t)", [b"red", b"blue", b"red"]),
        ("width(cars.box) * height(cars.box) - area(cars.box)", [0, 0, 0]),
        ("width(cars.box)", [2.5, 2.75, 2.25]),
        ("v + cars.s", [[1.5, 5.5, 2.5], [1.75, 5.75, 2.75], [-0.75, 3.25, 3.25]]),
    ],
)
def test_what_expressions_give(text: str, values: list[Any]) -> None:
    found = Table(ROWS).of(text)
    if found and isinstance(found[0], bytes):
        assert found == values
    else:
        np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(values, np.float64), rtol=1e-6)
    empty = Table([])
    assert empty.of(text) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("carz", "is no input, column or earlier step; did you mean .cars.?"),
        ("car.s", "'car' is no earlier step; did you mean .cars.?"),
        ("cars", "is a step; name one of its columns: s, k, box"),
        ("cars.x", "step 'cars' has no column 'x'; it has s, k, box"),
        ("cuont(cars)", "no function is called 'cuont'; did you mean .count.?"),
        ("a + t", "is text; here it must be a number"),
        ("t + 1", "is text; here it must be a number"),
        ("t - 'x'", "is text; here it must be a number"),
        ("text(t)", "is text; here it must be a number"),
        ("text(a, 10)", "must be 0 to 9, the digits after the point"),
        ("text(a, a)", "must be 0 to 9, the digits after the point"),
        ("join(t)", "is a function over the rows that a step made"),
        ("join(cars.s)", "is number; here it must be a text"),
        ("join(cars.k, t)", "must be a constant"),
        ("a and f", "is number; here it must be true or false"),
        ("v and f", "must be true or false"),
        ("not t", "must be true or false"),
        ("a == t", "compares number with text"),
        ("f == 1", "compares flag with number"),
        ("t < 'x'", "orders text; only numbers have an order"),
        ("f < true", "orders flag"),
        ("v == v", "compares lists of numbers"),
        ("v in [1]", "must list constants of the kind number"),
        ("a in [b]", "must list constants of the kind number"),
        ("a in ['x']", "must list constants of the kind number"),
        ("a in b", "'in' needs a list of constants"),
        ("[1]", "a list belongs after 'in'"),
        ("a if a else b", "must be true or false"),
        ("a if f else t", "is number or text; both must be of one kind"),
        ("v + cars.box", "their shapes differ"),
        ("max(v, cars.box)", "their shapes differ"),
        ("mean(v, a, cars.box)", "their shapes differ"),
        ("v[3]", "has 3 values; 3 is not one of them"),
        ("v[-4]", "has 3 values; -4 is not one of them"),
        ("v[a]", "needs a list of numbers before"),
        ("v[true]", "needs a list of numbers before"),
        ("v['x']", "needs a list of numbers before"),
        ("a[0]", "needs a list of numbers before"),
        ("t[0]", "is text; here it must be a number"),
        ("abs()", "needs 1 values in parentheses, not 0"),
        ("abs(a, b)", "needs 1 values"),
        ("abs(t)", "must be a number"),
        ("argmax(a)", "must be numbers of the shape"),
        ("width(v)", r"must be numbers of the shape \[4\]"),
        ("len(a)", "must be a text"),
        ("contains(t, t)", "must be a constant"),
        ("min(a, b, default=3)", "min has no 'default'"),
        ("abs(a, x=1)", "abs has no 'x'"),
        ("max(a)", "is a function over the rows that a step made"),
        ("count(a)", "must be true or false"),
        ("count(f)", "is a function over the rows"),
        ("max(cars.s, default=a)", "'default' must be a constant number"),
        ("first(cars.k, default=1)", "'default' must be a constant text"),
        ("max(cars.s) > 1", "may be absent"),
        ("m.y + 1", r"may be absent, because its step skips rows; write default\(m.y, …\)"),
        ("default(a, 1)", "is always there; remove default"),
        ("present(a)", "is always true; remove present"),
        ("default(m.y, 'x')", "both must be of one kind"),
        ("default(m.y, v)", "both must be of one shape"),
        ("label(a, cars)", "is no step that runs a model"),
        ("label(t, m)", "must be a number"),
        ("cars.s + dogs.s", "neither of which were made of the other"),
        ("vote(t)", "needs 2 to 16 values"),
        ("crop(a, cars.box)", "must be an image"),
        ("1 / 0", "divides by zero"),
        ("a + log(0)", "divides by zero"),
        ("1e300 * 1e300", "is no finite number"),
        ("'x'", ""),
    ],
)
def test_what_does_not_fit_is_refused_with_words(text: str, problem: str) -> None:
    if not problem:
        assert Table(ROWS).of(text) == [b"x"] * 3
        return
    with pytest.raises(ExpressionError, match=problem):
        Table(ROWS).of(text)


# ---- random expressions ----------------------------------------------------------------------------------------------
Part = tuple[str, Callable[[Row], Any]]
"""Text of an expression, and the function that gives its value for one row."""
NUMBERS = st.integers(-24, 24).map(lambda number: number / 8)
TEXTS = st.sampled_from(["", "a", "car", "Bus"])


def _constant(number: float) -> Part:
    return (f"({number})" if number >= 0 else f"(-{-number})"), lambda _: number


def _text(text: str) -> Part:
    return repr(text), lambda _: text.encode()


def _two(words: str, function: Callable[[Any, Any], Any]) -> Callable[[tuple[Part, Part]], Part]:
    return lambda pair: (words.format(pair[0][0], pair[1][0]), lambda row: function(pair[0][1](row), pair[1][1](row)))


def _one(words: str, function: Callable[[Any], Any]) -> Callable[[Part], Part]:
    return lambda part: (words.format(part[0]), lambda row: function(part[1](row)))


def _chosen(three: tuple[Part, Part, Part]) -> Part:
    when, then, other = three
    text = f"({then[0]} if {when[0]} else {other[0]})"
    return text, lambda row: then[1](row) if when[1](row) else other[1](row)


def _over(words: str, function: Callable[[list[Any]], Any]) -> Callable[[Part], Part]:
    def made(part: Part) -> Part:
        def of(row: Row) -> Any:
            return function([part[1]({**row, "s": s, "k": k}) for s, k in row["cars"]])

        return words.format(part[0]), of

    return made


def expressions(*, inner: bool, depth: int) -> tuple[st.SearchStrategy[Part], ...]:
    """Return strategies of numbers, flags and texts; `inner` ones read the rows of `cars` as well."""

    def column(text: str, key: str) -> st.SearchStrategy[Part]:
        return st.just((text, lambda row: np.float64(row[key]) if key in "abs" else row[key]))

    number = [NUMBERS.map(_constant), column("a", "a"), column("b", "b")]
    flag = [st.just(("true", lambda _: True)), column("f", "f")]
    text = [TEXTS.map(_text), column("t", "t")]
    if inner:
        number.append(column("cars.s", "s"))
        text.append(column("cars.k", "k"))
    if not depth:
        return st.one_of(number), st.one_of(flag), st.one_of(text)
    n, f, t = expressions(inner=inner, depth=depth - 1)
    pairs, flags = st.tuples(n, n), st.tuples(f, f)
    number += [
        *(pairs.map(_two(f"({{}} {sign}  {{}})", of)) for sign, of in (("+", np.add), ("-", np.subtract))),
        *(pairs.map(_two(f"({{}} {sign} {{}})", of)) for sign, of in (("*", np.multiply), ("/", np.divide))),
        pairs.map(_two("({} % {})", np.mod)),
        *(pairs.map(_two(f"{name}({{}}, {{}})", of)) for name, of in (("max", np.maximum), ("min", np.minimum))),
        n.map(_one("abs({})", np.abs)),
        n.map(_one("(-{})", np.negative)),
        n.map(_one("floor({})", np.floor)),
        t.map(_one("len({})", lambda text: len(text.decode()))),
        st.tuples(f, n, n).map(_chosen),
    ]
    signs = [("<", np.less), ("<=", np.less_equal), ("==", np.equal), ("!=", np.not_equal), (">", np.greater)]
    flag += [
        *(pairs.map(_two(f"({{}} {sign} {{}})", of)) for sign, of in signs),
        flags.map(_two("({} and {})", lambda a, b: bool(a and b))),
        flags.map(_two("({} or {})", lambda a, b: bool(a or b))),
        f.map(_one("(not {})", lambda a: not a)),
        st.tuples(t, t).map(_two("({} == {})", lambda a, b: a == b)),
        t.map(_one("contains({}, 'a')", lambda a: b"a" in a)),
        t.map(_one("({} in ['car', 'a'])", lambda a: a in {b"car", b"a"})),
    ]
    text += [
        st.tuples(f, t, t).map(_chosen),
        t.map(_one("lower({})", lambda a: a.lower())),
        t.map(_one("upper({})", lambda a: a.upper())),
        st.tuples(t, t).map(_two("vote({}, {})", lambda a, _: a)),
    ]
    if not inner:
        x, y, z = expressions(inner=True, depth=depth - 1)
        held = st.tuples(x, st.just(("cars.s", lambda row: row["s"]))).map(_two("({} + 0 * {})", lambda a, _: a))
        number += [
            held.map(_over("sum({})", lambda found: sum(found, 0.0))),
            held.map(_over("max({}, default=7)", lambda found: np.maximum.reduce(found) if found else 7)),
        ]
        seen = st.tuples(y, st.just(("cars.s", lambda row: row["s"]))).map(_two("({} or {} > 9)", lambda a, _: a))
        flag += [seen.map(_over("any({})", any)), seen.map(_over("all({})", all))]
        number.append(seen.map(_over("count({})", lambda found: sum(map(bool, found)))))
        shown = st.tuples(z, st.just(("cars.k", lambda row: row["k"]))).map(_two("vote({}, {})", lambda a, _: a))
        text.append(shown.map(_over("first({}, default='-')", lambda found: found[0] if found else b"-")))
    return st.one_of(number), st.one_of(flag), st.one_of(text)


RANDOM_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "a": NUMBERS,
            "b": NUMBERS,
            "f": st.booleans(),
            "t": TEXTS.map(str.encode),
            "v": st.just([0.0, 1.0, 2.0]),
            "cars": st.lists(st.tuples(NUMBERS, TEXTS.map(str.encode)), max_size=3),
        }
    ),
    max_size=4,
)


@settings(max_examples=250, deadline=None)
@given(st.one_of(*expressions(inner=False, depth=3)), RANDOM_ROWS)
def test_random_expressions_give_what_python_gives_row_by_row(part: Part, rows: list[Row]) -> None:
    text, function = part
    table = Table(rows)
    if compiled_or_none(table, text) is None:
        return
    with np.errstate(all="ignore"):
        found, wanted = table.of(text), [function(row) for row in rows]
    if rows and isinstance(wanted[0], bytes):
        assert found == wanted
    else:
        np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(wanted, np.float64), rtol=1e-9, atol=1e-9)


@settings(max_examples=150, deadline=None)
@given(st.one_of(*expressions(inner=True, depth=2)), RANDOM_ROWS)
def test_random_expressions_on_the_rows_of_a_step_give_what_python_gives(part: Part, rows: list[Row]) -> None:
    text, function = part
    table = Table(rows)
    value = compiled_or_none(table, text)
    if value is None or value.rows is not table.cars:
        return
    with np.errstate(all="ignore"):
        wanted = [function({**row, "s": s, "k": k}) for row in rows for s, k in row["cars"]]
        found = value.of(table.values).tolist()
    if wanted and isinstance(wanted[0], bytes):
        assert found == wanted
    else:
        np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(wanted, np.float64), rtol=1e-9, atol=1e-9)


def compiled_or_none(table: Table, text: str) -> ColumnValue | None:
    """Return an expression compiled; None if it divides a constant by zero."""
    try:
        return compiled(parse_expression(text), table.scope())
    except ExpressionError as error:
        assert "divides by zero" in str(error) or "characters" in str(error), error  # noqa: PT017
        return None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("text(1 / a)", "infinite or no number, as of a division by zero"),
        ("t + t", "makes a text of 1048578 bytes, at most 1048576 are allowed"),
        ("join(t + cars.k)", "makes texts of .* bytes in all rows, at most 16777216 are allowed"),
        ("join(cars.k, '%s')" % ("x" * 900), "makes a text of .* bytes, at most 1048576 are allowed"),
    ],
)
def test_texts_beyond_a_limit_fail_the_request_before_they_are_made(text: str, problem: str) -> None:
    rows = [{**ROWS[1], "t": b"x" * 524_289, "cars": [(0.5, b"red")] * 1_200}]
    with pytest.raises(StepError, match=problem):
        Table(rows).of(text)
