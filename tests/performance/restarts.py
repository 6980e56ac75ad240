"""Time without connections while settings come into force: `python -m tests.performance.restarts [--passes N]`.

One model with kept verdicts, gRPC and HTTP, no requests. A caller connects to the UNIX socket of gRPC again and again.
Measured is the sum of the times from a connection that is refused to the next one that is accepted. Prints the machine
and its calibration, each pass, then the median.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path

from tests.performance.servers import calibration, machine
from tests.simulators.fleet_device import fleet_device
from tests.simulators.settled_device import Settled

PAUSE_S = 0.002
TIMES = {"duration_s": 0.1, "snapshot_every_s": 0.05}


class Caller(threading.Thread):
    """Caller that connects until `stop`; `refused_s`: all times from a first refusal to the next success."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address, self._stopped, self.refused_s = address.removeprefix("unix:"), threading.Event(), 0.0

    def run(self) -> None:
        """Connect again and again."""
        first_s = 0.0
        while not self._stopped.wait(PAUSE_S):
            with socket.socket(socket.AF_UNIX) as one:
                refused = one.connect_ex(self._address) != 0
            now_s = time.perf_counter()
            if refused:
                first_s = first_s or now_s
            elif first_s:
                self.refused_s, first_s = self.refused_s + now_s - first_s, 0.0

    def stop(self) -> float:
        """End; return the time."""
        self._stopped.set()
        self.join()
        return self.refused_s


def once(device: Settled, number: int) -> float:
    """Let the fleet send other settings; return the seconds without connections."""
    caller = Caller(device.daemon.grpc)
    caller.start()
    done = device.send(f"[http]\nmax_requests = {100 + number}\n")
    refused_s = caller.stop()
    if done.code:
        raise SystemExit(done.err)
    return refused_s


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--passes", type=int, default=10)
    passes = parser.parse_args().passes
    print(f"{machine()}; calibration: {calibration()}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "kept").mkdir()
        with fleet_device(place, place / "kept", kind=Settled) as device:
            device.configure(settings=TIMES)
            measured = [once(device, number) for number in range(passes)]
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    print(json.dumps({"refused_s": [round(one, 2) for one in measured]}))
    print(f"median {statistics.median(measured):.2f} s of {passes}; load average {load} on {os.cpu_count()} processors")


if __name__ == "__main__":
    main()
