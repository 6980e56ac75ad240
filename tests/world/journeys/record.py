"""Record of one model of a package: its file, real inputs, and what the package itself answers to them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.world.entry import Tensors

Compare = Callable[[Any, Any], float]
"""Distance of a result of our task from the answer of the package; infinite if they say different things."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Real input as tensors that the package prepared, its answer, and the outputs of its own session.

    Without `outputs` the runtime is called directly. `file` is the same input as an image, and `file_answer` the answer
    in its pixels. `carried` are inputs that take an output of the answer before.
    """

    tensors: Tensors
    answer: Any = None
    outputs: Tensors | None = None
    file: bytes = b""
    file_answer: Any = None
    carried: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bound:
    """Least share of the answers that are within a distance from the package's."""

    distance: float
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What must be reached by results: for tensors that the package prepared, and for images that the gateway prepares.

    `quantized` is for those variants that `models quantize` keeps by default: they lose at most `KEPT_LOSS`.
    """

    results: Bound = Bound(0.0)
    files: Bound = Bound(0.0)
    quantized: Bound = Bound(0.0)


@dataclass(frozen=True, slots=True)
class Journey:
    """Model of `package`.

    `options` are those of `models new`, `edit` is what the author then corrects in the manifest. `compare` is the
    distance of a result from the package's answer; without it only tensors are compared. `calibration` writes samples
    into a folder; without it, `unquantized` says why. `settles` is the number of inputs after which a state inside the
    model is the package's. `refused` is a part of the message with which `models new` refuses the file, which
    is only served bare then.
    """

    name: str
    package: str
    file: Callable[[Path, Path], Path]
    asks: Callable[[Path], Sequence[Ask]]
    unit: str
    bounds: Bounds
    labels: Callable[[Path], Sequence[str]] = lambda _: ()
    options: tuple[str, ...] = ()
    edit: Callable[[str], str] = str
    compare: Compare | None = None
    calibration: Callable[[Path, Path], object] | None = None
    unquantized: str = ""
    settles: int = 0
    refused: str = ""


def inside(path: str) -> Callable[[Path, Path], Path]:
    """Return the file at `path` in the folder of the packages."""
    return lambda packages, _: packages / path


def replaced(*pairs: tuple[str, str]) -> Callable[[str], str]:
    """Return an edit of a manifest: each text occurs once and is replaced."""

    def edit(text: str) -> str:
        for old, new in pairs:
            assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in the manifest\n{text[:2000]}"
            text = text.replace(old, new)
        return text

    return edit


def with_task(kind: str, **options: str) -> Callable[[str], str]:
    """Return an edit of a manifest: its task is another one, with these options."""
    table = "".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items())

    def edit(text: str) -> str:
        text = re.sub(r"^(task = .*|\[task\]\n(?:.+\n)*)\n", "", text, count=1, flags=re.MULTILINE)
        return text.replace("[[input]]", f'[task]\nkind = "{kind}"\n{table}\n[[input]]', 1)

    return edit


@contextmanager
def imported_from(packages: Path, **stubs: Any) -> Iterator[None]:
    """Let the packages be imported; `stubs` take the place of modules that are too large and are not called."""
    added = {name: stub for name, stub in stubs.items() if name not in sys.modules}
    if str(packages) not in sys.path:
        sys.path.append(str(packages))
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
            sys.modules.pop(name, None)
