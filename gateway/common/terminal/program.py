"""Command line of verbs: help with examples, one exit code per kind of result, errors as one line."""

from __future__ import annotations

import argparse
import gc
import importlib
import io
import os
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn

from gateway.common.domain.errors import ConfigurationError, RequestError, UnreachableError, suggest
from gateway.common.domain.installation import HERE
from gateway.common.terminal.tables import plain

EXTRAS = {
    "ai_edge_quantizer": "workshop",
    "av": "camera",
    "nncf": "workshop",
    "onnx": "workshop",
    "urllib3": "pull",
}
"""Extra of the distribution by module, where it is not the program's own."""
OWNER_REMEDY = "; run this as the user whose files these are (sudo -u), or give them to this user (chown)"
OK, FINDING, USAGE, UNREACHABLE = 0, 1, 2, 3

EXIT_CODES = (
    "exit codes: 0 fine · 1 a finding, or what was asked is refused · 2 usage\n            3 cannot reach what it needs"
)


class _ArgumentParser(argparse.ArgumentParser):
    """Argument parser whose errors are one line with the closest known word and a reference to the help."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message:.1000}; see {self.prog} --help\n")

    def parse_known_args(self, *arguments: Any, **named: Any) -> tuple[Any, list[str]]:
        """Refuse unknown options here: the parser of the verb knows those that exist."""
        parsed, unknown = super().parse_known_args(*arguments, **named)
        if unknown:
            options = (word.partition("=")[0] for word in unknown if word.startswith("-"))
            close = suggest(next(options, ""), self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown):.500}{close}")
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            problem = f"there is no {value!r:.80}{suggest(str(value), known)}; known are {', '.join(known)}"
            raise argparse.ArgumentError(action, problem)


@dataclass(frozen=True, slots=True)
class Verb:
    """Verb: its one-line help, its examples, and the function that adds its options.

    `<package>.<module>` contains its `command`.
    """

    name: str
    module: str
    help: str
    examples: str
    options: Callable[[argparse.ArgumentParser], None]


@dataclass(frozen=True, slots=True)
class Program:
    """Program: name, version, description in one or two lines, the package of its verbs' modules, and the verbs.

    `extra` of the distribution installs packages that the verbs need beyond its dependencies ("": none).
    """

    name: str
    version: str
    description: str
    package: str
    verbs: Sequence[Verb]
    extra: str = ""

    def main(self, arguments: Sequence[str] | None = None) -> int:  # noqa: PLR0911  one result for each kind of error
        """Parse, run one verb, and return its exit code. Errors are printed to stderr as one line with a remedy."""
        _make_streams_usable()
        warnings.formatwarning = lambda message, *_, **__: (
            f"{self.name}: warning: {plain(' '.join(str(message).splitlines()))}\n"
        )
        try:
            return self._carry_out(arguments)
        except UnreachableError as error:
            return self._complain(str(error), UNREACHABLE)
        except ConfigurationError as error:
            return self._complain(str(error), USAGE, error.excerpt)
        except RequestError as error:
            return self._complain(f"{error.fault.value}: {error.message}", FINDING)
        except ModuleNotFoundError as error:
            return self._complain(self._missing(error), UNREACHABLE)
        except BrokenPipeError:  # the reader has closed our output; the rest must not fail at the exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return OK
        except (FileExistsError, NotADirectoryError) as error:
            return self._complain(f"{error.filename}: is no folder; name a folder", USAGE)
        except OSError as error:  # standard output on a full disk, or too many processes or files
            place = f": {error.filename}" if error.filename else ""
            # A permission problem often means that root has written files of a service.
            remedy = OWNER_REMEDY if isinstance(error, PermissionError) else ""
            return self._complain(f"{error.strerror or error}{place}{remedy}", UNREACHABLE)
        except KeyboardInterrupt:
            return self._complain("interrupted", 130)

    def parser(self, only: str | None = None) -> argparse.ArgumentParser:
        """Return the parser of the whole command line, without importing any verb.

        `only`: the word that names the verb, so that the others need no options: they take 30 ms of a start.
        """
        parser = _ArgumentParser(
            prog=self.name,
            description=self.description,
            epilog=f"{EXIT_CODES}\n'{self.name} VERB --help' shows examples.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("--version", action="version", version=f"{self.name} {self.version}")
        verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
        for verb in self.verbs:
            sub = verbs.add_parser(
                verb.name,
                help=verb.help,
                description=textwrap.fill(verb.help[0].upper() + verb.help[1:] + ".", 78),
                epilog=f"examples:\n{verb.examples}\n\n{EXIT_CODES}",
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
            if only in {None, verb.name}:
                verb.options(sub)
            sub.set_defaults(module=verb.module)
        return parser

    def _carry_out(self, arguments: Sequence[str] | None) -> int:
        given = sys.argv[1:] if arguments is None else arguments
        parsed = self.parser(next((word for word in given if not word.startswith("-")), "")).parse_args(arguments)
        code = int(_import_cheaply(f"{self.package}.{parsed.module}").command(parsed))
        sys.stdout.flush()
        return code

    def _missing(self, error: ModuleNotFoundError) -> str:
        """Return the missing package and the command that installs it.

        Raises `error` for a module of ours: a defect.
        """
        module = (error.name or "").partition(".")[0]
        if module in {"", __package__.partition(".")[0], self.package.partition(".")[0]}:
            raise error
        remedy = HERE.adding(self.extra or EXTRAS.get(module, ""))
        return f"the Python package {module} is not installed; {remedy} (EG-702)"

    def _complain(self, message: str, code: int, excerpt: str = "") -> int:
        print(f"{self.name}: {plain(' '.join(message.splitlines()))}", file=sys.stderr)
        for line in excerpt.splitlines():
            print(plain(line), file=sys.stderr)
        return code


def named(text: str) -> str:
    """Check that a value is not empty: an unset shell variable must not select the default."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def json_option(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help="print JSON for programs")


def _import_cheaply(module: str) -> ModuleType:
    """Import a verb's module, and with it numpy, without threads of OpenBLAS and without garbage collections.

    They cost 0.1 s of processor time and a fifteenth of the start (`python -m tests.performance.start`).
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # otherwise a spinning thread per core, which no verb needs
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        gc.enable()


def _make_streams_usable() -> None:
    """Replace closed streams by the null device, and escape characters that an encoding lacks (JSON stays JSON)."""
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
