"""Checks of `edge-gateway doctor`, in the order in which the service needs what they examine. Nothing is changed."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil

from gateway import RELEASED
from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.domain.python310 import SAFE_PATH, from_iso
from gateway.common.domain.release import NO_VERSION
from gateway.common.files.credentials import DIRECTORY, is_credential
from gateway.common.memory import available_bytes
from gateway.common.terminal.kernel_clock import clock_synchronised
from gateway.serving import assembly
from gateway.serving.cli.access import denials
from gateway.serving.cli.common import configured
from gateway.serving.cli.mqtt_choice import NamedBroker
from gateway.serving.cli.running import ANYWHERE, RunningGateway, ask_running
from gateway.serving.cli.service_user import UNIT, UnitAccount, service_account
from gateway.serving.cli.subscriber import subscribed
from gateway.serving.config import (
    Config,
    check_listeners,
    exposed_secrets,
    gateway_id,
    mqtt_brokers,
    read_security,
    state_folder,
)
from gateway.serving.domain.permissions import READ, WRITE, PathNode, UserAccount, may
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings, broker_of, table_of
from gateway.serving.model_sources import releases_here

MIB = 1024 * 1024
CONNECT_S = 3.0
"""Time for one connection to a listener or broker."""
COMMAND_S = 8.0
"""Time for one command of this system, such as systemctl."""
LEAST_FREE_MIB = 128
"""Free space of a disk below which it is a finding: verdicts, compiled models and journals are written there."""
CRASHES, STEADY_S = 3, 60.0
"""Restarts of a service, and the time for which it has not stayed up since, that make a crash loop."""
CERTIFICATE_DAYS = 14
"""Days before the end of a certificate from which it is a finding."""
AGENT_STORE = Path("/var/lib/edge-agent")
AGENT_IS_WELL = frozenset({"in-step", "updating", "held", "unassigned", "new", "waiting"})
AS_ROOT = "not visible to this user; see with: sudo edge-gateway doctor"
PROPERTIES = "LoadState,ActiveState,SubState,UnitFileState,NRestarts,Result,ExecMainStatus,StatusText,MemoryMax,"
SINCE = "ActiveEnterTimestampMonotonic"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check. `ok` None: not examined, or there is nothing to examine. `rung`: the check's name."""

    subject: str
    ok: bool | None
    detail: str
    remedy: str = ""
    rung: str = ""

    @property
    def code(self) -> str:
        """Return the code of the error ("": it has none)."""
        found = re.search(r"EG-\d{3}", f"{self.remedy} {self.detail}")
        return found[0] if found else ""


Results = Iterator[CheckResult]


@dataclass(slots=True)
class ExaminedDevice:
    """Facts that several checks use. `config` is None while the configuration cannot be used."""

    arguments: argparse.Namespace
    config: Config | None = None
    account: UserAccount | None = None
    unit: UnitAccount | None = None
    service: Mapping[str, str] = field(default_factory=dict)
    running: RunningGateway | None = None

    @property
    def state(self) -> Path:
        """Return the folder of the service's state, else that of `--state` or of the caller."""
        named = self.arguments.state
        return Path(self.unit.state) if self.unit and self.unit.state and not named else state_folder(named)

    @property
    def configuration(self) -> Config:
        """Return the configuration. Raises ConfigurationError while it cannot be used."""
        if self.config is None:
            raise ConfigurationError("needs a configuration that can be used")
        return self.config


def bounded(rung: str, limit_s: float, check: Callable[[], Results]) -> list[CheckResult]:
    """Return the results of a check. One that exceeds its deadline is a finding; its thread is left to itself."""
    found: list[CheckResult] = []

    def carry_out() -> None:
        try:
            found.extend(check())
        except ConfigurationError as error:
            found.append(CheckResult(rung, None, f"not examined: {error}"))
        except Exception as error:  # noqa: BLE001  one defect must not hide what the other checks find
            found.append(CheckResult(rung, None, f"not examined: {error!r}"))

    thread = threading.Thread(target=carry_out, name=f"doctor-{rung}", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        late = f"no answer within {limit_s:g} s"
        found = [*found, CheckResult(rung, False, late, "see what hangs: sudo dmesg | tail -n 20 (EG-211)")]
    return [replace(one, rung=rung, remedy="" if one.ok else one.remedy) for one in found]


def refused(subject: str, error: Exception) -> CheckResult:
    """Return the finding of an error: its remedy is what follows the last semicolon."""
    problem, _, remedy = str(error).rpartition("; ")
    return CheckResult(subject, False, problem or remedy, remedy if problem else "")


def check_unit(device: ExaminedDevice) -> Results:
    """Examine whether the service is installed, runs, and stays up."""
    device.service = service = unit_properties(UNIT)
    state, restarts = service.get("ActiveState", ""), int(service.get("NRestarts") or 0)
    why = service.get("StatusText") or f"result {service.get('Result')}, exit status {service.get('ExecMainStatus')}"
    steady = state == "active" and time.monotonic() - int(service.get(SINCE) or 0) / 1e6 > STEADY_S
    if not service:
        yield CheckResult(UNIT, None, "systemd does not run here (a container?)")
    elif service.get("LoadState") == "not-found":
        yield CheckResult(UNIT, None, "it is not installed; edge-gateway run serves until it is ended")
    elif state == "failed" and service.get("ExecMainStatus") == "2":
        what = f"its configuration is refused: {why}"
        yield CheckResult(UNIT, False, what, "sudo edge-gateway config check (EG-206)")
    elif service.get("SubState") == "auto-restart" or (restarts >= CRASHES and not steady):
        what = f"it has restarted {restarts} times and does not stay up: {why}"
        yield CheckResult(UNIT, False, what, "sudo journalctl -u edge-gateway -n 30 --no-pager (EG-207)")
    elif state in {"failed", "inactive"}:
        yield CheckResult(UNIT, False, f"it is {state}: {why}", "sudo systemctl enable --now edge-gateway (EG-205)")
    else:
        detail = f"{state}, {service.get('UnitFileState')}, {restarts} restarts"
        yield CheckResult(UNIT, state == "active" or None, detail)


def unit_properties(unit: str) -> dict[str, str]:
    """Return properties of a unit as systemd reports them, {} where systemd does not run."""
    if not Path("/run/systemd/system").is_dir():
        return {}
    lines = command_output("systemctl", "show", unit, f"--property={PROPERTIES}{SINCE}").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def command_output(program: str, *words: str) -> str:
    """Return the output of a command, "" if it is absent, fails to start or takes longer than COMMAND_S."""
    command, errors = [shutil.which(program) or program, *words], subprocess.STDOUT
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, timeout=COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def check_configuration(device: ExaminedDevice) -> Results:
    """Read the configuration with its files of credentials, as a start of the service does."""
    try:
        device.config = config = configured(device.arguments)
        named = (config.auth.tokens_file, config.tls.cert, config.tls.key, config.tls.client_ca)
        unread = [file for file in named if file and Path(file).exists() and not os.access(file, os.R_OK)]
        if not unread:
            check_listeners(config, read_security(config))
        detail = f"it is valid; {', '.join(unread)}: {AS_ROOT}" if unread else "valid"
        yield CheckResult(config.file or "the defaults", None if unread else True, detail)
        for setting, problem in exposed_secrets(config).items():
            yield CheckResult(setting, False, *problem)
    except (ConfigurationError, PermissionError) as error:
        yield refused("configuration", error)


def check_permissions(device: ExaminedDevice) -> Results:
    """Examine what the service's user may open of what the configuration names."""
    try:
        device.account, device.unit = service_account(None)
    except ConfigurationError as error:
        yield refused("user", error)
        return
    hidden, found = device.unit.hidden if device.unit else (), False
    for setting, denial in denials(device.configuration, device.account, device.state, hidden):
        unseen = "could not be judged" in denial.problem
        found = found or not unseen
        yield CheckResult(setting, None if unseen else False, denial.problem, denial.remedy)
    if not found:
        yield CheckResult(f"user {device.account.name}", True, "may use the files that the configuration names")


def may_open(device: ExaminedDevice, path: str) -> bool | None:
    """Return whether the service's user may open a device node; None if it is the caller, or this is unknown."""
    if device.unit is None or device.account is None or device.account.uid == os.geteuid() or not os.path.exists(path):  # noqa: PTH110
        return None
    node = Path(path).stat()
    return may(device.account, PathNode(path, node.st_mode, node.st_uid, node.st_gid), READ | WRITE)


def check_clock(_device: ExaminedDevice) -> Results:
    """Examine the clock: results carry its time, and certificates and signatures are judged by it."""
    now, synchronised = datetime.now(timezone.utc), clock_synchronised()
    early = f"{now:%F}" < RELEASED
    detail = f"{now:%F %H:%M} UTC" + f", before this version was made ({RELEASED})" * early
    detail += ", and nothing synchronises it with a time server" * (synchronised is False)
    remedy = "sudo timedatectl set-ntp true; in a container: on its host (EG-208)"
    yield CheckResult("clock", False if early else synchronised, detail, remedy)


def check_disk(device: ExaminedDevice) -> Results:
    """Examine room and mode of the disks that the gateway and the agent write to."""
    folders = {"state": device.state}
    if device.config and device.config.fleet.store:
        folders["fleet.store"] = device.config.fleet.folder
    for subject, folder in folders.items():
        there = next((path for path in (folder, *folder.parents) if os.access(path, os.F_OK)), Path("/"))
        disk = os.statvfs(there)
        free = disk.f_bavail * disk.f_frsize // MIB
        if disk.f_flag & os.ST_RDONLY:
            remedy = f"sudo mount -o remount,rw $(findmnt -no TARGET -T {there}) (EG-210)"
            yield CheckResult(subject, False, f"{folder} is on a file system that is read-only", remedy)
            continue
        full = free < LEAST_FREE_MIB or bool(disk.f_files and not disk.f_favail)
        detail = f"{folder}: {free} MiB and {disk.f_favail} files are free"
        yield CheckResult(subject, not full, detail, f"sudo du -xhd1 {there} | sort -h shows what to remove (EG-209)")


def check_memory(device: ExaminedDevice) -> Results:
    """Compare the bound of the gateway's memory with the files of its models."""
    maximum, installed = unit_properties(UNIT).get("MemoryMax", ""), psutil.virtual_memory().total
    group = int(maximum) if maximum.isdecimal() else None
    bound = assembly.data_limit_bytes(device.configuration, installed, group) // MIB
    manifests = [one.manifest for one in asyncio.run(releases_here(device.configuration)) if one.manifest]
    sizes = (min(sum(file.size_bytes for file in one.artifacts) for one in each.variants) for each in manifests)
    smallest = sum(sizes) // MIB
    detail = f"{available_bytes() // MIB} MiB available, bound {bound} MiB, smallest variants {smallest} MiB"
    remedy = "remove models, or raise [gateway] memory_mib and MemoryMax= of the unit (EG-212)"
    yield CheckResult("models", smallest < bound, detail, remedy)


def check_ports(device: ExaminedDevice) -> Results:
    """Examine which process listens at each configured port."""
    connections, config = psutil.net_connections("tcp"), device.configuration
    listening = [(*one.laddr, one.pid) for one in connections if one.status == psutil.CONN_LISTEN]
    listens = {**dict.fromkeys(config.grpc_listen, "grpc"), **dict.fromkeys(config.http_listen, "http")}
    for address, name in listens.items():
        near = {"127.0.0.1", "::1"} if address.host in {"localhost", *ANYWHERE} else set[str]()
        hosts = {address.host, *ANYWHERE, *near}
        owners = {pid for host, port, pid in listening if port == address.port and host in hosts}
        if not owners:
            yield CheckResult(name, None, f"nothing listens at {address}" if address.port else f"{address}")
        for pid in owners:
            program, ours = _program(pid) if pid else (AS_ROOT, None)
            remedy = f"systemctl status {pid} names its service; stop that, or change [{name}] listen (EG-201)"
            yield CheckResult(name, ours, f"{address} belongs to process {pid or '?'} ({program})", remedy)


def _program(pid: int) -> tuple[str, bool]:
    """Return a process's name, and whether it is a gateway."""
    try:
        name, words = psutil.Process(pid).name(), psutil.Process(pid).cmdline()
    except psutil.Error:
        return "a process that has ended", True
    return name, "gateway" in words or any(Path(word).name == "edge-gateway" for word in words)


def check_listeners_answer(device: ExaminedDevice) -> Results:
    """Ask the running gateway for its models."""
    is_up = device.service.get("ActiveState") == "active"
    try:
        device.running = running = ask_running(device.configuration, device.arguments)
    except UnreachableError as error:
        wants_token = "UNAUTHENTICATED" in str(error) or "DENIED" in str(error)
        problem = "a gateway answers and wants a token: --token-file FILE" if wants_token else str(error)
        remedy = "sudo ss -ltnp, which names the process that listens there (EG-204)"
        yield CheckResult("gateway", None if wants_token else False, problem.partition("; or look")[0], remedy)
        return
    remedy = "sudo journalctl -u edge-gateway -n 30 --no-pager (EG-204)"
    ok = True if running.where else False if is_up else None
    yield CheckResult("gateway", ok, f"answers at {running.where}" if running.where else running.why_not, remedy)


def check_brokers(device: ExaminedDevice) -> Results:
    """Connect to each MQTT broker, and log in under a client id of its own. Nothing is published or subscribed."""
    config = device.configuration
    for name, settings in mqtt_brokers(config).items():
        broker, subject = broker_of(settings.url), f"broker {name}"
        try:
            socket.create_connection((broker.host, broker.port), CONNECT_S).close()
        except (OSError, UnicodeError) as error:
            unknown = isinstance(error, socket.gaierror | UnicodeError)
            remedy = "correct the name or the DNS (EG-601)" if unknown else "start it, or open its port (EG-602)"
            what = f"{table_of(name)}.url: {broker.host} port {broker.port}: {error}"
            yield CheckResult(subject, False, what, f"{remedy}; the gateway tries it again and serves the rest")
            continue
        files = (settings.username_file, settings.password_file, settings.ca, settings.cert, settings.key)
        if DIRECTORY not in os.environ and any(is_credential(file or "") for file in files):
            yield CheckResult(subject, None, "it accepts connections; its credentials are the unit's (LoadCredential=)")
            continue
        try:
            asyncio.run(_log_in(name, settings, f"{gateway_id(config)}-doctor-{os.getpid()}"))
            yield CheckResult(subject, True, f"{broker.host} accepts the login" + " over TLS" * broker.secure)
        except ConfigurationError as error:
            unread = os.geteuid() != 0 and "Permission denied" in str(error)
            remedy = "correct user, password or TLS files in the configuration (EG-603)"
            yield CheckResult(subject, None if unread else False, f"login: {error}", AS_ROOT if unread else remedy)


async def _log_in(name: str, settings: MqttSettings, client_id: str) -> None:
    hasty = NamedBroker(name, replace(settings, connect_timeout_s=CONNECT_S))
    async with subscribed(hasty, "doctor", client_id, (), lambda _: None):
        pass


def check_agent(_device: ExaminedDevice) -> Results:
    """Ask the update agent for its state, if this device belongs to a fleet."""
    if not os.access(AGENT_STORE / "device.json", os.F_OK):
        known = not AGENT_STORE.exists() or os.access(AGENT_STORE, os.X_OK)
        yield CheckResult("agent", None, "this device belongs to no fleet" if known else AS_ROOT)
        return
    state = unit_properties("edge-agent.service").get("ActiveState", "active")
    if state != "active":
        remedy = "sudo systemctl enable --now edge-agent (EG-802)"
        yield CheckResult("edge-agent.service", False, f"it is {state}", remedy)
    module = (SAFE_PATH, "-m", "gateway.device.agent", "status", "--json", "--state", str(AGENT_STORE))
    output = command_output(sys.executable, *module)
    try:
        status = json.loads(output)
    except ValueError:
        what = f"edge-agent status: {' '.join(output.split())[-300:] or 'no answer'}"
        yield CheckResult("agent", False, what, "sudo edge-agent status (EG-801)")
        return
    yield from agent_checks(status, datetime.now(timezone.utc))


def agent_checks(status: Mapping[str, Any], now: datetime) -> Results:
    """Judge the document of `edge-agent status --json`: state, last poll, report, end of the certificate."""
    poll, link = status["last_poll"] or {}, status["controller"] or {}
    detail = f"{status['state']}: {status['why']}; last poll {poll.get('at') or 'never'}"
    yield CheckResult("agent", status["state"] in AGENT_IS_WELL, detail, "sudo edge-agent sync (EG-803)")
    if problem := link.get("problem"):
        yield CheckResult("controller", False, problem, "sudo journalctl -u edge-agent -n 30 --no-pager (EG-804)")
    if end := link.get("certificate_expires"):
        remedy = "sudo edge-agent enrol URL --token-file FILE, with a new token of the fleet (EG-805)"
        yield CheckResult("certificate of the agent", from_iso(end) > now, f"expires {end}", remedy)


def check_certificates(device: ExaminedDevice) -> Results:
    """Examine ends of certificates. That they match their keys is part of the configuration and of the login."""
    named = {f"{table_of(name)}.cert": one.cert for name, one in mqtt_brokers(device.configuration).items()}
    for setting, cert in {"tls.cert": device.configuration.tls.cert, **named}.items():
        if cert and not is_credential(cert):
            yield certificate_check(setting, cert)


def certificate_check(setting: str, cert: str) -> CheckResult:
    """Return the end of a certificate, as openssl tells it: Python has no public function for that."""
    soon = f"{CERTIFICATE_DAYS * 86400}"
    said = command_output("openssl", "x509", "-in", cert, "-noout", "-enddate", "-checkend", soon)
    end = said.partition("notAfter=")[2].partition("\n")[0]
    remedy = f"renew {cert} and its key, then: sudo systemctl reload edge-gateway (EG-109)"
    detail = f"{cert} ends {end}" if end else f"{cert}: not examined: {said.strip() or 'there is no openssl'}"
    return CheckResult(setting, "will not expire" in said if end else None, detail, remedy)


def check_models(device: ExaminedDevice) -> Results:
    """Report models on the disk that are refused, and versions of the running gateway that do not serve."""
    config = device.configuration
    try:
        releases = asyncio.run(releases_here(config))
    except ConfigurationError as error:
        yield refused("models", error)
        return
    for release in releases:
        if release.problem:
            version = "" if release.version in {"", NO_VERSION} else f" version {release.version}"
            remedy = "do what the problem says, or remove the files"
            yield CheckResult(f"model {release.name}{version}", False, release.problem, remedy)
    names = {release.name for release in releases}
    for pipeline in filter(None, (release.pipeline for release in releases)):
        if absent := sorted({name for name, _ in pipeline.models} - names):
            what = f"it runs {', '.join(absent)}, which {'is' if len(absent) == 1 else 'are'} not there"
            yield CheckResult(f"pipeline {pipeline.name}", False, what, "add the models, or remove the pipeline")
    for one in device.running.models if device.running else ():
        is_degraded = one.reason.startswith("degraded: ")
        if is_degraded or (one.state != "READY" and one.reason):
            detail, ok = f"the running gateway: {one.state}: {one.reason}", None if one.state == "LOADING" else False
            remedy = f"edge-gateway explain {one.name} ({'EG-314' if is_degraded else 'EG-308'})"
            yield CheckResult(f"model {one.name} version {one.version}", ok, detail, remedy)
    complete = sum(not release.problem for release in releases)
    yield CheckResult("models", complete > 0 or None, f"{complete} releases are complete")
