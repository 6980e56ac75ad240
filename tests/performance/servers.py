"""Servers that are measured: the gateway, the plain baseline, the bare loop. Each is pinned."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.performance import cpp, networks
from tests.simulators.broker import Mosquitto
from tests.simulators.daemon import ANYWHERE, COMMAND, ROOT, SHIPPED, Daemon

OWN, PLAIN, CPP, PAHO = "own", "grpcio.aio", "C++", "paho"
SERVERS = (OWN, PLAIN, CPP)
"""The gateway, plain_aio.py, plain.cc. PAHO: plain_paho.py."""

CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, LOAD_CORE = CORES[0], CORES[-1]
WAIT_S = 30.0
TRIALS_S = 300.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
NOTHING_BEHIND_OUR_BACK = """
[gateway]
id = "bench"
[selection]
idle_before_trial_s = 3600.0
threads = 1
"""
SHARED_MEMORY = '[shared_memory]\nallowed = true\nover_tcp = true\nsocket = "{}"\n'
MEMORY_SOCKET = "memory.sock"
TLS = '[tls]\ncert = "{0}.pem"\nkey = "{0}.key"\n'
ROUTE = """
[[mqtt.route]]
name = "wrists"
topics = ["sensors/+/imu"]
sensor = "topic[1]"
model = "activity"
hop_rows = 100
qos = {qos}

[[mqtt.route]]
name = "single"
topics = ["single/+"]
sensor = "topic[1]"
model = "tiny"
qos = {qos}
"""
MANY_CONNECTIONS = """
[grpc]
max_connections = 1100
[shares]
caller_percent = 100
local_percent = 0
"""
"""One caller may have all connections."""


def model_directory(folder: Path, names: Iterable[str] = ("meter-reader", "activity", "tiny")) -> Path:
    """Copy shipped models and build the others (`networks.built`), as bare models."""
    built = networks.built()
    for name in names:
        target = folder / "models" / name
        if name in built:
            target.mkdir(parents=True)
            (target / "model.onnx").write_bytes(built[name].content)
        else:
            shutil.copytree(SHIPPED / name, target)
    return folder / "models"


def compiled(folder: Path) -> dict[str, str]:
    """Return an environment in which Python keeps byte code, in a cache of this run's own, like an installation."""
    return {"PYTHONPYCACHEPREFIX": str(folder / "pyc"), "PYTHONDONTWRITEBYTECODE": ""}


def core_busy_s(core: int) -> float:
    """Return all that a core did since boot, interrupts and stolen time included (proc_stat(5))."""
    line = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(f"cpu{core} "))
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, line.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def pinned(core: int | str) -> tuple[str, ...]:
    """Return the words before a command that keep it on one core, or on several separated by commas."""
    return ("taskset", "--cpu-list", str(core))


def said(command: list[str], core: int | str, limit_s: float, environ: Mapping[str, str] | None = None) -> str:
    """Return what a command on one core wrote. If it fails, the run ends with all that it said."""
    done = subprocess.run(
        [*pinned(core), *command], cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=limit_s
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def machine() -> str:
    """Return the processor's name and how many cores there are."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())
    return f"{model}, {os.cpu_count()} cores"


def calibration() -> str:
    """Return in words what `calibration_s` measures now."""
    return f"{calibration_s():.2f} s of processor time for a loop of 10,000,000 additions of integers in Python"


def calibration_s() -> float:
    """Return the processor time of a fixed loop on the server's core, the least of three.

    Figures of other machines can be compared by it.
    """
    loop = "import time\nx = 0\nfor i in range(10**7): x += i\nprint(time.process_time())"
    command = [sys.executable, "-S", "-c", f"def f():\n {loop.replace(chr(10), chr(10) + ' ')}\nf()"]
    return min(float(said(command, SERVER_CORE, WAIT_S)) for _ in range(3))


def chosen_variant(folder: Path, models: Path, model: str) -> str:
    """Try every variant here (verdicts are kept in `folder`/state), and say which one serves."""
    config = folder / "explain.toml"
    config.write_text(NOTHING_BEHIND_OUR_BACK)
    command = ["explain", model, "--models", str(models), "--state", str(folder / "state"), "--json"]
    command += ["--config", str(config)]
    environ = {**os.environ, **compiled(folder)}
    return str(json.loads(said([*COMMAND, *command], SERVER_CORE, TRIALS_S, environ))["chosen"])


def bare_loop(
    models: Path, model: str, variant: str, seconds: float, cores: str = f"{SERVER_CORE}"
) -> dict[str, float]:
    """Run `session.run` on one row, over and over, in a process of its own, at the same time on each of the cores."""
    words = [str(models), model, variant, str(seconds), cores]
    command = [sys.executable, "-m", "tests.performance.bare", *words]
    return dict(json.loads(said(command, cores, seconds + WAIT_S)))


@dataclass(frozen=True, slots=True)
class Server:
    """Ready server. `ready_s`: from exec to READY=1 (or, plain, to its port). `rest`: its HTTP address, or ""."""

    name: str
    pid: int
    port: int
    unix: Path
    tls: bool
    ready_s: float
    stop: Callable[[], object]
    rest: str = ""

    def cpu_s(self) -> float:
        """Return user and system time of all its threads so far, to the nanosecond (clock_getcpuclockid(3))."""
        return time.clock_gettime(~self.pid << 3 | 2)

    def memory_mib(self) -> dict[str, float]:
        """Return the resident set, and the part of it that is its own or its share (PSS)."""
        text = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        kib = dict(re.findall(r"^(Rss|Pss): +(\d+) kB$", text, re.MULTILINE))
        return {"rss_mib": int(kib["Rss"]) / 1024, "pss_mib": int(kib["Pss"]) / 1024}

    def wait_for(self, model: str) -> None:
        """Return when a model is served, whose trial may last."""
        end_s = time.monotonic() + TRIALS_S
        while True:
            with (
                suppress(urllib.error.HTTPError),
                urllib.request.urlopen(f"http://{self.rest}/v2/models/{model}/ready"),
            ):
                return
            if time.monotonic() > end_s:
                raise SystemExit(f"{model} is not served {TRIALS_S} s after the start")
            time.sleep(0.1)

    def settle(self) -> None:
        """Return when it has finished what the load left behind."""
        end_s = time.monotonic() + WAIT_S
        while time.monotonic() < end_s:
            before = self.cpu_s()
            time.sleep(0.03)
            if self.cpu_s() - before < 0.003:
                return
        raise SystemExit(f"{self.name} is still busy {WAIT_S} s after the load ended")


def start(
    name: str,
    folder: Path,
    models: Path,
    *,
    tls: Path | None = None,
    http: bool = True,
    mqtt: str = "off",
    qos: int = 1,
    cores: str = f"{SERVER_CORE}",
) -> Server:
    """Start a server of SERVERS on its core, or the gateway on several; wait until it is ready.

    `tls`: certificate and key without their suffixes.
    """
    folder.mkdir(exist_ok=True)
    if name == PAHO:
        return _plain_paho(models, int(mqtt.rpartition(":")[2]), qos)
    if name in {PLAIN, CPP}:
        return _plain(name, folder, models, tls)
    config = NOTHING_BEHIND_OUR_BACK + SHARED_MEMORY.format(folder / MEMORY_SOCKET) + MANY_CONNECTIONS
    config += (TLS.format(tls) if tls else "") + (ROUTE.format(qos=qos) if mqtt != "off" else "")
    unix = folder / "grpc.sock"
    daemon = Daemon(
        folder,
        models=models,
        state=models.parent / "state",
        config=config,
        grpc=(ANYWHERE, f"unix:{unix}"),
        http=(ANYWHERE if http else "off",),
        mqtt=mqtt,
        environ=compiled(models.parent),
        command=(*pinned(cores), *COMMAND),
    )
    began_s = time.monotonic()
    daemon.start()
    ready_s = time.monotonic() - began_s
    port = next(int(each.rpartition(":")[2]) for each in daemon.addresses("grpc") if not each.startswith("unix:"))
    rest = daemon.http if http else ""
    return Server(name, daemon.pid, port, unix, tls is not None, ready_s, daemon.stop, rest)


def _plain(name: str, folder: Path, models: Path, tls: Path | None) -> Server:
    unix = folder / "grpc.sock"
    words = [sys.executable, "-m", "tests.performance.plain_aio", str(models), "--unix", str(unix)]
    words += ["--tls", str(tls)] if tls else []
    if name == CPP:
        words = [str(cpp.plain()), str(models), str(unix)]
    command = [*pinned(SERVER_CORE), *words]
    began_s = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    said_so = process.stdout
    assert said_so is not None
    line = said_so.readline()
    if not line:
        raise SystemExit(f"{name} did not start; its words stand above")
    ready_s = time.monotonic() - began_s

    def stop() -> None:
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_S)
        said_so.close()

    return Server(name, process.pid, int(line), unix, tls is not None, ready_s, stop)


def _plain_paho(models: Path, port: int, qos: int) -> Server:
    words = [str(models / "tiny" / "model.onnx"), str(port), str(qos)]
    command = [*pinned(SERVER_CORE), sys.executable, "-m", "tests.performance.plain_paho", *words]
    process = subprocess.Popen(command, cwd=ROOT)

    def stop() -> None:
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_S)

    return Server(PAHO, process.pid, 0, Path(), False, 0.0, stop)


@contextmanager
def broker(folder: Path) -> Iterator[Mosquitto]:
    """Yield mosquitto, on the core of the load; without Nagle's algorithm, which waits for delayed acknowledgements."""
    with asyncio.Runner() as runner:
        started = Mosquitto(folder, "max_queued_messages 0\nautosave_on_changes false\nset_tcp_nodelay true")
        runner.run(started.start())
        try:
            yield started
        finally:
            runner.run(started.stop())


def golden(model: str) -> dict[str, Any]:
    """Return the golden set of a shipped model."""
    with np.load(SHIPPED / model / "1" / "golden.npz", allow_pickle=False) as arrays:
        return dict(arrays)
