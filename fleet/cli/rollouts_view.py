"""View of a rollout for `watch`: progress of each wave, in one line or one bar. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.cli.remote import local, short
from fleet.client.client import Json
from fleet.controller.rollouts.spec import CANARY, Wave
from fleet.controller.rollouts.waves import places
from gateway.common.domain.python310 import from_iso
from gateway.common.terminal.tables import counted, plain

UNDER_WAY = ("offered", "downloading", "probation")
GAVE_UP = ("failed", "rolled_back", "silent")
SOON = timedelta(minutes=1)
"""An opening that is not further away counts as now: clocks differ."""
DONE, COMING, LOST, FREE = "█", "▒", "x", "·"
"""Characters of a bar, distinct without colours, too."""


@dataclass(frozen=True, slots=True)
class WaveRow:
    """Row of one wave. `expected`: devices of the full wave, as far as is known now. `states`: in words."""

    label: str
    opened: bool
    expected: int
    committed: int
    under_way: int
    failed: int
    states: str


def running_words(preview: Json) -> str:
    """Return in words what the devices of a preview run now, and what they would run."""
    parts = [
        f"{counted(int(devices), 'device')} from {f'version {plain(version)}' if version else 'an empty slot'}"
        for version, devices in sorted(preview["running"].items())
    ]
    if others := int(preview["running_others"]):
        parts.append(f"{counted(others, 'device')} from other versions")
    target = short(preview["spec"]["target"]["path"])
    return f"{', '.join(parts) or 'no device'} to {target}"


def wave_rows(view: Json) -> list[WaveRow]:
    """Return all waves in order."""
    devices = int(view["waiting"]) + sum(int(one["devices"]) for one in view["waves"])
    rows: list[WaveRow] = []
    for one in view["waves"]:
        expected = _expected(view["spec"], one, devices, sum(row.expected for row in rows))
        states: Mapping[str, int] = one["states"]
        committed = states.get("committed", 0)
        under_way, failed = (sum(states.get(state, 0) for state in kinds) for kinds in (UNDER_WAY, GAVE_UP))
        rows.append(
            WaveRow(
                label_of(view["spec"], one["wave"]),
                one["opened"],
                max(expected, one["devices"]),
                committed,
                under_way,
                failed,
                _wave_words(view, one),
            )
        )
    return rows


def _expected(spec: Json, one: Json, devices: int, taken: int) -> int:
    """Return how many devices the wave has when it is full.

    Of canaries that is not known here, because it depends on the kinds of accelerators.
    """
    here = int(one["devices"])
    if one["wave"] == CANARY:
        return here
    wave = spec["waves"][one["wave"] - 1]
    free = places(Wave(wave.get("percent"), wave.get("count")), devices, taken + here, here)
    return min(here + free, max(0, devices - taken))


def _wave_words(view: Json, one: Json) -> str:
    if not one["opened"]:
        return "" if one["approved"] else "needs approval"
    order = ("committed", *UNDER_WAY, *GAVE_UP, "pending")
    return ", ".join(f"{one['states'][state]} {state.replace('_', ' ')}" for state in order if one["states"].get(state))


def label_of(spec: Json, wave: int) -> str:
    """Return the label of a wave, such as "canary", "1. 25 %", "2. +200", numbered as for approve-wave."""
    if wave == CANARY:
        return "canary"
    own = spec["waves"][wave - 1]
    return f"{wave}. {own['percent']:g} %" if own.get("percent") is not None else f"{wave}. +{own['count']}"


def bar(row: WaveRow, width: int) -> str:
    """Return `width` characters: committed, gave up, in progress, free.

    Every part that is not empty gets a character, and a full bar has no free ones.
    """
    if row.expected <= 0:
        return FREE * width
    parts = [(DONE, row.committed), (LOST, row.failed), (COMING, row.under_way)]
    total = max(row.expected, sum(count for _, count in parts))
    cells = {sign: max(1, count * width // total) if count else 0 for sign, count in parts}
    over = sum(cells.values()) - width
    if over > 0:
        cells[max(cells, key=lambda sign: cells[sign])] -= over
    if sum(count for _, count in parts) == total and sum(cells.values()) < width:
        cells[max(cells, key=lambda sign: cells[sign])] += width - sum(cells.values())
    filled = "".join(sign * cells[sign] for sign, _ in parts)
    return filled.ljust(width, FREE)


def headline(view: Json) -> str:
    """Return state, wave and devices in one line."""
    rows = wave_rows(view)
    if view["state"] in {"draft", "approved"}:
        return str(view["state"])
    served: Mapping[str, int] = view["served"]
    committed = sum(row.committed for row in rows) + served.get("committed", 0)
    failed = sum(row.failed for row in rows) + sum(served.get(state, 0) for state in GAVE_UP)
    devices = int(view["waiting"]) + sum(int(one["devices"]) for one in view["waves"]) + sum(served.values())
    if not devices:
        return f"{view['state']} · no device yet"
    failures = f", {failed} gave up" if failed else ""
    where = "" if view["state"] == "standing" else f" · {_wave_of(view)}"
    return f"{view['state']}{where} · {committed} of {counted(devices, 'device')} committed{failures}"


def _wave_of(view: Json) -> str:
    if view["round"]:
        return f"round {view['round'] + 1}, {_wave_of({**view, 'round': 0})}"
    if view["wave"] is None:
        return "no wave yet"
    return "canary" if view["wave"] == CANARY else f"wave {view['wave']} of {len(view['spec']['waves'])}"


def notes(view: Json, now: datetime) -> list[str]:
    """Return what an operator should know besides the bars."""
    found = []
    if view["reason"] and view["state"] in {"paused", "aborted", "finished"}:
        found.append(plain(f"{'halted' if view['halted'] else view['state']}: {view['reason']}"))
    if view["state"] == "paused" and (count := int(view["may_install"])):
        offer = f"{counted(count, 'device')} may still install it: an offer was made before the pause"
        found.append(f"{offer}; edge-fleet rollouts abort {view['id']} withdraws it")
    if view["state"] == "paused":
        found.append(f"go on: edge-fleet rollouts resume {view['id']} (or abort)")
    if view["state"] == "aborted" and not view["rollback_requested"] and view["spec"]["rollback"] != "forced":
        found.append(f"devices keep what they have; give it back: edge-fleet rollouts rollback {view['id']}")
    if view["state"] == "standing":
        found.append(f"devices that match later get it, too; end that: edge-fleet rollouts abort {view['id']}")
    if view["state"] == "running" and view["waiting"]:
        found += _opening(view["next_opening"], now)
    if view["state"] == "draft":
        found.append(f"a draft: edge-fleet rollouts approve {view['id']}")
    if view["state"] == "approved":
        found.append(f"approved: edge-fleet rollouts start {view['id']}")
    waits = next((one for one in view["waves"] if not one["opened"]), None)
    if view["state"] == "running" and waits and not waits["approved"]:
        found.append(f"the next wave waits: edge-fleet rollouts approve-wave {view['id']} {waits['wave']}")
    return found


def _opening(at: str | None, now: datetime) -> list[str]:
    """Return when devices are offered something again, outside the windows and in blackouts."""
    if at is None:
        return ["no window will open again"]
    return [f"no offers before {local(at)}"] if from_iso(at) > now + SOON else []


def line(view: Json, now: datetime) -> str:
    """Return everything in one line, for logs."""
    rows = [row for row in wave_rows(view) if row.opened]
    waves = "; ".join(f"{row.label}: {row.states or 'no device yet'}" for row in rows)
    return " | ".join(part for part in (headline(view), waves, *notes(view, now)) if part)


def outcome(view: Json) -> int | None:
    """Return the exit code of a rollout that is over or halted: 0 finished or standing, 1 aborted or halted, or None.

    A rollout that an operator paused has no evidence, and goes on when it is resumed.
    """
    if view["state"] in {"finished", "standing"}:
        return 0
    stopped = view["state"] == "paused" and bool(view["halted"] or view["evidence"])
    return 1 if stopped or view["state"] == "aborted" else None
