"""A rollout from its specification to its end, told fact by fact as the controller records them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asking import known_states
from controller import TAG
from publisher import MODEL, OWNER
from stage import Stage

CAREFULLY = (
    *("--canary", "1", "--waves", "100%", "--canary-soak", "1s", "--soak", "1s", "--rollback", "forced"),
    *("--success-percent", "100", "--failed-sample", "1", "--failed-percent", "20"),
)
"""One device of each kind first. One of them that fails is enough to halt all, and to take back what is out."""
EVERYWHERE = ("--waves", "100%", "--soak", "1s")
"""The first release has nothing to be compared with, and replaces nothing."""
OVER = frozenset({"finished", "aborted", "paused"})

Event = Mapping[str, Any]


class Rollout:
    """Rollout that `run` follows until it is over.

    `state` is then what the controller calls it (`id`), `release` the digest of what it brought, `facts` all that
    happened.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.facts: list[Event] = []
        self.state = self.id = self.release = self._path = ""
        self._shares = {device.name: device.shares for device in stage.devices}

    def run(self, version: str, how: Sequence[str] = CAREFULLY) -> Rollout:
        """Draft, approve, start, and look until it is over."""
        target = f"{OWNER}/{MODEL}/{version}"
        self._stage.until(lambda: self._is_published(f"models/{target}/"), f"{target} was not published")
        asked = ("--target", target, "--query", f"tag = {TAG}", *how, "--start", "--json")
        made = json.loads(self._stage.command("rollouts", "create", *asked))
        self.id, self.release = made["id"], made["spec"]["target"]["sha256"]
        self._path = f"/v1/rollouts/{self.id}"
        self._stage.until(self._is_over, f"the rollout of version {version} was not over")
        return self

    def settle(self, version: str) -> None:
        """Wait until every device answers by `version` alone, and has told so."""
        self._stage.until(lambda: self._is_settled(version), f"not every device went back to version {version}")

    def _is_settled(self, version: str) -> bool:
        self._watch()
        known = known_states(self._stage)
        back = all(known[device.name] == (version, "committed") for device in self._stage.devices)
        return back and all(shares == {version: 100} for shares in self._shares.values())

    def _is_published(self, path: str) -> bool:
        """Return whether the controller knows a release below `path`."""
        listed = self._stage.ask("GET", "/v1/releases")["items"]
        return any(str(one["target"]).startswith(path) for one in listed)

    def _is_over(self) -> bool:
        self.state = self._stage.ask("GET", self._path)["state"]
        self._look()
        self._watch()
        return self.state in OVER

    def _look(self) -> None:
        after = self.facts[-1]["seq"] if self.facts else 0
        for fact in self._stage.ask("GET", f"{self._path}/facts", query={"after": after})["items"]:
            self.facts.append(fact)
            who, what, style = told(fact["event"])
            if what:
                self._stage.story.tell(who, what, style=style)

    def _watch(self) -> None:
        """Tell how each device divides its requests among versions, where that has changed."""
        for device in self._stage.devices:
            shares = device.shares
            if shares != self._shares[device.name]:
                self._shares[device.name] = shares
                said = ", ".join(f"{percent} % by {version}" for version, percent in sorted(shares.items()))
                self._stage.story.tell(device.name, f"answers {said}", style="dim")

    def devices(self, state: str) -> list[str]:
        """Return the devices that reported this state of the release, in the order of the first reports."""
        said = [fact["event"] for fact in self.facts if fact["event"].get("release") == self.release]
        return list(dict.fromkeys(event["device"] for event in said if event["state"] == state))

    def offered(self) -> list[str]:
        """Return the devices that were offered the release."""
        events = [fact["event"] for fact in self.facts]
        return list(dict.fromkeys(event["device"] for event in events if event.get("decision") == "offer"))


def told(event: Event) -> tuple[str, str, str]:
    """Return the actor of an event, its deed and its style; "" where it is not worth a line."""
    name = event.get("decision") or event["kind"]
    return TELLERS.get(name, lambda event: ("", "", ""))(event)


def _reported(event: Event) -> tuple[str, str, str]:
    style = {"committed": "green", "rolled_back": "bold red", "failed": "bold red"}.get(event["state"], "")
    reason = f": {event['reason']}" if event.get("reason") else ""
    return event["device"], f"{event['state'].replace('_', ' ')}{reason}", style


TELLERS: Mapping[str, Callable[[Event], tuple[str, str, str]]] = {
    "joined": lambda event: (event["device"], f"joins ({', '.join(event['accelerators']) or 'cpu'})", "dim"),
    "open_wave": lambda event: (
        "controller",
        f"opens wave {event['wave']}" if event["wave"] else "opens the canary wave",
        "bold",
    ),
    "offer": lambda event: ("controller", f"offers it to {event['device']}", ""),
    "reported": _reported,
    "mark_silent": lambda event: ("controller", f"{event['device']} is silent: {event['reason']}", "bold red"),
    "pause": lambda event: (
        "controller",
        f"{'HALTS' if event['halt'] else 'pauses'}: {event['reason']}",
        "bold red",
    ),
    "abort": lambda event: ("controller", f"HALTS for good: {event['reason']}", "bold red"),
    "roll_back": lambda event: ("controller", f"assigns {event['device']} what it had before", "yellow"),
    "finish": lambda event: ("controller", "all waves are through", "bold green"),
}
