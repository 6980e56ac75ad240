"""The corpus table, and the list of what is not served."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tomllib
from rich.console import Console
from rich.table import Table

from tests.world.answers import Judgement
from tests.world.callers import Tally
from tests.world.entry import Entry

LEVELS = ("proven", "exercised", "unverified", "served")
REASON_CHARS = 160
NOT_JOINED = "its requests never share a run"


@dataclass(frozen=True, slots=True)
class Row:
    """One model: `outcome` is the level that serves, "refused", or "unrunnable" where its own runtime fails.

    `reason`: of a refusal, or why values were not compared. `stated`: answers that differ from the source's own data.
    """

    entry: Entry
    outcome: str
    reason: str = ""
    tally: Tally = field(default_factory=Tally)
    stated: int = 0
    asks: int = 0

    @property
    def served(self) -> bool:
        """The gateway serves it."""
        return self.outcome not in {"refused", "unrunnable"}

    @property
    def failed(self) -> bool:
        """An answer was wrong."""
        return bool(self.tally.wrong or self.stated)

    @property
    def line(self) -> str:
        """One line for a failed row."""
        errors = "; ".join(f"{count} × {error}" for error, count in self.tally.errors.most_common(2))
        return (
            f"WRONG {self.entry.source}/{self.entry.name}: {self.tally.answers[Judgement.WRONG]} wrong answers and "
            f"{self.tally.errors.total()} errors of {self.tally.requests}; {self.stated} of {len(self.entry.cases)} "
            f"stated cases differ {errors}"
        )


def print_report(rows: Sequence[Row], listed: Mapping[str, Mapping[str, str]]) -> bool:
    """Print the table and what deviates. True where no answer was wrong and the refused ones are those listed."""
    Console(width=200).print(_table(rows))
    for row in rows:
        if row.served and row.reason not in {"", NOT_JOINED}:
            print(f"shapes only  {row.entry.source}/{row.entry.name}: {row.reason}")
    new = [row for row in rows if row.outcome == "refused" and row.entry.name not in listed.get(row.entry.source, {})]
    gone = [row for row in rows if row.served and row.entry.name in listed.get(row.entry.source, {})]
    for row in new:
        print(f"refused, but not listed: {row.entry.source}/{row.entry.name}: {row.reason}")
    for row in gone:
        print(f"served, but listed as refused: {row.entry.source}/{row.entry.name}")
    for row in rows:
        if row.failed:
            print(row.line)
    asked, wrong = sum(row.tally.requests for row in rows), sum(row.failed for row in rows)
    unjoined = sum(row.reason == NOT_JOINED for row in rows)
    if unjoined:
        print(f"{unjoined} models were not asked: {NOT_JOINED}")
    print(f"{len(rows)} models, {asked} requests, {wrong} models with a wrong answer")
    return not (new or gone or any(row.failed for row in rows))


def refused_rows(file: Path) -> dict[str, dict[str, str]]:
    """Return reasons by source and model name."""
    return tomllib.loads(file.read_text()) if file.exists() else {}


def write_refused(file: Path, rows: Iterable[Row]) -> None:
    """Replace the list's lines on what is among `rows`; the others stay."""
    listed = refused_rows(file)
    for row in rows:
        of_source = listed.setdefault(row.entry.source, {})
        of_source.pop(row.entry.name, None)
        if row.outcome == "refused":
            of_source[row.entry.name] = row.reason[:REASON_CHARS]
    lines = [
        "# Models of the corpus that the gateway does not serve, by source, with its reason. `make test-world` fails"
    ]
    lines.append("# where this list and what it saw differ: the number of rows may only fall.")
    for source, models in sorted(listed.items()):
        if models:
            lines += [
                "",
                f'["{source}"]',
                *(f"{_quoted(name)} = {_quoted(why)}" for name, why in sorted(models.items())),
            ]
    file.write_text("\n".join(lines) + "\n")


def _table(rows: Sequence[Row]) -> Table:
    columns = ("source", "models", *LEVELS, "refused", "requests", "exact", "rounded", "wrong")
    table = Table(*columns, title="models of the corpus")
    for source in dict.fromkeys(row.entry.source for row in rows):
        table.add_row(source, *_figures([row for row in rows if row.entry.source == source]))
    table.add_row("all", *_figures(rows), style="bold")
    return table


def _figures(rows: Sequence[Row]) -> list[str]:
    corpus = [row for row in rows if row.outcome != "unrunnable"]
    outcomes, total = Counter(row.outcome for row in corpus), Tally()
    for row in corpus:
        total.add(row.tally)
    counts = [len(corpus), *(outcomes[each] for each in (*LEVELS, "refused")), total.requests]
    counts += [total.answers[Judgement.EXACT], total.answers[Judgement.ROUNDED], total.wrong]
    return [*map(str, counts)]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
