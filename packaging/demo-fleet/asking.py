"""Questions of an operator to a remote device, and what the controller knows of all devices."""

from __future__ import annotations

from typing import Any

from stage import Stage


def ask_how_it_is(stage: Stage, device: str) -> dict[str, Any]:
    """Return what the device says of itself, through the controller: `doctor` of gateway/device/agent/README.md."""
    stage.story.tell("operator", f"asks {device} how it is")
    path = f"/v1/devices/{device}/diagnostics"
    request = stage.ask("POST", path, body={"wanted": ["doctor"]})
    answers: list[dict[str, Any]] = []

    def is_answered() -> bool:
        found = stage.ask("GET", f"{path}/{request['id']}")
        answers.extend([found["answer"]] if found["answered"] else [])
        return bool(answers)

    stage.until(is_answered, f"{device} did not answer")
    return dict(answers[0]["doctor"])


def known_states(stage: Stage) -> dict[str, tuple[str, str]]:
    """Return version and state of what each device runs, as the controller knows."""
    found = {}
    for one in stage.ask("GET", "/v1/devices")["items"]:
        for entry in one["running"]:
            found[one["id"]] = entry["target"].split("/")[3], entry["state"]
    return found
