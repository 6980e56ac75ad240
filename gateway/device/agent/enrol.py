"""Enrolment in a fleet over the network, by a token or by a serial number that the fleet knows.

Enrolment is safe to repeat, and replaces a lost, expired or revoked certificate. The device keeps its identity, the
root that was pinned first stays pinned, and no floor falls.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gateway import __version__
from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.files.durable import make_folder, temporary, write_file
from gateway.common.store.errors import store_errors
from gateway.common.transfer.connection import ConnectionPool
from gateway.common.transfer.source import FetchError
from gateway.common.trust.chain import trusted_root
from gateway.device.agent.config import DEVICE_FILE, AgentConfig
from gateway.device.agent.fetch.certificate import (
    CA_FILE,
    forget_pending,
    keep,
    pending_key,
    signing_request,
    texts,
    with_certificate,
)
from gateway.device.agent.fetch.controller import ControllerClient
from gateway.device.agent.state.identity import ROOT_FILE, SCHEMA, DeviceIdentity, parse_identity, read_identity
from gateway.device.agent.state.storage import alone
from gateway.device.store.journal import Journal

PATH = "/v1/enrol"


@dataclass(frozen=True, slots=True)
class EnrolmentInput:
    """Input of an enrolment.

    `url`: the controller's. `token`, or `serial` that the fleet knows. `authority`: PEM of the CA that signed the
    controller's certificate ("": a CA that the system trusts).
    """

    url: str
    token: str = field(default="", repr=False)
    serial: str = ""
    authority: str = ""


def enrol(application: EnrolmentInput, folder: Path, config: AgentConfig) -> DeviceIdentity:
    """Enrol this device and return its identity.

    Raise ConfigurationError if the input is not usable or the fleet refuses, UnreachableError if the controller does
    not answer or another agent is running, Distrust if the root is not signed by itself, StoreError.
    """
    _check_url(application.url)
    with store_errors(folder):
        make_folder(folder)
    with alone(folder):
        known = read_identity(folder) if (folder / DEVICE_FILE).exists() else None
        if known:  # a lost journal is not replaced here: its floors would fall without notice
            Journal.open(folder).close()
        key = pending_key(folder)
        csr = signing_request(key, known.device if known else application.serial)
        answer = _ask(application, csr, folder, config)
        made = _identity(answer, application)
        if known and known.device != made.device:
            problem = f"is {known.device}, and the fleet calls it {made.device}; to start again, remove the folder"
            raise ConfigurationError(problem, file=str(folder))
        if known is None:
            trusted_root(made.root, (), 1)
        Journal.create(folder).close()
        try:
            keep(folder, key, *texts(answer, "certificate", "chain"))
        except ValueError as error:
            raise _odd(application, str(error)) from error
        with store_errors(folder):
            if application.authority:
                write_file(folder / CA_FILE, application.authority.encode())
            if known is None:
                write_file(folder / ROOT_FILE, made.root)
            write_file(folder / DEVICE_FILE, made.document)  # last: its presence means that all files are complete
        forget_pending(folder)
    return replace(made, root=known.root) if known else made


def _ask(application: EnrolmentInput, csr: str, folder: Path, config: AgentConfig) -> dict[str, Any]:
    fetch = replace(with_certificate(config.fetch, folder), certificate_file=None, key_file=None)
    given = temporary(folder)
    if application.authority:
        with store_errors(given):
            write_file(given, application.authority.encode())
        fetch = replace(fetch, ca_file=str(given))
    connections = ConnectionPool(fetch)
    try:
        controller = ControllerClient(application.url, connections, config.telemetry.deadline_s)
        body = {"token": application.token, "serial": application.serial, "csr": csr, "agent": __version__}
        return controller.send("POST", PATH, json.dumps(body).encode(), "application/json")
    except FetchError as error:
        if error.final and error.status:
            raise ConfigurationError(f"the fleet refuses this device: {error} (EG-807)") from error
        raise UnreachableError(str(error)) from error
    finally:
        connections.close()
        given.unlink(missing_ok=True)


def _identity(answer: dict[str, Any], application: EnrolmentInput) -> DeviceIdentity:
    """Return the identity that the fleet gives this device. Raise ConfigurationError."""
    root = answer.get("root")
    document = {
        "schema": SCHEMA,
        **{key: answer.get(key) for key in ("device", "repository", "assignment")},
        "controller": answer.get("controller") or application.url,
        "poll_s": answer.get("poll_s"),
    }
    if not isinstance(root, dict):
        raise _odd(application, "it names no root to trust")
    # still valid after json.dumps: TUF signs the canonical form
    return parse_identity(json.dumps(document, indent=1) + "\n", json.dumps(root).encode(), f"{application.url}{PATH}")


def _check_url(url: str) -> None:
    """Raise ConfigurationError unless tokens travel over TLS or stay on this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and parts.hostname and _is_loopback(parts.hostname):
        return
    raise ConfigurationError(f"{url!r:.200} is no https URL; connections to a controller use TLS only")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _odd(application: EnrolmentInput, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"{application.url}{PATH} returned an unexpected answer: {problem:.200}; is it a fleet controller?"
    )
