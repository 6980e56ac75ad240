"""Truth of samples that is written as texts or numbers: in columns of tables, in arrays, as names of folders.

Pure functions. Each raises ValueError with what is wrong and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Array
from gateway.workshop.making.metrics.roc_auc import AnomalyVerdict
from gateway.workshop.making.truth.kinds import TruthKind

NAMES: Mapping[TruthKind, tuple[str, ...]] = {
    TruthKind.CLASSES: ("label", "class", "target"),
    TruthKind.FLAGS: ("label", "anomalous", "target"),
    TruthKind.TEXTS: ("text", "label"),
    TruthKind.VALUES: ("target", "value", "label"),
    TruthKind.FORECASTS: ("target", "value"),
}
"""Names of the column of a table, or of the array of an .npz, that has the truth of each sample."""
NORMAL = frozenset({"good", "normal"})
"""Names of the folder of normal samples, as in MVTec AD; every other folder next to it has anomalies."""
FLAGS: Mapping[str, bool] = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


def value_names(manifest: ModelManifest) -> tuple[str, ...]:
    """Return the names of the values that a regression gives."""
    return tuple((manifest.task_options or {}).get("names", ())) or manifest.labels


def truth_columns(kind: TruthKind, header: Sequence[str], manifest: ModelManifest) -> list[int]:
    """Return the places of the columns that have the truth: one for each value by its name, or a single one."""
    names = [cell.lower() for cell in header]
    if kind is TruthKind.VALUES and (wanted := value_names(manifest)) and all(name in header for name in wanted):
        return [header.index(name) for name in wanted]
    return [names.index(name) for name in NAMES.get(kind, ()) if name in names][:1]


def read_cells(kind: TruthKind, cells: Sequence[Sequence[str]]) -> list[Any]:
    """Return the truth of each sample from its cells: texts, verdicts or numbers [1, values]."""
    match kind:
        case TruthKind.TEXTS:
            return [each[0] for each in cells]
        case TruthKind.FLAGS:
            return read_flags([each[0] for each in cells])
        case _:
            return [_numbers(each) for each in cells]


def read_flags(words: Sequence[str]) -> list[AnomalyVerdict]:
    """Return the verdict that each word says: 0 or 1, or folders of which one has normal samples."""
    known = [word.strip().lower() for word in words]
    is_named = any(word in NORMAL for word in known)
    unknown = next((word for word in known if not is_named and word not in FLAGS), None)
    if unknown is not None:
        raise ValueError(
            f"{unknown!r:.80} says neither normal nor anomalous; write 0 or 1, or name folders good and others"
        )
    return [AnomalyVerdict(np.nan, word not in NORMAL if is_named else FLAGS[word]) for word in known]


def read_array(kind: TruthKind, array: Array, count: int) -> list[Any]:
    """Return the truth of each of `count` samples from an array [samples, …]."""
    if len(array) != count:
        raise ValueError(f"the truth has {len(array)} samples, the inputs have {count}; give one for each")
    if kind in {TruthKind.VALUES, TruthKind.FORECASTS}:
        if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
            raise ValueError("the truth must be finite numbers")
        return [np.asarray(row, np.float64) for row in array]
    if kind is TruthKind.CLASS_MAPS:
        raise ValueError("maps of classes are PNG files; put them into masks/ next to images/")
    return read_cells(kind, [[_word(each)] for each in array.ravel().tolist()])


def fitting(kind: TruthKind, truth: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """Return values in the form of a result, whose own shape is `sizes` (-1: open)."""
    known = next((each for each in truth if each is not None), None)
    if kind not in {TruthKind.VALUES, TruthKind.FORECASTS} or known is None:
        return list(truth)
    wanted = (1, *sizes) if kind is TruthKind.VALUES else tuple(sizes[:2])
    if -1 not in wanted and known.size != np.prod(wanted):
        raise ValueError(f"the truth of a sample has {known.size} values, but the result {list(sizes)}; give as many")
    return [None if each is None else each.reshape(wanted) for each in truth]


def _numbers(cells: Sequence[str]) -> Array:
    try:
        numbers = np.array([float(cell) for cell in cells])
    except ValueError:
        raise ValueError(f"{', '.join(cells)!r:.80} is no number; correct the column of values") from None
    if not np.isfinite(numbers).all():
        raise ValueError(f"{', '.join(cells)!r:.80} is not finite; leave the sample out")
    return numbers


def _word(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
