"""The device CA: it signs the client certificates of devices. Pure except for `folder`.

These modules import `cryptography`. Verbs of `edge-fleet` that need no certificate do not import them.
"""
