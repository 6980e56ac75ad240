"""Health report of this device for a remote operator: facts, and findings with remedies."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway import __version__
from gateway.common.domain.python310 import from_iso
from gateway.device.agent.answers import plain
from gateway.device.agent.clock import synchronised, system_now
from gateway.device.agent.report.report import BEHIND, HELD, IN_STEP, UPDATING, document
from gateway.device.agent.report.telemetry import ReportInput
from gateway.device.store.spool_rows import Usage

WELL = frozenset({IN_STEP, UPDATING, HELD})
NOT_ASKED = {"problem": "the gateway does not answer on its control socket; is edge-gateway.service running?"}

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Subject:
    """Input of a health report. `keep_free_bytes`: disk space that is left to others."""

    observed: ReportInput
    spool: Usage
    folder: Path
    keep_free_bytes: int


def checkup(subject: Subject) -> Document:
    """Return the facts of `edge-agent status`, the state of the machine, and `findings` with their remedies."""
    found = {
        "agent": document(subject.observed.standing),
        "gateway": subject.observed.status or NOT_ASKED,
        "versions": versions(subject.observed),
        "machine": _machine(),
        "memory": _memory(subject.observed),
        "disk": _disk(subject.folder),
        "clock": _clock(subject.observed),
        "spool": {"records": subject.spool.records, "gaps": subject.spool.gaps, "size_bytes": subject.spool.size_bytes},
    }
    return {**found, "findings": list(findings(found, subject.keep_free_bytes))}


def vitals(observed: ReportInput) -> Document:
    """Return current temperature, power and memory."""
    return {**(observed.vitals or NOT_ASKED), "memory": _memory(observed), "load": _machine()["load"]}


def versions(observed: ReportInput) -> Document:
    """Return the versions of the agent, the gateway, Python, the kernel and libc."""
    gateway = observed.status["version"] if observed.status and "version" in observed.status else None
    return {
        "agent": __version__,
        "gateway": gateway,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
    }


def findings(found: Mapping[str, Document], keep_free_bytes: int) -> Iterator[dict[str, str]]:
    """Yield subject, problem and remedy of each finding."""
    agent, gateway, clock, disk = found["agent"], found["gateway"], found["clock"], found["disk"]
    if agent["state"] not in WELL:
        yield _finding(
            "fleet", agent["why"], "see slots and last_poll" if agent["state"] == BEHIND else "see last_poll"
        )
    if gateway.get("problem"):
        yield _finding("gateway", gateway["problem"], "systemctl status edge-gateway; journalctl -u edge-gateway")
    for model in gateway.get("models", ()):
        if model.get("reason"):
            named = f"{model.get('model')} version {model.get('version')}"
            is_degraded = str(model.get("reason")).startswith("degraded: ")
            remedy = f"edge-gateway explain {model.get('model')}" if is_degraded else "assign a corrected release"
            yield _finding("model", f"{named} is {model.get('state')}: {model.get('reason')}", remedy)
    if not clock["synchronised"]:
        yield _finding("clock", "it is not synchronised", "let systemd-timesyncd or chrony reach a time server")
    if disk.get("free_bytes", keep_free_bytes) < keep_free_bytes:
        yield _finding("disk", f"{disk['free_bytes']} bytes are free", "free some, or lower keep_free_bytes of [store]")
    if disk.get("files_free", 1) == 0:
        yield _finding("disk", "it has no room for another file", "remove some files")
    if found["spool"]["gaps"]:
        yield _finding(
            "spool",
            "telemetry was dropped",
            "check why the controller was not reachable, or raise bytes_limit of [spool]",
        )


def _finding(subject: str, problem: str, remedy: str) -> dict[str, str]:
    return {"subject": subject, "problem": plain(problem), "remedy": remedy}


def _machine() -> Document:
    load = None
    with suppress(OSError):  # the service cannot read /proc/loadavg
        load = [round(value, 2) for value in os.getloadavg()]
    return {
        "arch": platform.machine(),
        "cpus": os.cpu_count(),
        "load": load,
        "uptime_s": round(time.clock_gettime(time.CLOCK_BOOTTIME)),
    }


def _memory(observed: ReportInput) -> Document:
    """Return sizes of memory. `available_bytes` is the gateway's: the agent's service cannot read /proc/meminfo."""
    page = os.sysconf("SC_PAGE_SIZE")
    status, vitals = observed.status or {}, observed.vitals or {}
    return {
        "total_bytes": os.sysconf("SC_PHYS_PAGES") * page,
        "available_bytes": vitals.get("memory_available_bytes"),
        "gateway_bytes": status.get("rss_bytes"),
    }


def _disk(folder: Path) -> Document:
    try:
        disk = os.statvfs(folder)
    except OSError as error:
        return {"folder": str(folder), "problem": f"cannot be read: {error.strerror or error}"}
    return {
        "folder": str(folder),
        "total_bytes": disk.f_blocks * disk.f_frsize,
        "free_bytes": disk.f_bavail * disk.f_frsize,
        "files_free": disk.f_favail,
    }


def _clock(observed: ReportInput) -> Document:
    now, floor = system_now(), observed.standing.time_floor
    behind = floor is not None and now < from_iso(floor)
    return {"now": now.isoformat(), "synchronised": synchronised(), "floor": floor, "before_floor": behind}
