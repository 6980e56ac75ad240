"""The corpus as a whole: entries by source, and which of them their own runtime passes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.world.direct import Direct, NotCallableError, open_direct
from tests.world.entry import Case, Entry, Tensors
from tests.world.exports import openvino_entries, sklearn_entries, torch_entries
from tests.world.feeds import Asks, make_asks
from tests.world.nodes import node_entries, open_entries
from tests.world.packages import package_entries

GROUPS = ("nodes", "open", "packages", "sklearn", "torch", "openvino")


@dataclass(frozen=True, slots=True)
class Member:
    """An entry in the corpus, with requests to send. Without requests it is loaded only: no client could send them."""

    entry: Entry
    asks: Asks


def collect(groups: Sequence[str], folder: Path, packages: Path, torch_python: str) -> list[Entry]:
    """Return every entry of `groups`.

    `folder` gets what exporters write; `packages` is where requirements/world.txt is.
    """
    for group in GROUPS:
        (folder / group).mkdir(parents=True)
    packaged = list(package_entries(packages)) if {"packages", "openvino"} & {*groups} else []
    exported = list(torch_entries(folder / "torch", torch_python)) if {"torch", "openvino"} & {*groups} else []
    makers: dict[str, Callable[[], Iterable[Entry]]] = {
        "nodes": node_entries,
        "open": open_entries,
        "packages": lambda: packaged,
        "sklearn": lambda: sklearn_entries(packages),
        "torch": lambda: exported,
        "openvino": lambda: openvino_entries(folder / "openvino", (*packaged, *exported)),
    }
    return [entry for group in groups for entry in makers[group]()]


def sampled(entries: Sequence[Entry], count: int, seed: int) -> list[Entry]:
    """Choose `count` entries by chance (0: all), in their own order."""
    if not count or count >= len(entries):
        return list(entries)
    chosen = random.Random(seed).sample(range(len(entries)), count)
    return [entries[index] for index in sorted(chosen)]


def members(entries: Sequence[Entry], folder: Path, asks: int, seconds: float, seed: int) -> Iterator[Member]:
    """Lay out under `folder` those entries that their own runtime passes, with at most `asks` requests each."""
    for entry in entries:
        file = entry.write(folder)
        made = _tried(entry, file, asks, seconds, seed)
        if made is None:
            _remove(file.parent)
        else:
            yield Member(entry, made)


def agrees(answer: Tensors, case: Case) -> bool:
    """Compare with the stated outputs, within the tolerance that the source states."""
    return all(_close(answer[name], stated, case) for name, stated in case.outputs.items() if name)


def _tried(entry: Entry, file: Path, asks: int, seconds: float, seed: int) -> Asks | None:
    """Return requests, or None where the runtime itself cannot open the model, run it, or answer as its data say."""
    try:
        direct = open_direct(entry.runtime, file)
    except NotCallableError:
        return Asks(())
    except Exception:  # noqa: BLE001  runtimes' exceptions share no root
        return None
    if not _passes(direct, entry.cases):
        return None
    made = make_asks(entry, direct, asks, seconds, seed)
    return made if made.asks else None


def _passes(direct: Direct, cases: Sequence[Case]) -> bool:
    for case in cases:
        try:
            answer = direct.run({port.name: case.inputs[port.name] for port in direct.inputs})
        except Exception:  # noqa: BLE001  runtimes' exceptions share no root
            return False
        if not agrees(answer, case):
            return False
    return True


def _close(got: np.ndarray, stated: np.ndarray, case: Case) -> bool:  # type: ignore[type-arg]
    if got.shape != stated.shape or got.dtype != stated.dtype:
        return False
    if stated.dtype.kind != "f":
        return bool(np.array_equal(got, stated))
    wide = np.float64
    return np.allclose(got.astype(wide), stated.astype(wide), rtol=case.rtol, atol=case.atol, equal_nan=True)


def _remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
