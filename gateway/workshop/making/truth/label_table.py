"""Annotations in a table: `labels.csv` or `labels.tsv` with a row for each file of samples."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.store.plain import read_plain
from gateway.workshop.making.truth.cells import NAMES, truth_columns
from gateway.workshop.making.truth.kinds import TruthKind, truth_kind

TABLES = ("labels.csv", "labels.tsv")
FILES = ("file", "image", "filename", "file_name", "path")
"""Names of the column of files; without one it is the first column."""


@dataclass(frozen=True, slots=True)
class LabelTable:
    """Cells of the truth by the file's name: of each file of that name its path and its cells."""

    path: Path
    rows: Mapping[str, Sequence[tuple[str, tuple[str, ...]]]]

    def cells(self, sample: Path) -> tuple[str, ...] | None:
        """Return the cells of a file, by the end of its path; None if the table has none."""
        place = f"/{sample.as_posix()}"
        found = [cells for name, cells in self.rows.get(sample.name, ()) if place.endswith(f"/{name}")]
        return found[-1] if found else None

    def absent(self, samples: Sequence[Path]) -> list[str]:
        """Return the names of files that the table has and `samples` do not."""
        names = {sample.name for sample in samples}
        return [rows[0][0] for name, rows in self.rows.items() if name not in names]


def read_label_table(path: Path, manifest: ModelManifest, limit_bytes: int) -> LabelTable:
    """Return the content of a table. Raises ConfigurationError."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    try:
        text = read_plain(path, limit_bytes).decode("utf-8-sig")
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
        return LabelTable(path, _by_name(rows, truth_kind(manifest), manifest))
    except (OSError, ValueError, csv.Error) as error:
        raise ConfigurationError(f"is no table of annotations: {error}", file=str(path)) from error


def _by_name(
    rows: Sequence[Sequence[str]], kind: TruthKind, manifest: ModelManifest
) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    header = [cell.strip() for cell in rows[0]] if rows else []
    columns = truth_columns(kind, header, manifest)
    if not columns:
        raise ValueError(f"its first row must name the columns file and {' or '.join(NAMES.get(kind, ('label',)))}")
    place = next((header.index(name) for name in FILES if name in header), 0)
    found: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for number, row in enumerate(rows[1:], 2):
        if len(row) <= max(place, *columns):
            raise ValueError(f"row {number} has {len(row)} columns: {','.join(row)!r:.80}")
        name = PurePosixPath(row[place].strip().replace("\\", "/"))
        found.setdefault(name.name, []).append((str(name), tuple(row[column].strip() for column in columns)))
    return found
