"""Identity of the gateway at the broker: client id, Will, password, certificate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.files.credentials import secret_path
from gateway.serving.frontends.mqtt.messages import OutgoingPublish
from gateway.serving.frontends.mqtt.session.control import ConnectOptions
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings, broker_of

RESULTS_SUFFIX = "-results"
"""End of the client id of the connection that publishes results."""


@dataclass(frozen=True, slots=True)
class MqttIdentity:
    """Client id, and the Will that the broker publishes if the connection is lost.

    `clean`: the broker keeps nothing of this client after its connection.
    """

    client_id: str
    will: OutgoingPublish | None
    clean: bool = False


def connect_options(settings: MqttSettings, identity: MqttIdentity) -> ConnectOptions:
    """Return the content of the CONNECT. Raises ConfigurationError if user name or password cannot be read."""
    username = _first_line(settings, "username_file", "user name")
    if username == "":
        problem = "has no user name; write it on the first line"
        raise ConfigurationError(problem, table="mqtt", key="username_file")
    return ConnectOptions(
        identity.client_id,
        settings.keepalive_s,
        identity.clean,
        username or settings.username or None,
        _first_line(settings, "password_file", "password"),
        identity.will,
        settings.will_delay_s,
        0 if identity.clean else settings.session_expiry_s,
        settings.receive_maximum,
        settings.max_packet_bytes,
    )


def tls_context(settings: MqttSettings) -> ssl.SSLContext | None:
    """Return the TLS context, or None for mqtt://. Raises ConfigurationError if a file cannot be used."""
    if not broker_of(settings.url).secure:
        return None
    ca, cert, key = (_file(settings, name) for name in ("ca", "cert", "key"))
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if ca:
            context.load_verify_locations(ca)
        else:
            context.load_default_certs()
        if cert and key:
            context.load_cert_chain(cert, key)
    except (OSError, ValueError) as error:
        files = ", ".join(str(file) for file in (ca, cert, key) if file)
        problem = f"cannot be used ({error}: {files}); give PEM files that the gateway may read (EG-609)"
        raise ConfigurationError(problem, table="mqtt", key="ca, cert, key") from None
    return context


def _first_line(settings: MqttSettings, key: str, what: str) -> str | None:
    """Return the first line of the file that a setting names; None if it is not set."""
    file = _file(settings, key)
    if file is None:
        return None
    try:
        return file.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    except (OSError, ValueError) as error:
        problem = f"cannot be read ({error}); write the {what} on its first line (EG-609)"
        raise ConfigurationError(problem, table="mqtt", key=key) from None


def _file(settings: MqttSettings, key: str) -> Path | None:
    named = getattr(settings, key)
    return secret_path(named, "mqtt", key) if named else None
