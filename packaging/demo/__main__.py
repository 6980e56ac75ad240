"""`make demo`: the gateway on this machine, a camera over gRPC and forty sensors over MQTT, in under a minute.

Exit 0 only if every answer was right enough; everything it starts, it stops.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from camera import play_camera
from processes import Broker, Gateway, edge_gateway_json, free_port
from report import Summary, console, print_device, print_models, print_summary, steps
from sensors import play_sensors

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".demo" / "state"
MODELS = ("meter-reader", "activity")


def main() -> int:
    """Run the demo; 0 if every answer was right enough."""
    with ExitStack() as stack, steps() as progress:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edge-gateway-demo-")))
        inventory = progress.during("looking at this device", lambda: edge_gateway_json("probe"))
        explained = [
            progress.during(
                f"trying every variant of {model} in a throw-away process",
                lambda model=model: edge_gateway_json(
                    "explain", model, "--models", str(ROOT / "models"), "--state", str(STATE)
                ),
            )
            for model in MODELS
        ]
        broker = progress.during("starting mosquitto", lambda: stack.enter_context(Broker(folder, free_port())))
        gateway = progress.during(
            "starting the gateway",
            lambda: stack.enter_context(
                Gateway(folder, ROOT / "models", STATE, mqtt=broker.port, grpc=free_port(), http=free_port())
            ),
        )
        before = gateway.cost()
        camera = progress.counted("camera: digits as PNG over gRPC", lambda tick: play_camera(gateway.grpc, tick))
        middle = gateway.cost()
        sensors = progress.counted(
            "40 sensors: wrist motion as JSON over MQTT", lambda tick: play_sensors(broker.port, gateway.id, tick)
        )
        after = gateway.cost()
    print_device(inventory)
    print_models(explained)
    summary = Summary(camera, sensors, middle.since(before), after.since(middle), gateway.ready_s, after.memory_bytes)
    print_summary(summary)
    console.print(
        "[bold green]every answer was right enough" if summary.good else "[bold red]not good enough, see above"
    )
    return 0 if summary.good else 1


if __name__ == "__main__":
    sys.exit(main())
