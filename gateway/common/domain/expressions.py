"""Expressions of pipelines: their form, without types. Pure.

An expression has the form of a Python expression, of which only what ALLOWED lists is accepted: there are no loops, no
assignments and no calls but those by the name of a function. Python's own parser reads it, nothing is ever executed.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

LENGTH_LIMIT_CHARS = 1_000
DEPTH_LIMIT = 30
"""Most expressions inside each other."""
NUMBER_LIMIT = 1e300
ALLOWED = (
    *(ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.IfExp, ast.Subscript, ast.Attribute, ast.Load),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod, ast.Call, ast.keyword, ast.Name, ast.Constant, ast.List),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn),
)
FLAGS = {"true": True, "false": False}
_CLASS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\bclass\b""", re.DOTALL)
"""Texts, and the word `class`, which names a column here and nothing in Python."""
_STAND_IN = "clas_"


class ExpressionError(ValueError):
    """Refusal of an expression, with the part that is wrong and the remedy."""

    def __init__(self, expression: str, problem: str, node: ast.AST | None = None) -> None:
        part = ast.get_source_segment(expression, node) if node is not None else None
        at = f" at {part!r:.60}" if part and part != expression else ""
        super().__init__(f"{expression!r:.200}{at}: {problem}")


@dataclass(frozen=True, slots=True)
class Expression:
    """Expression: its text, its tree, and the columns (`step`, `column`) and bare names that it reads."""

    text: str
    tree: ast.expr = field(compare=False)  # trees are equal by identity only; the text says the same
    columns: tuple[tuple[str, str], ...]
    names: tuple[str, ...]


def parse_expression(text: str) -> Expression:
    """Return the expression that `text` has. Raises ExpressionError."""
    if len(text) > LENGTH_LIMIT_CHARS:
        raise ExpressionError(text, f"has {len(text)} characters, at most {LENGTH_LIMIT_CHARS} are read; divide it")
    text = text.strip()
    if _STAND_IN in text:
        raise ExpressionError(text, f"{_STAND_IN} is no name here")
    python = _CLASS.sub(lambda found: _STAND_IN if found[0] == "class" else found[0], text)  # places stay the same
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of forms that are refused below
            tree = ast.parse(python, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        words = error.msg if isinstance(error, SyntaxError) else str(error) or "it is too deep"
        raise ExpressionError(text, f"is no expression: {words}") from None
    columns, names = dict[tuple[str, str], None](), dict[str, None]()
    for node in _checked(text, tree, 0):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            node.attr = "class" if node.attr == _STAND_IN else node.attr
            columns[node.value.id, node.attr] = None
        elif isinstance(node, ast.Name) and node.id not in FLAGS:
            node.id = "class" if node.id == _STAND_IN else node.id
            names[node.id] = None
    return Expression(text, tree, tuple(columns), tuple(names))


def _checked(text: str, node: ast.AST, depth: int) -> Iterator[ast.AST]:
    """Yield a node and those below it that stand for values. Raises ExpressionError for what is not allowed."""
    if not isinstance(node, ALLOWED):
        raise ExpressionError(text, "is not part of an expression here; see the reference of pipelines", node)
    if depth > DEPTH_LIMIT:
        raise ExpressionError(text, f"has more than {DEPTH_LIMIT} expressions inside each other; divide it", node)
    if problem := _problem(node):
        raise ExpressionError(text, problem, node)
    yield node
    if isinstance(node, ast.Call):
        children: Iterable[ast.AST] = [*node.args, *(keyword.value for keyword in node.keywords)]
    else:
        children = () if isinstance(node, ast.Attribute) else ast.iter_child_nodes(node)
    for child in children:
        yield from _checked(text, child, depth + 1)


def _problem(node: ast.AST) -> str:
    """Return what is wrong with a node of a form that is allowed in general, or ""."""
    if isinstance(node, ast.Constant):
        if not isinstance(node.value, (bool, int, float, str)):
            return "is no number, text or flag"
        return (
            f"is beyond {NUMBER_LIMIT:g}" if not isinstance(node.value, str) and abs(node.value) > NUMBER_LIMIT else ""
        )
    if isinstance(node, ast.Compare) and len(node.ops) > 1:
        return "compares more than two values; join comparisons with 'and'"
    if isinstance(node, ast.Call) and not isinstance(node.func, ast.Name):
        return "calls what is no function's name"
    if isinstance(node, ast.Call) and any(keyword.arg is None for keyword in node.keywords):
        return "** is not allowed"
    return "only a step has columns" if isinstance(node, ast.Attribute) and not isinstance(node.value, ast.Name) else ""
