"""`make bench`: the gateway compared with grpcio and with the bare `session.run` loop, measured in one run.

Every server is kept to one core, every load generator to another. What is compared is measured side by side, in several
interleaved passes; medians are printed, with the lowest and highest pass. Ratios within a run hold; absolute figures
move with the machine. With default settings it takes about fourteen minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from tests.performance import report
from tests.performance.aims import Verdict, judged
from tests.performance.load import Figures
from tests.performance.rig import Rig
from tests.performance.servers import LOAD_CORE, SERVER_CORE, SERVERS, calibration, machine
from tests.performance.steps import Row, Step, all_steps
from tests.simulators.daemon import ROOT

PASSES = 3
SECONDS = 1.5
RESULTS = ROOT / ".bench"
EXAMPLES = """examples:
  make bench
  python -m tests.performance.bench --list
  python -m tests.performance.bench --only "tiny model" --only "start*" --passes 5
  python -m tests.performance.bench --only "mixed*" --seconds 10 --servers own,grpcio.aio
  python -m tests.performance.bench --json | jq '.aims[] | select(.word != "met")'

figures of every pass: .bench/results.json; the tables as a picture: .bench/results.svg"""
PACKAGES = ("onnxruntime", "grpcio", "protobuf", "numpy")


def main() -> int:
    """Measure, print, keep."""
    options = _options()
    offered = all_steps(options.servers)
    steps = [step for step in offered if _wanted(step, options.only)]
    if not steps:
        sys.exit(f"nothing matches {', '.join(options.only)}; --list shows what there is")
    if options.list:
        sys.stdout.writelines(f"{step.name}\n" for step in steps)
        return 0
    os.sched_setaffinity(0, {LOAD_CORE})  # this process is no noise on the server's core
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="edge-gateway-bench-") as name:
        rig = Rig(Path(name), {model for step in steps for model in step.models}, options.seconds)
        samples = _measured(rig, steps, options.passes)
    facts = _facts(rig, options, time.monotonic() - began)
    verdicts = judged(samples)
    _publish(rig, facts, samples, verdicts, as_json=options.json)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.performance.bench",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="length of a measurement (default %(default)s)")
    parser.add_argument("--passes", type=int, default=PASSES, help="interleaved passes (default %(default)s)")
    only = "measure what contains PATTERN, or matches it where it has * or ?; repeatable"
    parser.add_argument("--only", metavar="PATTERN", action="append", default=[], help=only)
    known = f"of {', '.join(SERVERS)} (default: all)"
    parser.add_argument("--servers", metavar="NAMES", type=_servers, default=list(SERVERS), help=known)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--list", action="store_true", help="list what would be measured, and measure nothing")
    options = parser.parse_args()
    if SERVER_CORE == LOAD_CORE:
        parser.exit(3, "two cores are needed: one for the server, one for the load\n")
    if options.passes < 1 or options.seconds <= 0:
        parser.error("--passes must be 1 or more, --seconds more than 0")
    return options


def _servers(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(SERVERS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))} unknown; there are {', '.join(SERVERS)}")
    return [name for name in SERVERS if name in names]


def _wanted(step: Step, patterns: Sequence[str]) -> bool:
    name = step.name.lower()
    return not patterns or any(
        fnmatch(name, pattern) if set(pattern) & set("*?") else pattern in name for pattern in map(str.lower, patterns)
    )


def _measured(rig: Rig, steps: Sequence[Step], passes: int) -> dict[Row, list[Figures]]:
    samples: dict[Row, list[Figures]] = {}
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as bar:
        task = bar.add_task("trials", total=passes * len(steps))
        rig.try_variants(lambda model: bar.update(task, description=f"trials of {model}"))
        for _ in range(passes):
            with rig:
                for step in steps:
                    bar.update(task, description=step.name)
                    for added, figures in step.measure(rig).items():
                        samples.setdefault(step.row._replace(what=step.row.what + added), []).append(figures)
                    bar.advance(task)
    return samples


def _facts(rig: Rig, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    return {
        "machine": f"{machine()}; server on core {SERVER_CORE}, load on core {LOAD_CORE}",
        "software": f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        "passes": f"medians of {options.passes} interleaved passes of {options.seconds:g} s",
        "took": f"{seconds / 60:.1f} min",
        "calibration": calibration(),
        "chosen": rig.chosen,
    }


def _publish(
    rig: Rig, facts: dict[str, Any], samples: dict[Row, list[Figures]], verdicts: list[Verdict], *, as_json: bool
) -> None:
    rows = [
        {**row._asdict(), "median": middle, "passes": samples[row]} for row, middle in report.medians(samples).items()
    ]
    aims = [
        {"what": verdict.aim.what, "limit": verdict.aim.limit, "at_least": verdict.aim.at_least, "word": verdict.word}
        | {key: value for key, value in asdict(verdict).items() if key != "aim"}
        for verdict in verdicts
    ]
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"facts": facts, "rows": rows, "aims": aims}, indent=1)
    (RESULTS / "results.json").write_text(text)
    console = Console(record=True, quiet=as_json, width=report.WIDTH)
    report.show(console, facts, rig.networks, samples, verdicts)
    report.save_svg(console, RESULTS / "results.svg")
    if as_json:
        sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
