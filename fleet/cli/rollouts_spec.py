"""Specification of a rollout: from a file, from options, and in words (form: `fleet/controller/rollouts/README.md`)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fleet.cli.remote import short, target_of
from fleet.cli.rollouts_options import UNITS, WAVES, waves
from fleet.client.client import Json
from fleet.disk import read_bounded
from gateway.common.domain.assignment import RESERVED_SLOTS
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.python310 import tomllib
from gateway.common.terminal.tables import counted

SPEC_LIMIT_BYTES = 262_144
SUCCESS: Json = {"min_sample": 1, "min_percent": 95.0}
ABORT: Json = {"min_sample": 5, "max_failed_percent": 5.0}


def specification(arguments: argparse.Namespace) -> Json:
    """Return the specification for the controller, which checks it. Raise ConfigurationError."""
    document = _from_file(Path(arguments.spec)) if arguments.spec else {}
    if arguments.target:
        document["target"] = target_of(arguments.target)
    if "target" not in document:
        raise ConfigurationError("no release is named; use --target OWNER/MODEL/VERSION, or a file with --spec")
    names = ("name", "slot", "query", "waves", "soak_s", "silence_s", "deadline_s", "rollback")
    values = {name: getattr(arguments, name) for name in names}
    values["dynamic"] = False if arguments.static else None
    values["standing"] = True if arguments.standing else None
    document |= {name: value for name, value in values.items() if value is not None}
    soak_s: float | None = arguments.canary_soak_s
    if soak_s is None and arguments.canary is not None:  # --soak holds for canaries, too
        soak_s = arguments.soak_s
    sections: tuple[tuple[str, Json, Json], ...] = (
        ("canary", {}, {"per_accelerator": arguments.canary, "soak_s": soak_s}),
        ("success", SUCCESS, {"min_percent": arguments.success_percent, "min_sample": arguments.success_sample}),
        ("abort", ABORT, {"max_failed_percent": arguments.failed_percent, "min_sample": arguments.failed_sample}),
        ("retries", {}, {"limit": arguments.retries, "backoff_s": arguments.backoff_s}),
    )
    for name, default, values in sections:
        given = {key: value for key, value in values.items() if value is not None}
        section = document.get(name) or default
        if not isinstance(section, dict):
            raise ConfigurationError(f"{name} must be a table", file=arguments.spec)
        if section or given:
            document[name] = {**section, **given}
    target = document["target"]
    named = target.get("path", "") if isinstance(target, dict) else target
    owner, model, version, *_ = [*short(str(named)).split("/"), "", ""]
    is_model = owner not in RESERVED_SLOTS
    document.setdefault("slot", model if is_model else owner)
    document.setdefault("name", f"{document['slot'] if is_model else model}-{version}")
    document.setdefault("query", "all")
    document.setdefault("waves", waves(WAVES))
    return document


def _from_file(file: Path) -> Json:
    """Read JSON, or TOML if the file's name ends with it."""
    content = read_bounded(file, SPEC_LIMIT_BYTES)
    try:
        text = content.decode()
        document = json.loads(text) if file.suffix != ".toml" else _toml(text)
    except (ValueError, RecursionError) as error:
        cause = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error
        raise ConfigurationError(f"is neither JSON nor, as NAME.toml, TOML: {cause}", file=str(file)) from None
    if not isinstance(document, dict):
        raise ConfigurationError(
            "is not an object; fleet/controller/rollouts/README.md shows a specification", file=str(file)
        )
    return document


def _toml(text: str) -> Json:
    """Read TOML. Convert its times, which are a type of their own, to text as the API writes them."""
    document: Json = json.loads(
        json.dumps(tomllib.loads(text), default=lambda at: at.isoformat().replace("+00:00", "Z"))
    )
    return document


# ---- in words


def words(spec: Json) -> list[tuple[str, str]]:
    """Return the specification in words, for its approver."""
    success, abort, standing = spec["success"], spec["abort"], bool(spec.get("standing"))
    return [
        ("release", f"{short(spec['target']['path'])} into the slot {spec['slot']}"),
        ("digest", spec["target"]["sha256"]),
        ("devices", f"{spec['query']}{'' if spec['dynamic'] else '; devices that match later do not join'}"),
        *([("standing", "stays their target: devices that match later get it in rounds of these waves")] * standing),
        *([("canary", _canary(spec["canary"]))] if spec["canary"] else []),
        ("waves", f"{', '.join(map(wave_words, spec['waves']))}; {time_words(spec['soak_s'])} between"),
        (
            "through",
            f"{success['min_percent']:g} % of a wave committed, {counted(success['min_sample'], 'device')} at least",
        ),
        ("halts", _halts(abort)),
        ("failed", f"also silent for {time_words(spec['silence_s'])}, or not done in {time_words(spec['deadline_s'])}"),
        ("retries", _retries(spec["retries"])),
        *(("window", _window(one)) for one in spec["windows"]),
        *(("blackout", f"{one['start']} to {one['end']} {one.get('reason', '')}".strip()) for one in spec["blackouts"]),
        ("after a halt", "all go back by themselves" if spec["rollback"] == "forced" else "an operator decides"),
    ]


def wave_words(wave: Json) -> str:
    """Return a wave in words, such as "25 % (needs approval)" or "200 more"."""
    size = f"{wave['percent']:g} %" if wave.get("percent") is not None else f"{wave['count']} more"
    return f"{size} (needs approval)" if wave.get("needs_approval") else size


def time_words(seconds: float) -> str:
    """Return a time in the largest unit that expresses it exactly."""
    for unit in ("d", "h", "m"):
        if seconds >= UNITS[unit] and seconds % UNITS[unit] == 0:
            return f"{seconds / UNITS[unit]:g} {'min' if unit == 'm' else unit}"
    return f"{seconds:g} s"


def _halts(abort: Json) -> str:
    sample, sure = abort["min_sample"], 100 * abort["confidence"]
    return (
        f"above {abort['max_failed_percent']:g} % failed, {sure:g} % sure, judged from {counted(sample, 'device')} on"
    )


def _canary(canary: Json) -> str:
    return f"{canary['per_accelerator']} of each kind of accelerators first, watched for {time_words(canary['soak_s'])}"


def _retries(retries: Json) -> str:
    if not retries["limit"]:
        return "none"
    return f"{retries['limit']} for a device that failed, after {time_words(retries['backoff_s'])} and then longer"


def _window(window: Json) -> str:
    days: Iterable[Any] = window["days"]
    return f"{', '.join(map(str, days))} {window['start']}-{window['end']} ({window['zone']})"
