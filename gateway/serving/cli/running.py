"""Models of the gateway that runs on this device, as it reports them, over HTTP or else over its control socket."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gateway.common.domain.access import Address
from gateway.common.domain.errors import ConfigurationError, RequestError, UnreachableError, suggest
from gateway.common.terminal.tables import mark, print_json, print_remarks, print_table
from gateway.serving.cli.common import configured
from gateway.serving.cli.http_client import GatewayAddress, GatewayClient, Keys, NoListenerError, pem_exists, read_url
from gateway.serving.cli.remote import checked, model_path, read_array, read_object
from gateway.serving.config import Config

Answer = TypeVar("Answer")
LOCAL_TIMEOUT_S = 10.0
"""Timeout of each step of an exchange with a gateway on this device."""
CONTROL = Path("/run/edge-gateway/control.sock")
"""Path of the unit's control socket."""
ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  listened on, not by us


@dataclass(frozen=True, slots=True)
class Served:
    """A model version of a running gateway.

    `reason`: why it is not ready. `why`: why this variant serves. `level`: the result of its trial. `isolated`: it
    serves from a worker process. `memory`: what it takes of the budget of memory, and whether it is cold ("": no
    budget).
    """

    name: str
    version: str
    state: str
    reason: str
    variant: str = ""
    accelerator: str = ""
    signed: bool | None = None
    level: str = ""
    why: str = ""
    isolated: bool = False
    memory: str = ""


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """Models of a running gateway and its address (`where`); "" if none was queried, for the reason `why_not`."""

    where: str = ""
    models: Sequence[Served] = ()
    why_not: str = ""

    def of(self, model: str) -> list[Served]:
        """Return the versions of one model."""
        return [each for each in self.models if each.name == model]


def ask_running(config: Config, arguments: argparse.Namespace) -> RunningGateway:
    """Query `--url`, or the gateway that runs with `config` on this device, unless options select the disk.

    Raises UnreachableError if a listener there does not answer as a gateway does. RequestError only with `--url`.
    """
    if arguments.url:
        return _ask_http(read_url(arguments.url), keys_of(arguments))
    if why := disk_meant(arguments):
        return RunningGateway(why_not=why)
    asked = [partial(_ask_http, place, keys) for place, keys in local_addresses(config, arguments)]
    found = _first_answer([*asked, partial(_ask_control, config)])
    return RunningGateway(why_not=found) if isinstance(found, str) else found


def find_running(arguments: argparse.Namespace, *, unix_first: bool = False) -> tuple[GatewayAddress, Keys] | str:
    """Return `--url`, else the address of a live gateway on this device, else why none is queried.

    `unix_first`: of several addresses prefer a UNIX socket, at which shared memory may be registered.
    Raises UnreachableError if a listener there does not answer as a gateway does.
    """
    if arguments.url:
        return read_url(arguments.url), keys_of(arguments)
    if why := disk_meant(arguments):
        return why
    places = [*local_addresses(configured(arguments), arguments)]
    if unix_first:
        places.sort(key=lambda local: not local[0].unix)
    return _first_answer([partial(_live, *local) for local in places])


def keys_of(arguments: argparse.Namespace, pinned: str | None = None) -> Keys:
    """Return the files that the command line names. Raises ConfigurationError for --key without --cert."""
    if arguments.key and not arguments.cert:
        raise ConfigurationError("--key needs --cert as well")
    return Keys(arguments.ca, arguments.cert, arguments.key, arguments.token_file, pinned)


def served_json(running: RunningGateway, models: Sequence[Served]) -> dict[str, Any]:
    """Return the document of `--json`."""
    return {"asked": running.where or None, "why_not": running.why_not or None, "models": [*map(asdict, models)]}


def print_served(running: RunningGateway, *, as_json: bool) -> None:
    """Print all models of a running gateway."""
    if as_json:
        print_json(served_json(running, running.models))
        return
    columns = ("model", "version", "state", "signed", "variant", "accelerator", "level", "memory")
    shown = len(columns) - (not any(one.memory for one in running.models))
    rows = [
        (one.name, one.version, one.state, mark(one.signed), _variant(one), one.accelerator, one.level, one.memory)
        for one in running.models
    ]
    print(f"models of the gateway that runs at {running.where}\n")
    print_table(columns[:shown], [row[:shown] for row in rows])
    print_remarks((one.name, one.version, one.reason) for one in running.models)


def _variant(one: Served) -> str:
    """Return the variant; of a pipeline, which has none, how many steps it has and what it runs."""
    return one.variant if one.accelerator or not one.why else f"{one.variant}: {one.why}"


def sentences(running: RunningGateway, model: str) -> Iterator[str]:
    """Yield sentences about the versions of one model that serve now."""
    if not running.where:
        yield f"from the disk: {running.why_not}"
        return
    for one in running.of(model):
        variant = f": {one.variant}" + (f" on {one.accelerator}" if one.accelerator else "") if one.variant else ""
        variant += f", {one.level}" if one.level else ""
        because = "; ".join(filter(None, (one.why, one.reason, one.memory and f"memory: {one.memory}")))
        yield f"serving now at {running.where}, version {one.version}: {one.state}{variant}" + (
            f" ({because})" if because else ""
        )
    if not running.of(model):
        remedy = "if it is in the model directory: systemctl reload edge-gateway"
        known = sorted({one.name for one in running.models})
        problem = f"the gateway that runs at {running.where} does not know this model{suggest(model, known)}"
        yield f"{problem}; it has {', '.join(known) or 'none'}; {remedy}"


def disk_meant(arguments: argparse.Namespace) -> str:
    """Return why no gateway is queried; "" if one may be."""
    if arguments.offline:
        return "--offline was given"
    given = [f"--{name}" for name in ("models", "state") if getattr(arguments, name, None)]
    given += ["--root"] if getattr(arguments, "root", "/") != "/" else []
    return f"{given[0]} was given" if given else ""


def _first_answer(questions: Sequence[Callable[[], Answer]]) -> Answer | str:
    """Return the first answer; if nothing listens at any place, return the reason.

    Raises UnreachableError if something listens and none answers: the disk may hold other models than it serves.
    """
    problems: list[Exception] = []
    for question in questions:
        try:
            return question()
        except (UnreachableError, RequestError) as error:
            problems.append(error)
    for problem in problems:
        if not isinstance(problem, NoListenerError):
            raise UnreachableError(f"{problem}; or look at the disk only, with --offline") from None
    return str(problems[0]) if problems else "HTTP is off"


def _live(place: GatewayAddress, keys: Keys) -> tuple[GatewayAddress, Keys]:
    with GatewayClient(place, keys, LOCAL_TIMEOUT_S) as client:
        read_object(*client.exchange("GET", "/v2/health/live"))
    return place, keys


def local_addresses(config: Config, arguments: argparse.Namespace) -> Iterator[tuple[GatewayAddress, Keys]]:
    """Yield the HTTP addresses of `config`. With TLS the server must present its configured certificate."""
    tls, cert = config.tls.cert is not None, config.tls.cert
    keys = keys_of(arguments, cert if pem_exists(cert) else None)
    for address in config.http_listen:
        if address.path or address.port:
            yield _place(address, tls=tls), keys


def _place(address: Address, *, tls: bool) -> GatewayAddress:
    if address.path:
        return GatewayAddress(unix=address.path)
    return GatewayAddress(ANYWHERE.get(address.host, address.host), address.port, tls=tls)


def _ask_http(place: GatewayAddress, keys: Keys) -> RunningGateway:
    with GatewayClient(place, keys, LOCAL_TIMEOUT_S) as client, checked(place):
        index = read_array(*client.exchange("POST", "/v2/repository/index"))
        return RunningGateway(str(place), [_served(client, line) for line in index])


def _served(client: GatewayClient, line: dict[str, Any]) -> Served:
    """Return one line of the index; for a ready version, with its variant."""
    name, version, state = line["name"], line["version"], line["state"]
    if state != "READY":
        return Served(name, version, state, line["reason"])
    try:
        config = read_object(*client.exchange("GET", f"{model_path(name, version)}/config"))
    except RequestError as error:  # it was unloaded after the index was read
        return Served(name, version, "UNAVAILABLE", error.message)
    facts = {key: value["string_value"] for key, value in config["parameters"].items()}
    variant, level, why = (facts.get(key, "") for key in ("variant", "level", "reason"))
    accelerator = " by ".join(facts[key] for key in ("accelerator", "provider") if key in facts)
    signed, reason = facts.get("signed") == "true", "; ".join(filter(None, (line["reason"], facts.get("loop"))))
    is_isolated, memory = facts.get("isolated") == "true", facts.get("residency", "")
    return Served(name, version, state, reason, variant, accelerator, signed, level, why, is_isolated, memory)


def _ask_control(config: Config) -> RunningGateway:
    address = config.control.address
    place = GatewayAddress(unix=address.path if address else str(CONTROL))
    keys = ("model", "version", "state", "reason", "variant", "accelerator", "signed")
    with GatewayClient(place, Keys(), LOCAL_TIMEOUT_S) as client, checked(place):
        status = read_object(*client.exchange("GET", "/v1/status"))
        return RunningGateway(str(place), [Served(*(one[key] for key in keys)) for one in status["models"]])
