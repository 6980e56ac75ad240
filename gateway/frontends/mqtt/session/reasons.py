"""Names of reason codes, for logs: MQTT 5, table 2-6, and the return codes of MQTT 3.1.1, 3.2.2.3."""

from __future__ import annotations

UNSUPPORTED_PROTOCOL, UNSUPPORTED_PROTOCOL_3_1_1 = 0x84, 1
SESSION_TAKEN_OVER = 0x8E

_MQTT_5 = {
    0x00: "normal disconnection",
    0x80: "unspecified error",
    0x81: "malformed packet",
    0x82: "protocol error",
    0x83: "implementation specific error",
    0x84: "unsupported protocol version",
    0x85: "client identifier not valid",
    0x86: "bad user name or password",
    0x87: "not authorized",
    0x88: "server unavailable",
    0x89: "server busy",
    0x8A: "banned",
    0x8B: "server shutting down",
    0x8C: "bad authentication method",
    0x8D: "keep alive timeout",
    0x8E: "session taken over",
    0x8F: "topic filter invalid",
    0x90: "topic name invalid",
    0x93: "receive maximum exceeded",
    0x94: "topic alias invalid",
    0x95: "packet too large",
    0x96: "message rate too high",
    0x97: "quota exceeded",
    0x98: "administrative action",
    0x99: "payload format invalid",
    0x9A: "retain not supported",
    0x9B: "QoS not supported",
    0x9C: "use another server",
    0x9D: "server moved",
    0x9E: "shared subscriptions not supported",
    0x9F: "connection rate exceeded",
    0xA0: "maximum connect time",
    0xA1: "subscription identifiers not supported",
    0xA2: "wildcard subscriptions not supported",
}
_MQTT_3_1_1 = {
    1: "unsupported protocol version",
    2: "client identifier not valid",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}


def reason_name(code: int, *, version_5: bool, text: str = "") -> str:
    """Return the name of a code, with the reason string of the broker if it sent one."""
    name = (_MQTT_5 if version_5 else _MQTT_3_1_1).get(code, f"reason code 0x{code:02x}")
    return f"{name} ({text:.200})" if text else name
