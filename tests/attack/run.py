"""Table of all attacks: `python -m tests.attack.run [NAME…]`.

Each `tests/attack/test_*.py` lists its attacks in ATTACKS. Prints, for each, what the attacker sent, what it cost the
daemon, and the effect on well-behaved clients. The exit code is 1 if one of them failed or the watchdog waited too
long.

examples:
  python -m tests.attack.run                   # all
  python -m tests.attack.run "header floods"   # one of them
  python -m tests.attack.run --over tls        # attackers and well-behaved clients on TLS; also unix
  python -m tests.attack.run --json            # figures of all, for programs
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.attack.rig import TRANSPORTS, WATCHDOG_GAP_S, Attack, Calls, Observed, observe

COLUMNS = ("attack", "MB/s sent", "CPU", "peak MB", "grown MB", "watchdog s", "recovery s", "client", "failed")
PHASES = ("quiet p50/p99 ms", "attacked p50/p99 ms")


def known() -> dict[str, Attack]:
    """Return every attack by its name."""
    files = sorted(Path(__file__).parent.glob("test_*.py"))
    return {
        name: attack
        for file in files
        for name, attack in importlib.import_module(f"tests.attack.{file.stem}").ATTACKS.items()
    }


def table(seen: Mapping[str, Observed]) -> Table:
    """Return a table with one line per attack and client."""
    made = Table(*COLUMNS, *PHASES, title="attacks on the daemon, and its well-behaved clients")
    for name, observed in seen.items():
        lead = _lead(name, observed)
        for client in sorted(observed.quiet):
            during = observed.attacked.get(client, Calls.none())
            failed = during.failures.total() + observed.after.get(client, Calls.none()).failures.total()
            made.add_row(*lead, client, f"{failed}/{during.count}", _both(observed.quiet[client]), _both(during))
            lead = ("",) * len(lead)
        made.add_section()
    return made


def _lead(name: str, observed: Observed) -> tuple[str, ...]:
    recovery = "never" if observed.recovery_s is None else f"{observed.recovery_s:.2f}"
    rate = observed.sent_bytes / observed.seconds / 1e6
    memory = (f"{size / 1e6:.0f}" for size in (observed.peak_bytes, observed.grown_bytes))
    return name, f"{rate:.2f}", f"{observed.cpu_share:.2f}", *memory, f"{observed.watchdog_gap_s:.2f}", recovery


def _both(calls: Calls) -> str:
    return f"{calls.p50_ms:.1f} / {calls.p99_ms:.1f}"


def main() -> int:
    """Run the named attacks and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="attacks to run; all where none is named")
    parser.add_argument("--over", choices=TRANSPORTS, default="tcp", help="how attackers connect")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    attacks = known()
    if unknown := set(arguments.names) - attacks.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(attacks)}")
    seen = {}
    for name in arguments.names or attacks:
        print(f"{name} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="attack-") as folder:
            seen[name] = observe(attacks[name], Path(folder), arguments.over)
    if arguments.json:
        print(json.dumps({name: asdict(observed) for name, observed in seen.items()}, indent=2))
    else:
        Console(width=200).print(table(seen))
    return int(any(observed.failures or observed.watchdog_gap_s > WATCHDOG_GAP_S for observed in seen.values()))


if __name__ == "__main__":
    raise SystemExit(main())
