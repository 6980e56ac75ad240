"""The laws of the house, held against the source as it stands."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    file
    for package in ("gateway", "fleet")
    for file in (ROOT / package).rglob("*.py")
    if "_pb2" not in file.name and "_share" not in file.parts
)
FILE_LIMIT_LINES = 400
FUNCTION_LIMIT_LINES = 60
REASONS: dict[str, str] = {}
"""Why a file (`path`) or function (`path:name`) may be longer than the limits."""
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "manager", "managers", "handler", "handlers"}
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def named(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def definitions(tree: ast.AST) -> Iterator[Definition]:
    return (node for node in ast.walk(tree) if isinstance(node, Definition))


def public(node: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    """Public classes and functions of a module, and the public methods of its public classes; of overloads the last."""
    for child in node.body:
        if isinstance(child, Definition) and not child.name.startswith("_") and not is_overload(child):
            yield child
            if isinstance(child, ast.ClassDef):
                yield from public(child)


def is_overload(node: Definition) -> bool:
    """Whether it only says a type of what follows."""
    return any(getattr(decorator, "id", "") == "overload" for decorator in node.decorator_list)


def overrides(tree: ast.Module) -> set[str]:
    """Names whose contract stands in the Protocol or base class that declares them (gateway/domain/ports.py)."""
    return {
        method.name
        for node in definitions(tree)
        if isinstance(node, ast.ClassDef) and any(getattr(base, "id", "") == "Protocol" for base in node.bases)
        for method in definitions(node)
    }


PORTS = overrides(ast.parse((ROOT / "gateway/domain/ports.py").read_text("utf-8")))


@pytest.mark.timeout(120)
def test_the_import_contracts_hold() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    found = str(program) if program.exists() else shutil.which("lint-imports")
    assert found, "import-linter is not installed; run `make install`"
    done = subprocess.run([found, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in a fresh interpreter after `statement`."""
    script = f"import sys\n{statement}\nprint(' '.join({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_domain_loads_nothing_but_the_standard_library_and_numpy() -> None:
    modules = [f"gateway.domain.{file.stem}" for file in sorted((ROOT / "gateway/domain").glob("[!_]*.py"))]
    assert len(modules) > 15
    before = loaded_by("")
    extra = loaded_by(f"import {', '.join(modules)}") - before - set(sys.stdlib_module_names)
    assert extra == {"gateway", "numpy"}


@pytest.mark.parametrize("room", ["engine", "store", "hardware", "runtimes", "wire"])
def test_importing_a_room_loads_no_engine_and_no_wire(room: str) -> None:
    modules = [f"gateway.{room}.{file.stem}" for file in sorted((ROOT / "gateway" / room).glob("[!_]*.py"))]
    assert modules
    heavy = {"onnxruntime", "openvino", "ai_edge_litert", "tflite_runtime", "grpc", "paho", "litestar", "PIL", "google"}
    assert not loaded_by(f"import {', '.join(modules)}") & heavy


@pytest.mark.parametrize("file", SOURCES, ids=named)
def test_files_and_functions_stay_readable(file: Path) -> None:
    text = file.read_text("utf-8")
    long = [named(file)] if len(text.splitlines()) > FILE_LIMIT_LINES else []
    for node in definitions(ast.parse(text)):
        lines = (node.end_lineno or 0) - node.lineno + 1
        if not isinstance(node, ast.ClassDef) and lines > FUNCTION_LIMIT_LINES:
            long.append(f"{named(file)}:{node.name}")
    assert [place for place in long if place not in REASONS] == []


def test_every_listed_reason_is_still_needed() -> None:
    files = {named(file): file for file in SOURCES}
    assert [place for place in REASONS if place.partition(":")[0] not in files] == []


@pytest.mark.parametrize("file", SOURCES, ids=named)
def test_what_is_public_is_documented(file: Path) -> None:
    tree = ast.parse(file.read_text("utf-8"))
    bare = [] if ast.get_docstring(tree) else ["the module"]
    local = PORTS | overrides(tree)
    bare += [
        f"{node.name} (line {node.lineno})"
        for node in public(tree)
        if not ast.get_docstring(node) and (isinstance(node, ast.ClassDef) or node.name not in local)
    ]
    assert bare == []


@pytest.mark.parametrize("file", SOURCES, ids=named)
def test_names_say_what_is_inside(file: Path) -> None:
    assert not VAGUE_NAMES & {*file.relative_to(ROOT).with_suffix("").parts}


def catches_all(node: ast.AST) -> bool:
    if not isinstance(node, ast.ExceptHandler):
        return False
    return node.type is None or getattr(node.type, "id", "") in {"Exception", "BaseException"}


@pytest.mark.parametrize("file", SOURCES, ids=named)
def test_who_catches_every_exception_raises_another_or_says_why(file: Path) -> None:
    text = file.read_text("utf-8")
    for node in filter(catches_all, ast.walk(ast.parse(text))):
        reason = text.splitlines()[node.lineno - 1].partition("#")[2].removeprefix(" noqa: BLE001").strip()  # type: ignore[attr-defined]
        raises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
        assert reason or raises, f"{named(file)}:{node.lineno}"  # type: ignore[attr-defined]
