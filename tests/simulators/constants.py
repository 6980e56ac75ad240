"""Programs with other values of their constants: bounds and times that no file of settings can set.

A test that only waits for a bound need not wait for the product's. Children that such a program executes have the
product's values; children that it forks have these.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping

from tests.simulators import runtime_only


def command(values: Mapping[str, float], program: str = "gateway.cli") -> tuple[str, ...]:
    """Return the command of a program, given by its module with `main`, with `values` by the constants' full names."""
    return (runtime_only.interpreter(), "-m", "tests.simulators.constants", json.dumps(dict(values)), program)


def main(text: str, program: str, *arguments: str) -> int:
    """Set the constants, which must exist, and run the program."""
    for name, value in json.loads(text).items():
        module, _, constant = name.rpartition(".")
        found = importlib.import_module(module)
        if not isinstance(getattr(found, constant), int | float):
            raise TypeError(f"{name} is no number")
        setattr(found, constant, value)
    return int(importlib.import_module(program).main(arguments))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
