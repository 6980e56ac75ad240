"""The tables: one per subject, the verdicts on the aims last. Also drawn as an SVG."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from tests.performance.aims import NOISE, Samples, Verdict
from tests.performance.load import Figures
from tests.performance.networks import Network
from tests.performance.servers import CPP, PAHO, PLAIN
from tests.performance.steps import BARE, Row

WIDTH = 150
BAR_CHARS = 12
EIGHTHS = " ▏▎▍▌▋▊▉"
STYLES = {"met": "green", "missed": "red", "too noisy to say": "yellow"}


def medians(samples: Samples) -> dict[Row, Figures]:
    """Return, by row, each figure's median over the passes."""
    return {
        row: {key: statistics.median(each[key] for each in passes) for key in passes[0]}
        for row, passes in samples.items()
        if passes
    }


def show(
    console: Console,
    facts: Mapping[str, Any],
    networks: Mapping[str, Network],
    samples: Samples,
    verdicts: Sequence[Verdict],
) -> None:
    """Print everything, in the order of the steps."""
    middle = medians(samples)
    console.print(_facts(facts))
    if facts["chosen"].keys() & networks.keys():
        console.print(_models(networks, middle, facts["chosen"]))
    for name in dict.fromkeys(row.table for row in middle):
        rows = {row: figures for row, figures in middle.items() if row.table == name}
        console.print(_starts(rows) if "ready_s" in next(iter(rows.values())) else _rates(name, rows, middle, samples))
    if verdicts:
        console.print(_aims(verdicts))
    for line in _notes(middle):
        console.print(line, style="dim")


def save_svg(console: Console, file: Path) -> None:
    """Write the output of a recording console; fonts of the viewer's own, none from the network."""
    svg = console.export_svg(title="make bench")
    file.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


def _table(title: str, columns: Iterable[str], left: int = 2) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < left else "right", no_wrap=True)
    return table


def _facts(facts: Mapping[str, Any]) -> Table:
    table = _table("what ran", ("", ""))
    table.show_header = False
    for key in ("machine", "software", "calibration", "passes", "took"):
        table.add_row(key, str(facts[key]))
    return table


def _models(networks: Mapping[str, Network], middle: Mapping[Row, Figures], chosen: Mapping[str, str]) -> Table:
    columns = ("model", "network", "variant", "multiply-adds", "parameters", "bytes of a request's tensor", "bare run")
    table = _table("models", columns, left=3)
    bare = {row.model: figures for row, figures in middle.items() if row.server == BARE}
    for name, variant in chosen.items():
        if network := networks.get(name):
            counts = [f"{count:,}" if count else "" for count in (network.macs, network.parameters)]
            run = _time(bare[name]["p50_us"]) if name in bare else ""
            table.add_row(name, network.what, variant, *counts, f"{network.row().nbytes:,}", run)
    return table


# ---- rates ----------------------------------------------------------------------------------------------------------
def _rates(name: str, rows: Mapping[Row, Figures], middle: Mapping[Row, Figures], samples: Samples) -> Table:
    columns = ("", "server", "per second", "min – max", "", "× plain", "× C++", "of bare", "CPU each", "p50", "p99")
    table = _table(name, (*columns, "load"))
    most = max((figures["per_s"] for row, figures in rows.items() if row.server != BARE), default=0.0)
    last = ""
    for row, figures in rows.items():
        rates = [each["per_s"] for each in samples[row]]
        table.add_row(
            row.what if row.what != last else "",
            row.server,
            _rate(figures["per_s"]),
            f"{_rate(min(rates))} – {_rate(max(rates))}",
            _bar(figures["per_s"] / most) if most and row.server != BARE else "",
            *(_over(figures, _baseline(row, middle, names), "{:.2f}") for names in ((PLAIN, PAHO), (CPP,))),
            _over(figures, _bare_of(row, middle), "{:.1%}") if row.server != BARE else "",
            _time(figures["cpu_us"]) if "cpu_us" in figures else "",
            *(_time(figures[key]) if key in figures else "" for key in ("p50_us", "p99_us")),
            f"{figures['load_busy']:.0%}" if "load_busy" in figures else "",
            style="bold" if row.server == "own" else "",
        )
        last = row.what
    return table


def _baseline(row: Row, middle: Mapping[Row, Figures], names: Sequence[str]) -> Figures | None:
    """Return the figures of the first of these servers in the same row, if this is another one."""
    if row.server in {*names, BARE}:
        return None
    return next((middle[other] for name in names if (other := row._replace(server=name)) in middle), None)


def _bare_of(row: Row, middle: Mapping[Row, Figures]) -> Figures | None:
    model = next((model for model in (row.what.partition(",")[0], row.model) if _bare(model, middle)), row.model)
    return _bare(model, middle)


def _bare(model: str, middle: Mapping[Row, Figures]) -> Figures | None:
    return next((figures for row, figures in middle.items() if (row.server, row.model) == (BARE, model)), None)


def _over(figures: Figures, other: Figures | None, form: str) -> str:
    return form.format(figures["per_s"] / other["per_s"]) if other else ""


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 1000 else f"{per_s:,.1f}"


def _time(time_us: float) -> str:
    if time_us < 1000:
        return f"{time_us:.1f} µs" if time_us < 100 else f"{time_us:.0f} µs"
    return f"{time_us / 1000:,.2f} ms" if time_us < 100_000 else f"{time_us / 1000:,.0f} ms"


def _bar(share: float) -> str:
    eighths = round(share * BAR_CHARS * 8)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip().ljust(BAR_CHARS)


# ---- the rest --------------------------------------------------------------------------------------------------------
def _starts(rows: Mapping[Row, Figures]) -> Table:
    columns = ("", "server", "READY=1 after", "RSS idle", "PSS idle", "RSS after load", "PSS after load")
    table = _table("start and memory: kept verdicts, byte-compiled, one core", columns)
    for row, figures in rows.items():
        sizes = (f"{figures[key]:.1f} MiB" for key in ("rss_mib", "pss_mib", "rss_mib_loaded", "pss_mib_loaded"))
        table.add_row(row.what, row.server, f"{figures['ready_s']:.3f} s", *sizes)
    return table


def _aims(verdicts: Sequence[Verdict]) -> Table:
    table = _table("aims", ("aim", "", "measured", "min – max", "", "passes"), left=1)
    for verdict in verdicts:
        aim = verdict.aim
        median, low, high, limit = map(aim.form.format, (verdict.median, verdict.low, verdict.high, aim.limit))
        told = f"[{STYLES[verdict.word]}]{verdict.word}[/]"
        wanted = f"{'≥' if aim.at_least else '≤'} {limit}"
        table.add_row(aim.what, wanted, median, f"{low} – {high}", told, f"{verdict.reached} of {verdict.passes}")
    return table


def _notes(middle: Mapping[Row, Figures]) -> list[str]:
    notes = [
        f"× plain: requests/s over those of {PLAIN}, a plain server of grpc.aio, protobuf and ONNX Runtime, same row",
        f"MQTT: over those of {PAHO}, a plain loop of paho-mqtt, json and ONNX Runtime",
        f"× {CPP}: the same over a plain server of gRPC's asynchronous {CPP} API, protobuf and ONNX Runtime",
        "of bare: requests/s over those of the session.run loop",
        "CPU each: user and system time of the server's process per request",
        "load: how busy the load generator's core was; near 100 % the load, not the server, set the rate",
    ]
    others = {row: figures["others"] for row, figures in middle.items() if "others" in figures}
    if noisy := {row: share for row, share in others.items() if share > NOISE}:
        row = max(noisy, key=noisy.__getitem__)
        notes.append(
            f"Not quiet: in {len(noisy)} of {len(others)} rows more than {NOISE:.0%} of the server's core went to "
            "other processes, interrupts or other machines; "
            f"most, {noisy[row]:.0%}, in: {row.table}, {row.what}, {row.server}"
        )
    return notes
