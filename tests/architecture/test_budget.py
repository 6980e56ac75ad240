"""Budget of the source: statements per package, statements of the tests, and settings (budget.toml).

`python tests/architecture/test_budget.py` prints the present numbers in the form of budget.toml.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).parents[2]
BUDGET = Path(__file__).with_name("budget.toml")
SETTING = re.compile(r"^#?([a-z_0-9]+) = ")
TABLE = re.compile(r"^#?\[+([a-z_0-9.]+)\]+")
REMEDY = "shorten, or raise the number in tests/architecture/budget.toml with a decision record of what the user gets"
HEAD = """\
# The greatest numbers that test_budget.py allows: Python statements of each package (docstrings, comments and blank
# lines are free), statements of all tests, and settings in the generated reference. A number is raised only with a
# decision record (gateway/decisions) that says what the user gets for it.
# The present numbers: python tests/architecture/test_budget.py
"""


def statements(file: Path) -> int:
    """Return the number of Python statements in a file; strings that stand alone (docstrings) are free."""
    return sum(
        isinstance(node, ast.stmt)
        and not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        for node in ast.walk(ast.parse(file.read_bytes()))
    )


def package(file: Path) -> str:
    """Return the package that holds a file: of the third level in `gateway`, of the second in `fleet`."""
    parts = file.relative_to(ROOT).parts
    return "/".join(parts[: min(3 if parts[0] == "gateway" else 2, len(parts) - 1)])


def is_counted(file: Path) -> bool:
    """Return whether people wrote the file: protoc did not, and it is no copy of an installation."""
    return "_pb2" not in file.name and "_share" not in file.parts


@cache
def measured() -> dict[str, dict[str, int]]:
    """Return the present numbers, by table and name of budget.toml."""
    product: Counter[str] = Counter()
    for house in ("gateway", "fleet"):
        for file in filter(is_counted, (ROOT / house).rglob("*.py")):
            product[package(file)] += statements(file)
    tests = sum(map(statements, (ROOT / "tests").rglob("*.py")))
    return {"statements": dict(sorted(product.items())), "whole": {"tests": tests, "settings": len(settings())}}


def settings() -> set[tuple[str, str, str]]:
    """Return the settings that the generated reference names, as (program, table, name)."""
    from docs.reference import settings as reference

    found, program, table = set[tuple[str, str, str]](), "", ""
    for line in reference(ROOT).splitlines():
        if line.startswith("## "):
            program, table = line, ""
        elif named := TABLE.match(line):
            table = named[1]
        elif named := SETTING.match(line):
            found.add((program, table, named[1]))
    return found


def over(present: Mapping[str, int], allowed: Mapping[str, int]) -> list[str]:
    """Return what is above its number, or has none."""
    return [
        f"{name}: {number}, at most {allowed.get(name, 0)} ({REMEDY})"
        for name, number in present.items()
        if number > allowed.get(name, 0)
    ]


@pytest.mark.parametrize("table", ["statements", "whole"])
def test_the_source_stays_within_its_budget(table: str) -> None:
    assert over(measured()[table], tomllib.loads(BUDGET.read_text("utf-8"))[table]) == []


def test_the_budget_names_nothing_that_is_gone() -> None:
    budget = tomllib.loads(BUDGET.read_text("utf-8"))
    assert {table: rows.keys() for table, rows in budget.items()} == {
        table: rows.keys() for table, rows in measured().items()
    }


def test_what_exceeds_its_number_is_named_with_the_remedy() -> None:
    assert over({"gateway/serving/engine": 101, "fleet": 9}, {"gateway/serving/engine": 100, "fleet": 9}) == [
        f"gateway/serving/engine: 101, at most 100 ({REMEDY})"
    ]
    assert over({"gateway/new": 1}, {}) == [f"gateway/new: 1, at most 0 ({REMEDY})"]


def test_docstrings_are_free(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        '"""What it is."""\n\nX = 1\n"""What it means."""\n\ndef f() -> int:\n    """Return one."""\n    return 1\n'
    )
    assert statements(file) == 3


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    print(HEAD + "".join(
        f"\n[{table}]\n" + "".join(f'"{name}" = {number:_}\n' for name, number in numbers.items())
        for table, numbers in measured().items()
    ), end="")  # fmt: skip
