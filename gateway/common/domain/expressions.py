"""Expressions of pipelines: their form, without types. Pure.

An expression has the form of a Python expression, of which only what ALLOWED lists is accepted: there are no loops, no
assignments and no calls but those by the name of a function. Python's own parser reads it, nothing is ever executed.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

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
    tree: ast.expr
    columns: tuple[tuple[str, str], ...]
    names: tuple[str, ...]


def parse_expression(text: str) -> Expression:
    """Return the expression that `text` has. Raises ExpressionError."""
    if len(text) > LENGTH_LIMIT_CHARS:
        raise ExpressionError(text, f"has {len(text)} characters, at most {LENGTH_LIMIT_CHARS} are read; divide it")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of forms that are refused below
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        words = error.msg if isinstance(error, SyntaxError) else str(error) or "it is too deep"
        raise ExpressionError(text, f"is no expression: {words}") from None
    columns, names = dict[tuple[str, str], None](), dict[str, None]()
    for node in _checked(text.strip(), tree, 0):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            columns[node.value.id, node.attr] = None
        elif isinstance(node, ast.Name) and node.id not in FLAGS:
            names[node.id] = None
    return Expression(text.strip(), tree, tuple(columns), tuple(names))


def _checked(text: str, node: ast.AST, depth: int) -> Iterator[ast.AST]:
    """Yield a node and those below it that stand for values. Raises ExpressionError for what is not allowed."""
    if not isinstance(node, ALLOWED):
        raise ExpressionError(text, "is not part of an expression here; see the reference of pipelines", node)
    if depth > DEPTH_LIMIT:
        raise ExpressionError(text, f"has more than {DEPTH_LIMIT} expressions inside each other; divide it", node)
    if isinstance(node, ast.Constant):
        if not isinstance(node.value, (bool, int, float, str)):
            raise ExpressionError(text, "is no number, text or flag", node)
        if isinstance(node.value, (int, float)) and not abs(node.value) <= NUMBER_LIMIT:
            raise ExpressionError(text, f"is beyond {NUMBER_LIMIT:g}", node)
    if isinstance(node, ast.Compare) and len(node.ops) > 1:
        raise ExpressionError(text, "compares more than two values; join comparisons with 'and'", node)
    yield node
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name):
            raise ExpressionError(text, "calls what is no function's name", node)
        if any(keyword.arg is None for keyword in node.keywords):
            raise ExpressionError(text, "** is not allowed", node)
        children: list[ast.AST] = [*node.args, *(keyword.value for keyword in node.keywords)]
    elif isinstance(node, ast.Attribute):
        if not isinstance(node.value, ast.Name):
            raise ExpressionError(text, "only a step has columns", node)
        children = []
    else:
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _checked(text, child, depth + 1)
