"""Laws of the source: one test per law, which names every violation."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    file
    for package in ("gateway", "fleet")
    for file in (ROOT / package).rglob("*.py")
    if "_pb2" not in file.name and "_share" not in file.parts
)
TEXTS = {file: file.read_text("utf-8") for file in SOURCES}
FILE_LIMIT_LINES = 600
FUNCTION_LIMIT_LINES = 60
REASONS: dict[str, str] = {}
"""Reason why a file (`path`) or function (`path:name`) may be longer than the limits."""
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "manager", "managers", "handler", "handlers"}
METAPHORS = {"door", "house", "desk", "chores", "climb", "sights", "careful", "beneath", "beside", "judge", "together"}
"""Names of files that the field's terms have replaced (gateway/GLOSSARY.md)."""
ARCHAIC = re.compile(r"\b(nobody|somebody|anybody|everybody|whoever|whom|beside)\b|(?<!begun-)\banew\b", re.IGNORECASE)
"""Words that plain technical English has not; `…-begun-anew` are events of the controller's API."""
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@cache
def parsed(file: Path) -> ast.Module:
    """Return the parsed source. It is parsed once, by a test: each process of a run collects this module."""
    return ast.parse(TEXTS[file])


def named(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def definitions(tree: ast.AST) -> Iterator[Definition]:
    return (node for node in ast.walk(tree) if isinstance(node, Definition))


def public(node: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    """Yield public classes and functions of a module, and public methods of its public classes.

    Of overloads the last is given.
    """
    for child in node.body:
        if isinstance(child, Definition) and not child.name.startswith("_") and not is_overload(child):
            yield child
            if isinstance(child, ast.ClassDef):
                yield from public(child)


def is_overload(node: Definition) -> bool:
    """Return whether it only says a type of what follows."""
    return any(getattr(decorator, "id", "") == "overload" for decorator in node.decorator_list)


def overrides(tree: ast.Module) -> set[str]:
    """Return names whose contract stands in the Protocol or base class that declares them (`domain/ports.py`)."""
    return {
        method.name
        for node in definitions(tree)
        if isinstance(node, ast.ClassDef) and any(getattr(base, "id", "") == "Protocol" for base in node.bases)
        for method in definitions(node)
    }


@pytest.mark.timeout(120)
def test_the_import_contracts_hold() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    found = str(program) if program.exists() else shutil.which("lint-imports")
    assert found, "import-linter is not installed; run `make install`"
    done = subprocess.run([found, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_simulated_devices_know_the_controller_by_its_routes_only() -> None:
    """`tests/load` is no package of the import contracts."""
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint(*sys.modules)"
    names = [f"tests.load.{file.stem}" for file in (ROOT / "tests" / "load").glob("*.py")]
    found = subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, check=True, capture_output=True, text=True)
    barred = re.compile(r"fleet\.(cli|client|controller|publisher)\b|litestar|sqlalchemy")
    assert [name for name in found.stdout.split() if barred.match(name)] == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports inside functions and under TYPE_CHECKING count: modules that need each other are one module."""
    modules = {module_named(file): file for file in SOURCES}
    imports = {module: imported(parsed(file), modules.keys()) - {module} for module, file in modules.items()}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(f"imports in a circle: {' <- '.join(error.args[1])}")


def module_named(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(tree: ast.Module, modules: Collection[str]) -> set[str]:
    """Return those of `modules` that a module names in its imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & set(modules)
            names |= inside or {node.module}
    return names & set(modules)


def loaded_by(statement: str) -> set[str]:
    """Return the top-level packages in a fresh interpreter after `statement`."""
    script = f"import sys\n{statement}\nprint(' '.join({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_domain_loads_nothing_but_the_standard_library_and_numpy() -> None:
    files = [
        f for house in ("common", "serving", "device") for f in (ROOT / "gateway" / house / "domain").glob("[!_]*.py")
    ]
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in sorted(files)]
    assert len(modules) > 15
    before = loaded_by("")
    extra = loaded_by(f"import {', '.join(modules)}") - before - set(sys.stdlib_module_names)
    assert extra == {"gateway", "numpy"}


@pytest.mark.parametrize(
    "room",
    [
        "serving.engine",
        "common.store",
        "serving.store",
        "device.store",
        "serving.hardware",
        "serving.runtimes",
        "common.wire",
    ],
)
def test_importing_a_room_loads_no_engine_and_no_wire(room: str) -> None:
    modules = [
        f"gateway.{room}.{file.stem}" for file in sorted((ROOT / "gateway" / room.replace(".", "/")).glob("[!_]*.py"))
    ]
    assert modules
    heavy = {"onnxruntime", "openvino", "ai_edge_litert", "tflite_runtime", "grpc", "paho", "litestar", "PIL", "google"}
    assert not loaded_by(f"import {', '.join(modules)}") & heavy


def test_a_daemon_imports_pipelines_and_tasks_with_the_first_one() -> None:
    code = "import sys, gateway.serving.daemon\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    named = [name for name in done.stdout.split() if re.match(r"gateway\.serving\.(pipelines|tasks)\.", name)]
    assert sorted(named) == ["gateway.serving.pipelines.settings", "gateway.serving.tasks.frame"]


def test_files_and_functions_stay_readable() -> None:
    long = [f"{name} has {count} lines" for file in SOURCES for name, count in too_long(file) if name not in REASONS]
    assert long == []


def too_long(file: Path) -> Iterator[tuple[str, int]]:
    """Yield the file and its functions that are over the limits, with their lines."""
    if (lines := len(TEXTS[file].splitlines())) > FILE_LIMIT_LINES:
        yield named(file), lines
    for node in definitions(parsed(file)):
        lines = (node.end_lineno or 0) - node.lineno + 1
        if not isinstance(node, ast.ClassDef) and lines > FUNCTION_LIMIT_LINES:
            yield f"{named(file)}:{node.name}", lines


def test_every_listed_reason_is_still_needed() -> None:
    files = {named(file): file for file in SOURCES}
    assert [place for place in REASONS if place.partition(":")[0] not in files] == []


def test_what_is_public_is_documented() -> None:
    assert [bare for file in SOURCES for bare in undocumented(file)] == []


def undocumented(file: Path) -> Iterator[str]:
    """Yield the module and its public definitions that have no docstring, by file and line."""
    tree = parsed(file)
    if not ast.get_docstring(tree):
        yield named(file)
    local = overrides(parsed(ROOT / "gateway/serving/domain/ports.py")) | overrides(tree)
    for node in public(tree):
        if not ast.get_docstring(node) and (isinstance(node, ast.ClassDef) or node.name not in local):
            yield f"{named(file)}:{node.lineno} {node.name}"


def test_names_say_what_is_inside() -> None:
    forbidden = VAGUE_NAMES | METAPHORS
    vague = [named(file) for file in SOURCES if forbidden & {*file.relative_to(ROOT).with_suffix("").parts}]
    assert vague == []


def test_words_are_plain() -> None:
    found = [
        f"{named(file)}:{number} {word.group()}"
        for file, text in TEXTS.items()
        for number, line in enumerate(text.splitlines(), 1)
        for word in ARCHAIC.finditer(line)
    ]
    assert found == []


def test_no_pattern_has_what_python_310_cannot_compile() -> None:
    """Possessive quantifiers and atomic groups came with Python 3.11. mypy sees the rest (`make check`)."""
    found = []
    for file in (file for file in SOURCES if "import re\n" in TEXTS[file]):
        nodes = list(ast.walk(parsed(file)))
        documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            is_text = isinstance(node, ast.Constant) and id(node) not in documentation
            if is_text and re.search(r"[^\\[][*+?}]\+|\(\?>", str(node.value)):
                found.append(f"{named(file)}:{node.lineno}")
    assert found == []


def test_a_class_name_occurs_once() -> None:
    places = defaultdict[str, list[str]](list)
    for file in SOURCES:
        for node in definitions(parsed(file)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{named(file)}:{node.lineno}")
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_handler_of_every_exception_raises_another_or_gives_its_reason() -> None:
    assert [place for file in SOURCES for place in unexplained_handlers(file)] == []


def unexplained_handlers(file: Path) -> Iterator[str]:
    """Yield the handlers of every exception, by file and line, that neither raise nor have a comment."""
    lines = TEXTS[file].splitlines()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ExceptHandler) and catches_all(node):
            reason = lines[node.lineno - 1].partition("#")[2].removeprefix(" noqa: BLE001").strip()
            if not reason and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node)):
                yield f"{named(file)}:{node.lineno}"


def catches_all(node: ast.ExceptHandler) -> bool:
    """Return whether the handler takes every exception."""
    return node.type is None or getattr(node.type, "id", "") in {"Exception", "BaseException"}


FOREIGN_DOCUMENTS = {"PROTOCOL-HTTP2.md"}
"""Documents of others that the source cites: gRPC's specification of its protocol."""


def test_a_document_that_is_named_exists() -> None:
    known = {file.name for file in ROOT.rglob("*.md") if not any(part.startswith(".") for part in file.parts)}
    named_documents = {
        (named(file), name)
        for file in SOURCES
        for name in re.findall(r"[\w-]+\.md\b", TEXTS[file])
        if not name.startswith(("self.", "device."))
    }
    missing = [place for place in sorted(named_documents) if place[1] not in known | FOREIGN_DOCUMENTS]
    assert missing == []


LOG_METHODS = {"debug", "info", "warning", "error", "critical", "exception", "log"}
LOGGERS = {"log", "_log", "_access"}
"""Names of loggers; other objects have methods of the same names."""
CATALOGUES = {
    ROOT / "gateway/device/agent/events.py": ROOT / "gateway/device/agent/README.md",
    ROOT / "gateway/device/installer/events.py": ROOT / "gateway/device/agent/README.md",
    ROOT / "fleet/events.py": ROOT / "fleet/controller/monitoring/README.md",
    ROOT / "gateway/serving/frontends/mqtt/session/events.py": ROOT / "docs/pages/howto/sensors.md",
}
"""Log events of one program, or of one package, with the document that lists them: its modules log no others."""
EVENT_ROW = r"^\| `([\w -]+)` \| ([a-z, ]+) \|.*\| (.*) \|$"
"""Row of a table of log events: name, levels, meaning, and the fields or what to do."""


class LoggedEvent(NamedTuple):
    """Use of a logger's method: `event` is the constant's name, "" if its first argument is none of `events`.

    `values`: arguments that fill the message, None if their number is not known.
    """

    place: str
    level: str
    event: str
    values: int | None
    fields: frozenset[str]


def logged_events(package: Path) -> Iterator[LoggedEvent]:
    """Yield every use of a logger's method in a package. Uses without a call, such as `log = self._log.info`, count."""
    for file in (file for file in SOURCES if file.is_relative_to(package)):
        calls = {id(node.func): node for node in ast.walk(parsed(file)) if isinstance(node, ast.Call)}
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Attribute) and node.attr in LOG_METHODS and is_logger(node.value):
                yield logged_event(f"{named(file)}:{node.lineno}", node.attr, calls.get(id(node)))


def is_logger(node: ast.expr) -> bool:
    """Return whether the name of a logger, or the call of a function that may return one, stands there."""
    return isinstance(node, ast.Call) or getattr(node, "attr", getattr(node, "id", "")) in LOGGERS


def logged_event(place: str, method: str, call: ast.Call | None) -> LoggedEvent:
    arguments = call.args if call else []
    level = "error" if method == "exception" else method
    values = None if any(isinstance(one, ast.Starred) for one in arguments) else len(arguments) - 1
    fields = frozenset(keyword.arg for keyword in call.keywords if keyword.arg) if call else frozenset[str]()
    return LoggedEvent(place, level, event_constant(arguments), values, fields - {"exc_info"})


def event_constant(arguments: list[ast.expr]) -> str:
    """Return NAME if the first argument by position is `events.NAME`, else ""."""
    match arguments:
        case [ast.Attribute(value=ast.Name("events"), attr=name), *_]:
            return name
    return ""


def catalogue(file: Path) -> Mapping[str, str]:
    """Return the messages of a catalogue, by the names of their constants."""
    return {
        target.id: str(node.value.value)
        for node in parsed(file).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def event_named(message: str) -> str:
    """Return the event's name, with which its message begins."""
    return message.partition(":")[0]


@pytest.mark.parametrize("file", CATALOGUES, ids=named)
def test_log_events_are_constants_of_their_catalogue(file: Path) -> None:
    logged, known = list(logged_events(file.parent)), catalogue(file)
    assert [one.place for one in logged if one.event not in known] == []
    assert known.keys() - {one.event for one in logged} == set()
    names = {name: event_named(message).replace("-", " ") for name, message in known.items()}
    assert {name: words.upper().replace(" ", "_") for name, words in names.items()} == {name: name for name in known}


@pytest.mark.parametrize("file", CATALOGUES, ids=named)
def test_a_log_event_gets_as_many_values_as_its_message_has_places(file: Path) -> None:
    places = {name: len(re.findall(r"%[.\d]*[a-z]", message)) for name, message in catalogue(file).items()}
    wrong = [one.place for one in logged_events(file.parent) if one.values not in {None, places.get(one.event)}]
    assert wrong == []


@pytest.mark.parametrize("file", CATALOGUES, ids=named)
def test_each_log_event_has_a_docstring_of_one_line_with_its_fields(file: Path) -> None:
    documented = dict(documented_constants(parsed(file).body))
    assert documented.keys() == catalogue(file).keys()
    assert [name for name, text in documented.items() if "\n" in text] == []
    missing = [
        f"{one.place} {field}"
        for one in logged_events(file.parent)
        for field in one.fields - set(re.findall(r"`(\w+)`", documented.get(one.event, "")))
    ]
    assert missing == []


def documented_constants(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield the constants of a module that a docstring follows, with it."""
    for node, following in pairwise(body):
        match node, following:
            case ast.Assign(targets=[ast.Name(name)]), ast.Expr(ast.Constant(str(text))):
                yield name, text


@pytest.mark.parametrize("document", sorted({*CATALOGUES.values()}), ids=named)
def test_the_table_of_log_events_names_the_events_with_their_levels(document: Path) -> None:
    logged = defaultdict[str, set[str]](set)
    for file in (file for file, place in CATALOGUES.items() if place == document):
        for one in logged_events(file.parent):
            logged[event_named(catalogue(file)[one.event])].add(one.level)
    rows = event_rows(document)
    assert len({name for name, *_ in rows}) == len(rows)
    assert {name: set(levels.split(", ")) for name, levels, _ in rows} == logged


@pytest.mark.parametrize("file", CATALOGUES, ids=named)
def test_the_table_of_log_events_names_their_fields(file: Path) -> None:
    last_columns = {name: set(re.findall(r"\w+", last)) for name, _, last in event_rows(CATALOGUES[file])}
    fields = defaultdict[str, set[str]](set)
    for one in logged_events(file.parent):
        fields[event_named(catalogue(file)[one.event])] |= one.fields
    given = {name: found for name, found in fields.items() if found}
    assert {name: last_columns[name] for name in given} == given


def event_rows(document: Path) -> list[tuple[str, str, str]]:
    return re.findall(EVENT_ROW, document.read_text("utf-8"), re.MULTILINE)
