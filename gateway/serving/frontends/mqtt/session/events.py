"""Catalogue of the log events of the connections to the MQTT broker: each message, and when it is logged.

docs/pages/howto/sensors.md has the levels and what to do.
"""

from __future__ import annotations

BROKER_CONNECTION_MADE = (
    "broker connection made: %s, %s, as '%s' with MQTT %s; the broker takes %d publications in flight, packets of at "
    "most %d bytes, QoS %d, retained messages: %s; keepalive %d s"
)
"""The broker accepted one of the two connections: its role, URL, client id, version and limits."""
BROKER_CONNECTION_LOST = "broker connection lost: %s, %s: no MQTT broker (%s); next try in %.1f s"
"""A connection ended, or an attempt to connect failed: its role, the broker's URL, the reason."""
BROKER_CONNECTION_FAILED = "broker connection failed: the gateway could not handle a packet; report this traceback"
"""Code of the gateway raised while it read or wrote; a new connection is made."""
LINK_COMPLETED = "link completed: the MQTT broker at %s grants everything that was asked for"
"""Both connections are made, all subscriptions are granted, and no publication is refused."""
LINK_DEGRADED = "link degraded: the MQTT broker at %s: %s"
"""Something that was asked for is no longer granted; what is granted is served."""
SUBSCRIPTION_REFUSED = (
    "subscription refused: %s, reason code 0x%02x; correct the broker's ACL; it is asked again every %.0f s"
)
"""The broker refused a topic filter."""
SUBSCRIPTION_REDUCED = (
    "subscription reduced: %s, with QoS %d instead of %d: the broker may lose messages; set `qos` of the route to "
    "what it grants, or change the broker"
)
"""The broker granted a topic filter with less quality of service than the route asks for."""
SUBSCRIPTIONS_ENDED = "subscriptions ended: %s; the configuration has them no more"
"""The broker no longer holds filters of an earlier configuration."""
SUBSCRIPTIONS_KEPT = (
    "subscriptions kept: the broker refuses to end %s; messages may come twice until the session expires"
)
"""The broker answered an UNSUBSCRIBE with a failure; it is asked again with the next connection."""
SUBSCRIPTIONS_NOT_RECORDED = (
    "subscriptions not recorded: %s; free space, else topics that are removed later keep sending messages"
)
"""The file with the topic filters at the broker cannot be written."""
SUBSCRIPTIONS_NOT_READ = "subscriptions not read: %s: %s; a session that the broker kept is reset"
"""The file with the topic filters at the broker is damaged, or a copy, such as a restored backup."""
SESSION_RESET = (
    "session reset: the broker at %s kept the session of '%s', but there is no record of its topic filters; the broker "
    "is asked to forget it, with the messages that waited there. This happens once"
)
"""First start of a version with the record, or after the file `mqtt-subscriptions` in the state folder was lost."""
PUBLICATION_REFUSED = "publication refused: %s, reason code 0x%02x; correct the broker's ACL or its limits"
"""The broker refused a result, an error or a status, or it exceeds the broker's largest packet."""
CLIENT_ID_TAKEN_OVER = (
    "client id taken over: another client connected as '%s': identity used twice; give each gateway its own "
    "[gateway] id, and a copied card its own /etc/machine-id"
)
"""The broker ended a connection with reason code 0x8E."""
CLIENT_ID_CONTESTED = (
    "client id contested: %d connections as '%s' ended soon after they were accepted; if the identity is used twice, "
    "give each gateway its own [gateway] id, and a copied card its own /etc/machine-id"
)
"""A broker that still answers ends connections repeatedly without a reason: mosquitto 2.0.11, MQTT 3.1.1."""
PROTOCOL_VERSION_CHOSEN = (
    "protocol version chosen: MQTT 3.1.1 with %s, because %s; requests need the parameter reply_topic"
)
"""MQTT 3.1.1 is used without a setting that says so."""
