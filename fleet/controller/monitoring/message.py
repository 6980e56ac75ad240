"""Messages to a webhook: JSON, signed by Standard Webhooks 1.0.0 (webhook-id, -timestamp, -signature)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fleet.controller.database.alerts import Alert, Untold
from fleet.times import moment
from gateway.common.domain.errors import ConfigurationError

PREFIX = "whsec_"
SECRET_BYTES = range(24, 65)
"""Standard Webhooks, "Signature scheme": 192 to 512 bits."""
OPENED, CLOSED = 1, 2
_WORDS = {OPENED: "opened", CLOSED: "closed"}


def message_id(untold: Untold) -> str:
    """Return the message's id. It is the same for each attempt and replica, so a receiver can ignore duplicates."""
    return f"{untold.alert.key}-{_WORDS[untold.change]}"


def body(untold: Untold) -> bytes:
    """Return the message, the same bytes for the same change.

    `type`: alert.opened or alert.closed; `timestamp`: the time of the change.
    """
    alert = untold.alert
    at = alert.closed if untold.change == CLOSED else alert.opened
    document = {"type": f"alert.{_WORDS[untold.change]}", "timestamp": moment(at), "data": alert_document(alert)}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def alert_document(alert: Alert) -> dict[str, Any]:
    """Return an alert as plain values for JSON."""
    return {
        "id": alert.key,
        "rule": alert.rule,
        "device": alert.device or None,
        "subject": alert.subject or None,
        "state": str(alert.state),
        "since": moment(alert.since),
        "opened": moment(alert.opened),
        "closed": moment(alert.closed),
        "summary": alert.summary,
        "evidence": dict(alert.evidence),
    }


def headers(untold: Untold, content: bytes, secret: bytes | None, now: datetime) -> Mapping[str, str]:
    """Return the headers of an attempt at `now`. Without a secret nothing is signed.

    Receivers refuse old timestamps, so `now` is the time of the attempt.
    """
    named, at = message_id(untold), str(int(now.timestamp()))
    known = {"content-type": "application/json", "webhook-id": named, "webhook-timestamp": at}
    if secret is not None:
        known["webhook-signature"] = signature(secret, named, at, content)
    return known


def signature(secret: bytes, named: str, at: str, content: bytes) -> str:
    """Return the HMAC-SHA256 of id, time and content, joined by full stops. Neither of the first two contains one."""
    signed = hmac.new(secret, f"{named}.{at}.".encode() + content, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(signed).decode()}"


def read_secret(text: str, file: str) -> bytes:
    """Read a secret: `whsec_` and base64. Raise ConfigurationError that does not contain it."""
    try:
        secret = base64.b64decode(text.strip().removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) not in SECRET_BYTES:
        remedy = "make one: echo whsec_$(head -c 32 /dev/urandom | base64)"
        raise ConfigurationError(f"is no secret of 24 to 64 bytes in base64 behind {PREFIX}; {remedy}", file=file)
    return secret
