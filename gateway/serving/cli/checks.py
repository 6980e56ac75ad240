"""Checks of `edge-gateway doctor`, in the order in which the service needs what they examine. Nothing is changed."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import socket
import ssl
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
from gateway.common.domain.access import Address
from gateway.common.domain.errors import ConfigurationError, RequestError, UnreachableError
from gateway.common.domain.python310 import SAFE_PATH, from_iso
from gateway.common.domain.release import NO_VERSION, Release
from gateway.common.files.credentials import DIRECTORY, is_credential
from gateway.common.memory import available_bytes
from gateway.common.store.errors import StoreError
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
    models_folder,
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
CRASHES = 3
"""Restarts of a service that does not stay up, from which it is said to crash again and again."""
CERTIFICATE_DAYS = 14
"""Days before the end of a certificate from which it is a finding."""
AGENT_STORE = Path("/var/lib/edge-agent")
AGENT_IS_WELL = frozenset({"in-step", "updating", "held", "unassigned", "new", "waiting"})
AS_ROOT = "not visible to this user; see with: sudo edge-gateway doctor"
_CODE = re.compile(r"EG-\d{3}")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check. `ok` None: it could not be examined, or there is nothing to examine. `rung`: its place."""

    rung: str
    subject: str
    ok: bool | None
    detail: str
    remedy: str = ""

    @property
    def code(self) -> str:
        """Return the code of the error ("": it has none)."""
        found = _CODE.search(f"{self.remedy} {self.detail}")
        return found[0] if found else ""


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


def bounded(rung: str, limit_s: float, check: Callable[[], Iterator[CheckResult]]) -> list[CheckResult]:
    """Return the results of a check. One that exceeds its deadline is a finding; its thread is left to itself."""
    found: list[CheckResult] = []

    def carry_out() -> None:
        try:
            found.extend(check())
        except Exception as error:  # noqa: BLE001  one defect must not hide what the other checks find
            known = isinstance(error, ConfigurationError | RequestError | StoreError)
            found.append(CheckResult(rung, rung, None, f"not examined: {error if known else repr(error)}"))

    thread = threading.Thread(target=carry_out, name=f"doctor-{rung}", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        late = f"no answer within {limit_s:g} s"
        return [*found, CheckResult(rung, rung, False, late, "see what hangs: sudo dmesg | tail -n 20 (EG-211)")]
    return found


def check_unit(device: ExaminedDevice) -> Iterator[CheckResult]:
    """Examine whether the service is installed, runs, and stays up."""
    device.service = service = unit_properties(UNIT)
    if not service:
        yield CheckResult("unit", UNIT, None, "systemd does not run here (a container?)")
        return
    state, restarts = service.get("ActiveState", ""), int(service.get("NRestarts") or 0)
    why = service.get("StatusText") or f"result {service.get('Result')}, exit status {service.get('ExecMainStatus')}"
    up_s = time.monotonic() - int(service.get("ActiveEnterTimestampMonotonic") or 0) / 1e6
    if service.get("LoadState") == "not-found":
        yield CheckResult("unit", UNIT, None, "it is not installed; edge-gateway run serves until it is ended")
    elif restarts >= CRASHES and (state != "active" or up_s < 60):
        what = f"it has restarted {restarts} times and does not stay up: {why}"
        yield CheckResult("unit", UNIT, False, what, "sudo journalctl -u edge-gateway -n 30 --no-pager (EG-207)")
    elif state == "failed" and service.get("ExecMainStatus") == "2":
        yield CheckResult(
            "unit", UNIT, False, f"its configuration is refused: {why}", "sudo edge-gateway config check (EG-206)"
        )
    elif state in {"failed", "inactive"}:
        remedy = "sudo systemctl enable --now edge-gateway, then systemctl status edge-gateway (EG-205)"
        yield CheckResult("unit", UNIT, False, f"it is {state}: {why}", remedy)
    else:
        yield CheckResult("unit", UNIT, True, f"{state}, {service.get('UnitFileState')}, {restarts} restarts")


def unit_properties(unit: str) -> dict[str, str]:
    """Return properties of a unit as systemd reports them, {} where systemd does not run."""
    wanted = (
        "LoadState,ActiveState,SubState,UnitFileState,NRestarts,Result,ExecMainStatus,StatusText,MemoryMax,"
        "ActiveEnterTimestampMonotonic"
    )
    if not Path("/run/systemd/system").is_dir():
        return {}
    done = command_output(["systemctl", "show", unit, f"--property={wanted}"])
    return dict(line.split("=", 1) for line in done.splitlines() if "=" in line)


def command_output(command: list[str]) -> str:
    """Return the output of a command, "" if it is absent, fails to start or takes longer than COMMAND_S."""
    program = shutil.which(command[0])
    try:
        done = subprocess.run(
            [program or command[0], *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


def check_configuration(device: ExaminedDevice) -> Iterator[CheckResult]:
    """Read the configuration with its files of credentials, as a start of the service does."""
    try:
        device.config = config = configured(device.arguments)
        where = config.file or "the defaults"
        unread = any(isinstance(error, PermissionError) for error in _unreadable(config))
        if unread:
            yield CheckResult("configuration", where, None, f"it is valid; its files of secrets are {AS_ROOT}")
        else:
            check_listeners(config, read_security(config))
            yield CheckResult("configuration", where, True, "valid")
        for setting, problem in exposed_secrets(config).items():
            yield CheckResult("configuration", setting, False, *problem)
    except ConfigurationError as error:
        yield CheckResult("configuration", error.file or "configuration", False, *split(str(error)))


def split(sentence: str) -> tuple[str, str]:
    """Return a problem and its remedy: what follows the last semicolon."""
    problem, _, remedy = sentence.rpartition("; ")
    return (problem, remedy) if problem else (sentence, "")


def _unreadable(config: Config) -> Iterator[OSError]:
    for name in (config.auth.tokens_file, config.tls.cert, config.tls.key, config.tls.client_ca):
        if name and not is_credential(name):
            try:
                Path(name).open("rb").close()
            except OSError as error:
                yield error


def check_permissions(device: ExaminedDevice) -> Iterator[CheckResult]:
    """Examine what the service's user may open: files that the configuration names, and device nodes by its groups."""
    try:
        device.account, device.unit = service_account(None)
    except ConfigurationError as error:
        yield CheckResult("permissions", "user", False, *split(str(error)))
        return
    found = False
    hidden = device.unit.hidden if device.unit else ()
    for setting, denial in denials(device.configuration, device.account, device.state, hidden):
        unseen = "could not be judged" in denial.problem
        found = found or not unseen
        yield CheckResult("permissions", setting, None if unseen else False, denial.problem, denial.remedy)
    if not found:
        yield CheckResult(
            "permissions", f"user {device.account.name}", True, "may use the files that the configuration names"
        )


def check_clock(_device: ExaminedDevice) -> Iterator[CheckResult]:
    """Examine the clock: results carry its time, and certificates and signatures are judged by it."""
    now, synchronised = datetime.now(timezone.utc), clock_synchronised()
    if now < datetime.fromisoformat(RELEASED).replace(tzinfo=timezone.utc):
        what = f"it shows {now:%F %H:%M} UTC, before this version was made ({RELEASED})"
        yield CheckResult(
            "clock", "clock", False, what, "sudo timedatectl set-ntp true, or set it: sudo date -s (EG-208)"
        )
    elif synchronised is False:
        remedy = "sudo timedatectl set-ntp true; in a container: on its host (EG-208)"
        yield CheckResult("clock", "clock", False, "nothing synchronises it with a time server", remedy)
    else:
        yield CheckResult("clock", "clock", synchronised, f"{now:%F %H:%M} UTC")


def check_disk(device: ExaminedDevice) -> Iterator[CheckResult]:
    """Examine room and mode of the disks that the gateway and the agent write to."""
    folders = {"state": device.state}
    if device.config and device.config.fleet.store:
        folders["fleet.store"] = device.config.fleet.folder
    for subject, folder in folders.items():
        there = next((path for path in (folder, *folder.parents) if os.access(path, os.F_OK)), Path("/"))
        disk = os.statvfs(there)
        free = disk.f_bavail * disk.f_frsize // MIB
        if disk.f_flag & os.ST_RDONLY:
            remedy = f"sudo mount -o remount,rw $(findmnt -no TARGET -T {there}), and see sudo dmesg (EG-210)"
            yield CheckResult("disk", subject, False, f"{folder} is on a file system that is read-only", remedy)
        elif free < LEAST_FREE_MIB or (disk.f_files and not disk.f_favail):
            what = f"{folder}: {free} MiB and {disk.f_favail} files are free"
            yield CheckResult("disk", subject, False, what, f"free some: sudo du -xhd1 {there} | sort -h (EG-209)")
        else:
            yield CheckResult("disk", subject, True, f"{folder}: {free} MiB free")


def check_memory(device: ExaminedDevice) -> Iterator[CheckResult]:
    """Compare the bound of the gateway's memory with the files of its models."""
    config = device.configuration
    maximum = device.service.get("MemoryMax", "")
    group = int(maximum) if maximum.isdecimal() else None
    bound = assembly.data_limit_bytes(config, psutil.virtual_memory().total, group) // MIB
    smallest = sum(
        min(sum(artifact.size_bytes for artifact in variant.artifacts) for variant in release.manifest.variants)
        for release in asyncio.run(releases_here(config))
        if release.manifest
    )
    detail = f"{available_bytes() // MIB} MiB available, bound {bound} MiB, smallest variants {smallest // MIB} MiB"
    remedy = "remove models, or raise [gateway] memory_mib and MemoryMax= of the unit (EG-212)"
    enough = smallest // MIB < bound
    yield CheckResult("memory", "models", enough, detail, "" if enough else remedy)


def check_ports(device: ExaminedDevice) -> Iterator[CheckResult]:
    """Examine which process listens at each configured port."""
    config = device.configuration
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        yield CheckResult("ports", "ports", None, AS_ROOT)
        return
    found = [(*one.laddr, one.pid) for one in connections if one.status == psutil.CONN_LISTEN]
    for name, address in _tcp(config):
        owners = [pid for host, port, pid in found if port == address.port and _meets(host, address)]
        pids = {pid for pid in owners if pid}
        if not owners:
            yield CheckResult("ports", name, None, f"nothing listens at {address}")
        elif not pids:
            yield CheckResult("ports", name, None, f"{address} is in use; the process is {AS_ROOT}")
        for pid in pids:
            program, ours = _program(pid)
            remedy = f"sudo systemctl stop {program}, or set another address in [{name}] listen (EG-201)"
            what = f"{address} belongs to process {pid} ({program})"
            yield CheckResult("ports", name, ours, what, "" if ours else remedy)


def _tcp(config: Config) -> Iterator[tuple[str, Address]]:
    for name, addresses in (("grpc", config.grpc_listen), ("http", config.http_listen)):
        yield from ((name, address) for address in addresses if not address.path and address.port)


def _meets(host: str, address: Address) -> bool:
    return bool({host, address.host} & {"0.0.0.0", "::", "*"}) or address.host in {host, "localhost"}  # noqa: S104


def _program(pid: int) -> tuple[str, bool]:
    """Return a process's name, and whether it is a gateway."""
    try:
        process = psutil.Process(pid)
        words = process.cmdline()
        ours = "gateway" in words or any(Path(word).name == "edge-gateway" for word in words[:3])
        return process.name(), ours
    except psutil.Error:
        return "a process that has ended", True


def check_listeners_answer(device: ExaminedDevice) -> Iterator[CheckResult]:
    """Ask the running gateway for its models, and connect to its gRPC ports."""
    is_up = device.service.get("ActiveState") == "active"
    try:
        device.running = running = ask_running(device.configuration, device.arguments)
    except UnreachableError as error:
        wants_token = "UNAUTHENTICATED" in str(error) or "DENIED" in str(error)
        problem = "a gateway answers and wants a token: --token-file FILE" if wants_token else str(error)
        remedy = "" if wants_token else "sudo ss -ltnp, which names the process that listens there (EG-204)"
        yield CheckResult(
            "listeners", "http", None if wants_token else False, problem.partition("; or look")[0], remedy
        )
        return
    if not running.where:
        remedy = "sudo journalctl -u edge-gateway -n 30 --no-pager (EG-204)" if is_up else ""
        yield CheckResult("listeners", "http", False if is_up else None, running.why_not, remedy)
        return
    yield CheckResult("listeners", "http", True, f"a gateway answers at {running.where}")
    for name, address in _tcp(device.configuration):
        if name == "grpc":
            try:
                socket.create_connection((ANYWHERE.get(address.host, address.host), address.port), CONNECT_S).close()
                yield CheckResult("listeners", name, True, f"accepts connections at {address}")
            except OSError as error:
                remedy = "systemctl cat edge-gateway: its --grpc replaces [grpc] listen; then restart it (EG-204)"
                yield CheckResult("listeners", name, False, f"{address}: {error.strerror or error}", remedy)


def check_brokers(device: ExaminedDevice) -> Iterator[CheckResult]:
    """Connect to each MQTT broker, and log in under a client id of its own. Nothing is published or subscribed."""
    config = device.configuration
    for name, settings in mqtt_brokers(config).items():
        broker, subject = broker_of(settings.url), f"broker {name}"
        files = (settings.username_file, settings.password_file, settings.ca, settings.cert, settings.key)
        try:
            socket.create_connection((broker.host, broker.port), CONNECT_S).close()
        except (OSError, UnicodeError) as error:
            unknown = isinstance(error, socket.gaierror | UnicodeError)
            remedy = (
                "correct the name, or the device's DNS (EG-601)" if unknown else "start it, or open its port (EG-602)"
            )
            what = f"{table_of(name)}.url: {broker.host} port {broker.port}: {error}"
            yield CheckResult(
                "broker", subject, False, what, f"{remedy}; the gateway tries it again and serves the rest"
            )
            continue
        yield CheckResult("broker", subject, True, f"{broker.host} accepts connections at port {broker.port}")
        if DIRECTORY not in os.environ and any(is_credential(file or "") for file in files):
            yield CheckResult("broker", f"login at {name}", None, "its credentials are the unit's (LoadCredential=)")
            continue
        try:
            asyncio.run(_log_in(name, settings, f"{gateway_id(config)}-doctor-{os.getpid()}"))
            yield CheckResult("broker", f"login at {name}", True, "accepted" + ", over TLS" * broker.secure)
        except ConfigurationError as error:
            unread = os.geteuid() != 0 and "Permission denied" in str(error)
            remedy = "correct user, password or TLS files in the configuration (EG-603)"
            yield CheckResult(
                "broker", f"login at {name}", None if unread else False, str(error), AS_ROOT if unread else remedy
            )


async def _log_in(name: str, settings: MqttSettings, client_id: str) -> None:
    hasty = replace(settings, connect_timeout_s=CONNECT_S)
    async with subscribed(NamedBroker(name, hasty), "doctor", client_id, (), lambda _: None):
        pass


def check_agent(_device: ExaminedDevice) -> Iterator[CheckResult]:
    """Ask the update agent for its state, if this device belongs to a fleet."""
    try:
        AGENT_STORE.joinpath("device.json").stat()
    except PermissionError:
        yield CheckResult("agent", "fleet", None, AS_ROOT)
        return
    except OSError:
        yield CheckResult("agent", "fleet", None, "this device belongs to no fleet")
        return
    service = unit_properties("edge-agent.service")
    if service and service.get("ActiveState") != "active":
        what = f"edge-agent.service is {service.get('ActiveState')}"
        yield CheckResult("agent", "service", False, what, "sudo systemctl enable --now edge-agent (EG-802)")
    command = [sys.executable, SAFE_PATH, "-m", "gateway.device.agent", "status", "--json", "--state", str(AGENT_STORE)]
    output = command_output(command)
    try:
        status = json.loads(output)
    except ValueError:
        what = f"edge-agent status: {' '.join(output.split())[-300:] or 'no answer'}"
        yield CheckResult("agent", "store", False, what, "sudo edge-agent status (EG-801)")
        return
    yield from agent_checks(status, datetime.now(timezone.utc))


def agent_checks(status: Mapping[str, Any], now: datetime) -> Iterator[CheckResult]:
    """Judge the document of `edge-agent status --json`: state, last poll, report, end of the certificate."""
    poll, link = status["last_poll"] or {}, status["controller"] or {}
    well = status["state"] in AGENT_IS_WELL
    detail = f"{status['state']}: {status['why']}; last poll {poll.get('at') or 'never'}"
    yield CheckResult("agent", "state", well, detail, "" if well else "sudo edge-agent sync (EG-803)")
    if link:
        problem = link.get("problem", "")
        remedy = "sudo journalctl -u edge-agent -n 30 --no-pager (EG-804)" if problem else ""
        yield CheckResult("agent", "controller", not problem, problem or "the last report was accepted", remedy)
    if end := link.get("certificate_expires"):
        days = (from_iso(end) - now).days
        remedy = "sudo edge-agent enrol URL --token-file FILE, with a new token of the fleet (EG-805)"
        valid = days >= 0
        yield CheckResult("agent", "certificate", valid, f"expires {end} ({days} days)", "" if valid else remedy)


def check_certificates(device: ExaminedDevice) -> Iterator[CheckResult]:
    """Examine ends of certificates, and that each matches its key."""
    config = device.configuration
    pairs = {"tls.cert": (config.tls.cert, config.tls.key)}
    pairs |= {f"{table_of(name)}.cert": (each.cert, each.key) for name, each in mqtt_brokers(config).items()}
    named = {setting: pair for setting, (cert, key) in pairs.items() if cert and key and (pair := (cert, key))}
    for setting, (cert, key) in named.items():
        if is_credential(cert) or is_credential(key) or not os.access(key, os.R_OK):
            yield CheckResult("certificates", setting, None, f"{cert}: its key is {AS_ROOT}")
            continue
        yield certificate_check(setting, cert, key)
    if not named:
        yield CheckResult("certificates", "certificates", None, "none is configured")


def certificate_check(setting: str, cert: str, key: str) -> CheckResult:
    """Return the end of a certificate. A handshake in memory with itself as authority tells it, and that it matches."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    renew = f"renew {cert} and its key, then sudo systemctl reload edge-gateway (EG-109)"
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        server.load_cert_chain(cert, key, password="")
        client.load_verify_locations(cert)
        ends = (
            client.wrap_bio(to_client, to_server),
            server.wrap_bio(to_server, to_client, server_side=True),
        )
        for end in ends * 3:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLCertVerificationError as error:
        return CheckResult("certificates", setting, False, f"{cert}: {error.verify_message}", renew)
    except (OSError, ValueError) as error:
        return CheckResult("certificates", setting, False, f"{cert} and {key}: {error}", renew)
    after = str((ends[0].getpeercert() or {}).get("notAfter", ""))
    days = int((ssl.cert_time_to_seconds(after) - time.time()) // 86400)
    valid = days >= CERTIFICATE_DAYS
    return CheckResult("certificates", setting, valid, f"{cert} expires {after} ({days} days)", "" if valid else renew)


def check_models(device: ExaminedDevice) -> Iterator[CheckResult]:
    """Report models on the disk that are refused, and versions of the running gateway that do not serve."""
    config = device.configuration
    try:
        releases = asyncio.run(releases_here(config))
    except ConfigurationError as error:
        yield CheckResult("models", "models", False, *split(str(error)))
        return
    for release in releases:
        if release.problem:
            yield _refused(release)
    for one in device.running.models if device.running else ():
        if one.state != "READY" and one.reason:
            subject = f"model {one.name} version {one.version}"
            loading = "loading" in one.reason.lower() or one.state == "LOADING"
            detail = f"the running gateway: {one.state}: {one.reason}"
            yield CheckResult(
                "models", subject, None if loading else False, detail, f"edge-gateway explain {one.name} (EG-308)"
            )
    served = [release for release in releases if not release.problem]
    yield CheckResult(
        "models", str(models_folder(config)), bool(served) or None, f"{len(served)} releases are complete"
    )


def _refused(release: Release) -> CheckResult:
    version = "" if release.version in {"", NO_VERSION} else f" version {release.version}"
    remedy = "do what the problem says, or remove the files"
    return CheckResult("models", f"model {release.name}{version}", False, release.problem, remedy)


def judged_node(device: ExaminedDevice, path: str) -> bool | None:
    """Return whether the service's user may open a device node; None if it is the caller, or this is unknown."""
    if device.unit is None or device.account is None or device.account.uid == os.geteuid():
        return None
    try:
        node = Path(path).stat()
    except OSError:
        return None
    named = PathNode(path, node.st_mode, node.st_uid, node.st_gid)
    return may(device.account, named, READ | WRITE)
