"""The device CA: it signs what devices show on TLS connections. Pure, but for `folder`.

`cryptography` is loaded by these modules; `edge-fleet` verbs that need no certificate do not import them.
"""
