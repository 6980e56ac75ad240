"""Form of expressions: what is accepted and read, what is refused, and that no text does anything else."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.expressions import DEPTH_LIMIT, ExpressionError, parse_expression

WORDS = ["cars", ".", "score", "class", "(", ")", "[", "]", ",", "+", "-", "*", "/", "%", "<", ">", "==", "!=", "<="]
WORDS += [" and ", " or ", " not ", " in ", " if ", " else ", "'class'", '"a', "1", "2.5", "1e400", "true", "None"]
WORDS += ["lambda x: x", "**", "//", "@", ":=", "__import__('os')", "{", "}", "f'{x}'", "\\", "\n", "#", "\0", "é", " "]


@pytest.mark.parametrize(
    ("text", "columns", "names"),
    [
        ("cars.score > 0.5", {("cars", "score")}, set()),
        ("cars.class == 3 and label != 'class'", {("cars", "class")}, {"label"}),
        ("class in [1, 2] or class == 4", set(), {"class"}),
        ("max(a.b, c) if true else default(d.e, 1)", {("a", "b"), ("d", "e")}, {"c"}),
        ("count(cars)", set(), {"cars"}),
        ("x[0] - -x[-1] % 2", set(), {"x"}),
        ('"it\'s class" == text', set(), {"text"}),
        ("(1 +\n 2)", set(), set()),
        ("min(x, default=3)", set(), {"x"}),
    ],
)
def test_what_is_read_is_named(text: str, columns: set[tuple[str, str]], names: set[str]) -> None:
    expression = parse_expression(text)
    assert set(expression.columns) == columns
    assert set(expression.names) == names


def test_the_word_class_names_a_column_and_stays_in_texts() -> None:
    tree = parse_expression("a.class == 'class'").tree
    assert isinstance(tree, ast.Compare)
    left, (right,) = tree.left, tree.comparators
    assert isinstance(left, ast.Attribute)
    assert left.attr == "class"
    assert isinstance(right, ast.Constant)
    assert right.value == "class"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is no expression"),
        ("1 +", "is no expression"),
        ("a; b", "is no expression"),
        ("x = 1", "is no expression"),
        ("f(a)(b)", "calls what is no function's name"),
        ("a.b.c", "only a step has columns"),
        ("a.b()", "calls what is no function's name"),
        ("f(**a)", "** is not allowed"),
        ("f(*a)", "not part of an expression"),
        ("1 < a < 2", "compares more than two values"),
        ("a ** 2", "not part of an expression"),
        ("a // 2", "not part of an expression"),
        ("a is b", "not part of an expression"),
        ("~a", "not part of an expression"),
        ("+a", "not part of an expression"),
        ("(a, b)", "not part of an expression"),
        ("{1: 2}", "not part of an expression"),
        ("[x for x in a]", "not part of an expression"),
        ("lambda: 1", "not part of an expression"),
        ("(a := 1)", "not part of an expression"),
        ("f'{a}'", "not part of an expression"),
        ("a[1:2]", "not part of an expression"),
        ("None", "is no number, text or flag"),
        ("...", "is no number, text or flag"),
        ("1j", "is no number, text or flag"),
        ("b'x'", "is no number, text or flag"),
        ("1e400", "is beyond"),
        ("a > " + "9" * 400, "is beyond"),
        ("clas_", "is no name here"),
        ("a\0b", "is no expression"),
        ("'\ud800'", "is no expression"),
        ("1 + " * 300 + "1", "characters"),
        ("(" * 400 + ")" * 400, "is no expression"),
        ("-" * 500 + "1", "inside each other"),
        ("a." * 300 + "b", "only a step has columns"),
        (" + ".join("a" * (DEPTH_LIMIT + 2)), "inside each other"),
    ],
)
def test_what_is_no_expression_is_refused_with_words(text: str, problem: str) -> None:
    with pytest.raises(ExpressionError, match=problem.replace("*", r"\*")):
        parse_expression(text)


def test_the_part_that_is_wrong_is_named() -> None:
    with pytest.raises(ExpressionError, match=r"at 'a\.b\.c': only a step has columns"):
        parse_expression("score > 1 and a.b.c")


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS), max_size=25).map("".join)))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        names = parse_expression(text).names
    except ExpressionError:
        return
    assert all(name.isidentifier() for name in names)
