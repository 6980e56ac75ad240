"""Attacks on a running daemon: their cost, and their effect on well-behaved clients and the watchdog.

An attack is a function `(Target, ends_s) -> bytes sent` that runs in a process of its own. The well-behaved clients run
in another process (`good_client`). Loopback only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from typing import Self

import onnx.parser
import psutil

from tests.simulators.authority import Authority
from tests.simulators.daemon import ANYWHERE, QUIET, ROOT, SHORT_TRIALS, Daemon, DaemonEndedError, running

GRAPHS: Mapping[str, str] = {"small": "(float[1,64] x) => (float[1,64] y) { y = Neg(x) }"}
"""Models that every attacked daemon serves: an input of 256 bytes."""
HEAD = '<ir_version: 8, opset_import: ["": 17]> '
WATCHDOG = {"WATCHDOG_USEC": "1000000"}
"""Two pings a second."""
WATCHDOG_GAP_S = 2.0
"""Longest permitted time between two watchdog pings."""
LINK_BYTES_PER_S = 12_500_000.0
"""Capacity of a link of 100 Mbit/s, for all processes of an attack together."""
QUIET_S = 2.0
"""Time before and after an attack."""
SHORT_S = 3.0
"""Longest attack of a default run of the tests; `make test-long` runs each for its whole time."""
SAMPLE_S = 0.05
CLIENTS = ("grpc", "grpc-fresh", "unix", "http")


TRANSPORTS = ("tcp", "tls", "unix")
"""Transports of an attacker."""


@dataclass(frozen=True, slots=True)
class Target:
    """Addresses of the attacked daemon, host:port or `unix:PATH`, and the rate of the link to it.

    `unix` is gRPC's UNIX socket. With `authority`, the file of a CA's certificate, TCP uses TLS.
    """

    grpc: str
    http: str
    unix: str
    bytes_per_s: float = LINK_BYTES_PER_S
    authority: str = ""


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack. `run` names the function, "module:function"; `processes` run it in parallel for `seconds`.

    `graphs` are further models by name, in ONNX's text form. `config` is appended to the configuration; FOLDER in it
    stands for the folder of the UNIX sockets. `clients` are the well-behaved ones, out of CLIENTS.
    """

    run: str
    seconds: float = 5.0
    processes: int = 1
    config: str = ""
    graphs: Mapping[str, str] = field(default_factory=dict)
    clients: tuple[str, ...] = CLIENTS


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of one client in one phase."""

    count: int
    p50_ms: float
    p99_ms: float
    failures: Counter[str]

    @classmethod
    def none(cls) -> Calls:
        """Return the result of no calls."""
        return cls(0, 0.0, 0.0, Counter())


@dataclass(frozen=True, slots=True)
class Observed:
    """Result of an attack: clients by name before, during and after it.

    `cpu_share`: processors that the daemon used during it. `recovery_s`: time from its end until every client had a
    call no slower than its slowest one before the attack, or None.
    """

    quiet: Mapping[str, Calls]
    attacked: Mapping[str, Calls]
    after: Mapping[str, Calls]
    sent_bytes: int
    seconds: float
    cpu_share: float
    peak_bytes: int
    grown_bytes: int
    watchdog_gap_s: float
    recovery_s: float | None

    @property
    def failures(self) -> Counter[str]:
        """Failed calls of the well-behaved clients during and after the attack."""
        return sum((calls.failures for phase in (self.attacked, self.after) for calls in phase.values()), Counter())


@dataclass(frozen=True, slots=True)
class _Call:
    client: str
    began_s: float
    took_s: float
    failure: str


def observe(attack: Attack, folder: Path, over: str = "tcp", quiet_s: float = QUIET_S) -> Observed:
    """Run one attack on a separate daemon, over one of TRANSPORTS. The daemon must end cleanly afterwards."""
    clients = [client for client in attack.clients if over != "unix" or client != "unix" or os.getuid() == 0]
    with (
        victim(attack, folder, over) as daemon,
        Watch(daemon) as watch,
        good_clients(daemon, clients) as calls_file,
    ):
        target = target_of(daemon)
        if over == "unix":
            target = replace(target, grpc=target.unix, http=_unix_address(daemon, "http"))
        time.sleep(quiet_s)
        began_s, used_s = time.monotonic(), watch.cpu_s()
        sent = _attacked(attack, target)
        ended_s = time.monotonic()
        cpu_share = (watch.cpu_s() - used_s) / (ended_s - began_s)
        time.sleep(quiet_s)
    calls = [_Call(**json.loads(line)) for line in calls_file.read_text().splitlines()]
    quiet = [call for call in calls if call.began_s + call.took_s < began_s]
    after = [call for call in calls if call.began_s >= ended_s]
    during = [call for call in calls if call not in quiet and call.began_s < ended_s]
    return Observed(
        quiet=_by_client(quiet),
        attacked=_by_client(during),
        after=_by_client(after),
        sent_bytes=sent,
        seconds=ended_s - began_s,
        cpu_share=cpu_share,
        peak_bytes=watch.peak_bytes,
        grown_bytes=watch.peak_bytes - watch.first_bytes,
        watchdog_gap_s=watch.longest_gap_s,
        recovery_s=_recovery_s(quiet, during + after, ended_s),
    )


def check_harmless(attack: Attack, folder: Path, over: str = "tcp") -> Observed:
    """Run an attack. Assert that it sent data, failed no well-behaved client and delayed no watchdog ping too long."""
    from tests.simulators.examples import IS_THOROUGH  # not in each process of attackers and clients

    if not IS_THOROUGH:
        attack = replace(attack, seconds=min(attack.seconds, SHORT_S))
    observed = observe(attack, folder, over, QUIET_S if IS_THOROUGH else QUIET_S / 4)
    assert not observed.failures, observed.failures
    assert observed.watchdog_gap_s <= WATCHDOG_GAP_S
    assert observed.sent_bytes > 0
    return observed


@contextmanager
def victim(attack: Attack, folder: Path, over: str = "tcp") -> Iterator[Daemon]:
    """Run the daemon to attack, on TCP (`over` "tls": TLS) and on UNIX sockets that every user may open."""
    models = folder / "models"
    for name, graph in {**GRAPHS, **attack.graphs}.items():
        (models / name).mkdir(parents=True)
        model = onnx.parser.parse_model(f"{HEAD}g {graph}")
        (models / name / "model.onnx").write_bytes(model.SerializeToString())
    with tempfile.TemporaryDirectory(prefix="attack-") as sockets:
        config = QUIET + SHORT_TRIALS + attack.config.replace("FOLDER", sockets)
        if over == "tls":
            files = Authority().write(_authority(folder / "gateway"))
            config += f"[tls]\ncert = '{files / 'cert.pem'}'\nkey = '{files / 'key.pem'}'\n"
        listen = {each: (ANYWHERE, f"unix:{sockets}/{each}.sock") for each in ("grpc", "http")}
        with running(folder / "gateway", models=models, config=config, environ=WATCHDOG, **listen) as daemon:
            daemon.wait_logged("listening", protocol="http")
            for place in (Path(sockets), *Path(sockets).iterdir()):
                place.chmod(0o777)
            yield daemon


def target_of(daemon: Daemon) -> Target:
    """Return the addresses of the daemon."""
    authority = _authority(daemon.folder) / "ca.pem"
    unix = _unix_address(daemon, "grpc")
    return Target(daemon.grpc, daemon.http, unix, authority=str(authority) if authority.exists() else "")


def _authority(gateway: Path) -> Path:
    """Return the folder of the daemon's certificate and its authority."""
    return gateway.with_name("tls")


def _unix_address(daemon: Daemon, protocol: str) -> str:
    return next(address for address in daemon.addresses(protocol) if address.startswith("unix:"))


class Watch:
    """Monitor of a daemon's memory and watchdog pings, on threads."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon, self._process = daemon, psutil.Process(daemon.pid)
        self._over = threading.Event()
        self._pings_s = [self._ran_s()]
        self.first_bytes = self.peak_bytes = self._process.memory_info().rss
        self._threads = [threading.Thread(target=each) for each in (self._hear, self._weigh)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._pings_s.append(self._ran_s())

    @property
    def longest_gap_s(self) -> float:
        """Longest time between two pings so far, without what its event loop waited for a processor."""
        return max(later - sooner for sooner, later in pairwise(self._pings_s))

    def cpu_s(self) -> float:
        """Return the processor time of the daemon's process so far."""
        times = self._process.cpu_times()
        return times.user + times.system

    def _ran_s(self) -> float:
        """Return the time, without that for which the daemon's event loop was ready and others ran (proc(5))."""
        waited_ns = int(Path(f"/proc/{self._daemon.pid}/schedstat").read_text().split()[1])
        return time.monotonic() - waited_ns / 1e9

    def _hear(self) -> None:
        while not self._over.is_set():
            try:
                self._daemon.wait("WATCHDOG=1", timeout_s=1.0)
            except DaemonEndedError:
                continue  # no ping within a second: the gap shows it
            self._pings_s.append(self._ran_s())

    def _weigh(self) -> None:
        while not self._over.wait(SAMPLE_S) and self._process.is_running():
            self.peak_bytes = max(self.peak_bytes, self._process.memory_info().rss)


@contextmanager
def good_clients(daemon: Daemon, clients: Sequence[str]) -> Iterator[Path]:
    """Run well-behaved clients. Yield the file of their calls, which is complete once they have ended."""
    file = daemon.folder / "calls.jsonl"
    command = [sys.executable, "-m", "tests.attack.good_client", json.dumps(asdict(target_of(daemon))), *clients]
    with file.open("wb") as calls, subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=calls) as process:
        assert process.stdin is not None
        try:
            while file.read_bytes().count(b"\n") < len(clients):  # each has called
                assert process.poll() is None
                time.sleep(SAMPLE_S)
            yield file
        finally:
            process.stdin.close()
            process.wait()


def _attacked(attack: Attack, target: Target) -> int:
    """Run the attack. Return the number of bytes sent."""
    command = [sys.executable, "-m", "tests.attack.attacker", attack.run]
    share = replace(target, bytes_per_s=target.bytes_per_s / attack.processes)
    arguments = [json.dumps(asdict(share)), str(attack.seconds)]
    processes = [
        subprocess.Popen([*command, *arguments], cwd=ROOT, stdout=subprocess.PIPE) for _ in range(attack.processes)
    ]
    said = [process.communicate()[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), attack.run
    return sum(int(each) for each in said)


def _by_client(calls: Sequence[_Call]) -> dict[str, Calls]:
    return {name: _calls([call for call in calls if call.client == name]) for name in {call.client for call in calls}}


def _calls(calls: Sequence[_Call]) -> Calls:
    took_ms = [call.took_s * 1e3 for call in calls]
    cuts = quantiles(took_ms, n=100, method="inclusive") if len(took_ms) > 1 else took_ms * 99
    return Calls(len(calls), cuts[49], cuts[98], Counter(call.failure for call in calls if call.failure))


def _recovery_s(quiet: Sequence[_Call], later: Sequence[_Call], ended_s: float) -> float | None:
    slowest = {call.client: call.took_s for call in sorted(quiet, key=lambda call: call.took_s)}
    recovered = [
        min(
            (
                max(0.0, call.began_s + call.took_s - ended_s)
                for call in later
                if call.client == client and not call.failure and call.took_s <= took_s
                and call.began_s + call.took_s >= ended_s
            ),
            default=None,
        )
        for client, took_s in slowest.items()
    ]  # fmt: skip
    return max((each for each in recovered if each is not None), default=0.0) if None not in recovered else None
