"""Verb `edge-gateway cameras`: states of the gateway's cameras; `cameras check` finds what keeps one from working."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway.common.domain.errors import ConfigurationError, RequestError, UnreachableError, suggest
from gateway.common.domain.installation import HERE
from gateway.common.domain.redaction import without_secrets
from gateway.common.files.credentials import DIRECTORY, is_credential
from gateway.common.terminal.tables import mark, print_json, print_lines, print_remarks, print_table
from gateway.common.timeouts import timeout
from gateway.serving.cli import checks
from gateway.serving.cli.checks import CONNECT_S, CheckResult, ExaminedDevice, Results
from gateway.serving.cli.common import configured
from gateway.serving.cli.http_client import GatewayAddress, GatewayClient, Keys, NoListenerError, read_url
from gateway.serving.cli.remote import checked, read_object
from gateway.serving.cli.running import CONTROL, LOCAL_TIMEOUT_S, keys_of, local_addresses
from gateway.serving.cli.service_user import service_account
from gateway.serving.cli.watch_view import duration
from gateway.serving.frontends.cameras.feed import process_setup
from gateway.serving.frontends.cameras.process import CameraProcess
from gateway.serving.frontends.cameras.protocol import CameraProtocolError, CameraReport, plain_reason, read_report
from gateway.serving.frontends.cameras.settings import CameraSettings, ChildLimits, is_file
from gateway.serving.frontends.cameras.source import DEVICES

FRAME_S = 20.0
"""Time for a camera to be opened and its first frame to be decoded."""
PORTS = {"rtsp": 554, "rtsps": 322, "http": 80, "https": 443, "tcp": 0}
COLUMNS = ("camera", "model", "state", "for", "picture", "answered", "dropped", "p50 ms", "p99 ms", "MiB")
NARROW, NARROW_PLACES = 100, (0, 2, 4, 5, 6, 7)
"""Width of a terminal below which only some columns are shown."""
REFUSED = ("401", "403", "Unauthorized", "Forbidden")
"""Words of FFmpeg where a camera refuses user or password."""

Status = Mapping[str, Any]


def command(arguments: argparse.Namespace) -> int:
    """Print a table, or check cameras; return 1 if one does not work."""
    if arguments.action == "check":
        return _check(arguments)
    (place, statuses), named = _asked(arguments), arguments.camera
    shown = [each for each in statuses if named in {None, each["name"]}]
    if named and not shown:
        raise ConfigurationError(
            f"no camera is called {named!r:.80}{suggest(named, [each['name'] for each in statuses])}"
        )
    if arguments.json:
        print_json({"asked": place, "cameras": shown})
    elif shown:
        print(f"cameras of the gateway that runs at {place}\n")
        rows = [COLUMNS, *map(_row, shown)]
        if sys.stdout.isatty() and shutil.get_terminal_size().columns < NARROW:
            rows = [tuple(row[place] for place in NARROW_PLACES) for row in rows]
        print_table(rows[0], rows[1:])
        print_remarks((each["name"], "", each[key]) for each in shown for key in ("reason", "picture_problem"))
    else:
        print(f"the gateway that runs at {place} has no camera; add one: edge-gateway setup --camera URL")
    return 0 if all(each["state"] == "streaming" for each in shown) else 1


def _row(status: Status) -> tuple[str, ...]:
    since, latency, dropped = status["since"], status["latency_ms"], status["dropped"]
    size = f"{status['width']} × {status['height']} {status['codec']}" if status["width"] else ""
    rates = f"{status['answered_per_s']:.1f} of {status['source_per_s']:.1f}/s"
    lost = ", ".join(f"{count:,} {reason.lower()}" for reason, count in dropped.items()) or "0"
    times = ("" if latency[key] is None else f"{latency[key]:.1f}" for key in ("p50", "p99"))
    lasted = duration(max(0.0, time.time() - since)) if since else ""
    memory = f"{status['rss_bytes'] / checks.MIB:.0f}"
    return (status["name"], status["model"], status["state"], lasted, size, rates, lost, *times, memory)


# ---- check -----------------------------------------------------------------------------------------------------------
def check_cameras(device: ExaminedDevice) -> Results:
    """Examine each camera: as the running gateway reports it, else from the package to the first frame."""
    cameras = device.configuration.camera
    statuses = _statuses(device.arguments) if cameras else {}
    for camera in cameras:
        yield CameraCheck(camera, device, statuses.get(camera.name)).result()
    if not cameras:
        yield CheckResult("cameras", None, "no camera is configured")


class CameraCheck:
    """Examination of one camera. `status`: what the running gateway reports of it, None without one."""

    def __init__(self, camera: CameraSettings, device: ExaminedDevice, status: Status | None = None) -> None:
        self._camera, self._device, self._status = camera, device, status

    def result(self) -> CheckResult:
        """Return the first problem, or that it works."""
        steps = (self.reported, self._package, self._credential, self.address, self.frame)
        found = next(filter(None, (step() for step in steps)))
        return replace(found, subject=f"camera {self._camera.name}")

    def reported(self) -> CheckResult | None:
        """Return what the running gateway reports of a camera whose frames arrive; None for others."""
        status = self._status
        if status is None or status["state"] not in {"streaming", "no_model"}:
            return None
        reason = status["reason"]
        if status["state"] == "no_model":
            return CheckResult("", False, reason, f"edge-gateway explain {self._camera.model} (EG-707)")
        rates = f"{status['source_per_s']:.1f} frames a second, {status['answered_per_s']:.1f} answered"
        seen = f"{status['width']} × {status['height']} {status['codec']}, {rates}"
        if problem := status["picture_problem"]:
            return checks.refused("", ConfigurationError(problem))
        return CheckResult("", not reason or None, f"{seen}; last problem: {reason}" if reason else seen)

    @staticmethod
    def _package() -> CheckResult | None:
        if importlib.util.find_spec("av") is not None:
            return None
        remedy = f"{HERE.adding('camera')}, and restart the gateway (EG-702)"
        return CheckResult("", False, "the Python package av (PyAV, with FFmpeg) is not installed", remedy)

    def _credential(self) -> CheckResult | None:
        camera = self._camera
        if DIRECTORY not in os.environ and is_credential(camera.credential):
            return CheckResult("", None, "its password is a credential of the unit (LoadCredential=), not read here")
        try:
            process_setup(camera, ChildLimits())
        except PermissionError:
            return CheckResult("", None, f"{camera.credential}: {checks.AS_ROOT}")
        except (ConfigurationError, OSError) as error:
            remedy = f"write USER:PASSWORD into the first line of {camera.credential} (EG-705)"
            return CheckResult("", False, str(error), remedy)
        return None

    def address(self) -> CheckResult | None:
        """Return why its address cannot be reached; None if it can be."""
        url = self._camera.url
        if is_file(url) or url.startswith(DEVICES):
            return self._local(Path(url))
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or PORTS.get(parts.scheme, 0)
        try:
            socket.getaddrinfo(host, port)
            if parts.scheme != "udp":
                socket.create_connection((host, port), CONNECT_S).close()
        except (socket.gaierror, UnicodeError) as error:
            return CheckResult("", False, f"the name {host} is not found: {error}", "correct url or the DNS (EG-706)")
        except OSError as error:
            what = f"{host} does not accept connections at port {port}: {error.strerror or error}"
            return CheckResult("", False, what, f"switch it on, correct url, or open its port: ping {host} (EG-704)")
        return None

    def _local(self, path: Path) -> CheckResult | None:
        allowed, account = checks.may_open(self._device, str(path)), self._device.account
        if not os.path.exists(path):  # noqa: PTH110  False for any name
            return CheckResult(
                "", False, f"{path} is not there", f"plug it in, or correct url: ls {path.parent} (EG-704)"
            )
        if allowed is False and account is not None:
            remedy = f"sudo usermod -aG $(stat -c %G {path}) {account.name}, and restart the gateway (EG-404)"
            return CheckResult("", False, f"the service's user {account.name} may not open {path}", remedy)
        return None

    def frame(self) -> CheckResult:
        """Return why the gateway has lost it, else whether a process of its own brings a frame."""
        status, account = self._status, self._device.account
        if status is not None:
            reason = status["reason"].partition("; ")[0] or f"the gateway reports it as {status['state']}"
            ok = None if status["state"] == "connecting" and not status["reason"] else False
            return CheckResult("", ok, f"{status['state']}: {reason}", remedy_of(reason, self._camera))
        if os.geteuid() == 0 and account is not None and account.uid != 0:
            again = f"sudo -u {account.name} edge-gateway cameras check {self._camera.name}"
            return CheckResult("", None, f"its address answers; root decodes no video of others, see with: {again}")
        try:
            report = asyncio.run(_first_report(self._camera))
        except TimeoutError:
            reason = f"no frame came within {FRAME_S:g} s"
        except (OSError, ConfigurationError, CameraProtocolError) as error:
            reason = str(error)
        else:
            if report.kind == "opened":
                return CheckResult("", True, f"{report.width} × {report.height} {report.codec}")
            reason = without_secrets(plain_reason(report.reason)).partition("; ")[0]
        return CheckResult("", False, reason, remedy_of(reason, self._camera))


def remedy_of(reason: str, camera: CameraSettings) -> str:
    """Return what to do about a camera that was lost for a reason."""
    if any(word in reason for word in REFUSED):
        named = camera.credential or "a file with USER:PASSWORD, which [[camera]] credential names"
        return f"correct {named}; some cameras lock a user for minutes after wrong passwords (EG-705)"
    return f"check the path, and that no other program uses it: ffprobe {camera.shown_url} (EG-704)"


async def _first_report(camera: CameraSettings) -> CameraReport:
    """Return what a process of this camera, as the gateway starts it, reports first. Raises as `CameraProcess`."""
    process = CameraProcess(process_setup(camera, ChildLimits()))
    try:
        async with timeout(FRAME_S):
            while True:
                message, _ = await process.receive()
                report = read_report(message) if message else CameraReport("lost", reason="its process ended")
                if report.kind in {"opened", "lost", "stalled"}:
                    return report
    finally:
        await process.end(CONNECT_S)


def _statuses(arguments: argparse.Namespace) -> dict[str, Status]:
    """Return the documents of the gateway that runs, by name; {} if there is none that tells."""
    try:
        return {each["name"]: each for each in _asked(arguments)[1]}
    except (UnreachableError, RequestError):
        return {}


def _asked(arguments: argparse.Namespace) -> tuple[str, list[dict[str, Any]]]:
    """Return where a gateway answers, and its cameras: over HTTP, else over its control socket, which needs no token.

    Raises UnreachableError, and RequestError if it refuses.
    """
    config, problems = configured(arguments), list[Exception]()
    control = GatewayAddress(unix=config.control.address.path if config.control.address else str(CONTROL))
    http = [(read_url(arguments.url), keys_of(arguments))] if arguments.url else local_addresses(config, arguments)
    for place, keys, path in [*((*each, "/v2/cameras") for each in http), (control, Keys(), "/v1/cameras")]:
        try:
            if not (arguments.url and place is control):
                with GatewayClient(place, keys, LOCAL_TIMEOUT_S) as client, checked(place):
                    return str(place), read_object(*client.exchange("GET", path))["cameras"]
        except (UnreachableError, RequestError) as error:
            problems.append(error)
    raise next((each for each in problems if not isinstance(each, NoListenerError)), problems[0])


def _check(arguments: argparse.Namespace) -> int:
    """Check the named camera or URL, or all cameras of the configuration."""
    arguments.state = None
    device = ExaminedDevice(arguments, config := configured(arguments), service_account(None)[0])
    named, statuses = arguments.camera, {}
    if named and ("://" in named or named.startswith("/")):
        chosen: Sequence[CameraSettings] = (CameraSettings("check", named, "none"),)
    else:
        chosen = [each for each in config.camera if named in {None, each.name}]
        if not chosen:
            close = suggest(named or "", [each.name for each in config.camera])
            problem = f"no camera is called {named!r:.80}{close}" if named else "no camera is configured"
            raise ConfigurationError(f"{problem}; name one, or a URL: edge-gateway cameras check rtsp://CAMERA/stream")
        statuses = _statuses(arguments)
    found = [CameraCheck(each, device, statuses.get(each.name)).result() for each in chosen]
    if arguments.json:
        print_json({"checks": [{**asdict(one), "code": one.code or None} for one in found]})
    for one in () if arguments.json else found:
        remedy = [f"mend it: {one.remedy}"] if one.ok is False else []
        print_lines([f"{mark(one.ok)} {one.subject}: {one.detail}", *remedy])
    return 1 if any(one.ok is False for one in found) else 0
