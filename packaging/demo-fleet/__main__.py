"""`make demo-fleet`: a controller and three devices, two good releases, a bad one, and cameras that must not notice.

Exit 0 only if all of it happened: versions 1 and 2 reached every device in waves, version 3 failed on a device, halted
and was rolled back, and no camera's call failed. Everything it starts, it stops; Ctrl-C at any moment.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(1, str(ROOT))  # the packages, and the boards that tests/devices knows

from asking import ask_how_it_is  # noqa: E402
from cameras import Camera, Played  # noqa: E402
from children import Children  # noqa: E402
from controller import Controller, start_broker  # noqa: E402
from device import Device, Hardware  # noqa: E402
from publisher import Publisher  # noqa: E402
from rollout import EVERYWHERE, Rollout  # noqa: E402
from stage import Stage  # noqa: E402
from story import Story  # noqa: E402
from verdict import Ending, problems  # noqa: E402

HARDWARE = (
    Hardware("door-pi4", "pi4", "a Raspberry Pi 4"),
    Hardware("gate-pi5", "pi5", "a Raspberry Pi 5"),
    Hardware("dock-nuc", "intel-gpu-only", "a PC with an Intel GPU"),
)
SLOW = "reference"
"""The variant for devices without any runtime: right answers, and many times slower than the others."""


def main() -> int:
    """Run the demo; 0 if all of it happened."""
    story = Story()
    with Children() as children:
        ending = _play(children, story)
    found = problems(ending)
    for problem in found:
        story.tell("demo", problem, style="bold red")
    if not found:
        story.tell("demo", "two good releases, a bad one, and no camera noticed", style="bold green")
    return 1 if found else 0


def _play(children: Children, story: Story) -> Ending:
    story.chapter("Keys, a repository, a first release")
    publisher = Publisher(children.folder, children, story)
    publisher.begin()
    publisher.release("1")
    story.chapter("A controller, a broker, three devices")
    broker = start_broker(children.folder, children)
    controller = Controller(publisher.folder, children, story, broker)
    controller.start()
    devices = [Device(hardware, children.folder, children, broker) for hardware in HARDWARE]
    _enrol(devices, controller, story)
    stage = Stage(controller, children, story, devices)
    first = Rollout(stage).run("1", EVERYWHERE)
    cameras = [Camera(device.grpc) for device in devices]
    for camera in cameras:
        camera.start()
    story.tell("cameras", "call every gateway, without a pause from now on")
    story.chapter("Version 2: one device of each kind, then the others")
    publisher.release("2")
    second = Rollout(stage).run("2")
    story.chapter("Version 3: right answers, and far too slow")
    publisher.release("3", only=SLOW)
    third = Rollout(stage).run("3")
    third.settle("2")
    doctor = _examined(stage, third)
    story.chapter("Afterwards: each decision follows from what was recorded, and the records are whole")
    for rollout in (first, second, third):
        story.tell("operator", stage.command("rollouts", "replay", rollout.id).splitlines()[0])
    story.tell("operator", stage.command("audit", "verify").splitlines()[0])
    serving = {device.name: sorted(device.serving) for device in devices}
    played = {device.name: camera.stop() for device, camera in zip(devices, cameras, strict=True)}
    _figures(story, devices, played)
    return Ending((first, second, third), serving, played, doctor)


def _examined(stage: Stage, rollout: Rollout) -> dict[str, Any]:
    """Ask the first device that rolled back for its state, tell what it answers, and return that."""
    name = next(iter(rollout.devices("rolled_back")), HARDWARE[0].name)
    doctor = ask_how_it_is(stage, name)
    last, disk = doctor["agent"]["history"][0], doctor["disk"]["free_bytes"] / 2**30
    stage.story.tell(
        name, f"version {last['version']} was {last['state'].replace('_', ' ')}: {last['failure']['reason']}"
    )
    stage.story.tell(name, f"runs for {doctor['machine']['uptime_s']} s, {disk:.0f} GiB of its disk are free")
    for finding in doctor["findings"]:
        stage.story.tell(name, f"{finding['subject']}: {finding['problem']}; {finding['remedy']}")
    return doctor


def _enrol(devices: list[Device], controller: Controller, story: Story) -> None:
    for device in devices:
        token = controller.enrolment_token(device.name)
        story.command("edge-agent", "enrol", controller.url, "--token-file", token)
        device.enrol(controller.url, controller.authority, token)
        device.start()
    for device in devices:
        device.wait()
        story.tell(device.name, f"is {device.words} (profile {device.status['profile']}), and part of the fleet")


def _figures(story: Story, devices: list[Device], played: dict[str, Played]) -> None:
    rows = []
    for device in devices:
        one = played[device.name]
        versions = ", ".join(f"{count} by {version}" for version, count in sorted(one.versions.items()))
        (serving,) = device.serving.values()
        figures = [f"{one.calls}", f"{len(one.failures)}", f"{one.right / max(1, one.calls):.3f}", versions]
        rows.append([device.name, serving["variant"], *figures, f"{one.slowest_ms:.0f}"])
    story.table("Cameras", ("device", "variant", "calls", "failed", "right", "answered", "slowest ms"), rows)


if __name__ == "__main__":
    sys.exit(main())
