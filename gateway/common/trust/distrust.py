"""Refusal of signed bytes: a reason code for programs, a sentence for people."""

from __future__ import annotations

import enum
from collections.abc import Mapping


class Reason(enum.Enum):
    """Reason of a refusal. The values are written to journals and reports: they never change."""

    UNSIGNED = "unsigned"
    """No role of the repository signed this target."""
    SWAPPED = "swapped"
    """Signed with another length or digest."""
    OTHER_DEVICE = "other-device"
    REPLAYED = "replayed"
    """Older than the version that was accepted before."""
    AMBIGUOUS = "ambiguous"
    """Two documents of one version: two signers use the key."""
    BELOW_FLOOR = "below-floor"
    WRONG_HARDWARE = "wrong-hardware"
    EXPIRED = "expired"
    WRONG_KEY = "wrong-key"
    """The assignment lacks the director's signature."""
    FORGED = "forged"
    """Metadata without its role's threshold of signatures."""
    SLOT_TWICE = "slot-twice"
    WRONG_NONCE = "wrong-nonce"
    WRONG_TIME = "wrong-time"
    """An attested time beyond what the offline keys allow."""
    BAD_PATH = "bad-path"
    DAMAGED = "damaged"
    """Bytes that violate the format or do not match their digest."""
    TOO_LARGE = "too-large"
    WITHDRAWN = "withdrawn"
    """Its owner withdrew this release."""
    WRONG_SLOT = "wrong-slot"
    """Neither its owner nor the policy allows this model in this slot."""
    INCOMPATIBLE = "incompatible"
    """Inputs or outputs differ from those of the release that the slot runs."""


_REMEDY: Mapping[Reason, str] = {
    Reason.UNSIGNED: "its owner must sign it (edge-fleet sign) and publish, or remove it from the assignment",
    Reason.SWAPPED: "publish again; if the error stays, the file was exchanged: inspect controller and mirror",
    Reason.OTHER_DEVICE: "ask for this device's own assignment; check the device's name and the mirror's paths",
    Reason.REPLAYED: "poll again; if it stays, the controller lost its state: continue above it, or rotate the key",
    Reason.AMBIGUOUS: "sign the next version; if it happens again, two signers share the director's key",
    Reason.BELOW_FLOOR: "assign a version at or above the floor; only the owner can go below, by a new release",
    Reason.WRONG_HARDWARE: "assign a release with a variant for this device (edge-gateway explain)",
    Reason.EXPIRED: "poll again; if it stays, sign it again, and check this device's clock",
    Reason.WRONG_KEY: (
        "if the director's key was rotated, publish (and assign all --renew without a controller); else another server "
        "answers"
    ),
    Reason.FORGED: "publish it with all signatures (edge-fleet verify); if it stays, do not trust that server",
    Reason.SLOT_TWICE: "assign one release to each slot",
    Reason.WRONG_NONCE: "poll again; if it stays, a proxy caches replies that carry a nonce",
    Reason.WRONG_TIME: "check the controller's clock; sign the offline roles again if they have expired",
    Reason.BAD_PATH: "publish under models/<owner>/<model>/<version>/release, profiles/<name> or policy/<name>",
    Reason.DAMAGED: "fetch it again; if it stays, write it again",
    Reason.WITHDRAWN: "assign another release; its owner may release the same files under a higher version",
    Reason.WRONG_SLOT: (
        "its owner must release it for the slot (edge-fleet model add --slot), or a policy must name the slot's models"
    ),
    Reason.INCOMPATIBLE: (
        "if clients are ready for it, its owner must release it with edge-fleet model add --changes-signature"
    ),
    Reason.TOO_LARGE: "make it smaller",
}


class Distrust(Exception):  # noqa: N818  the verdict's name, not an error of the program
    """Refusal of signed bytes. `reason` is for programs; `where`, `what` and `remedy` are for people."""

    def __init__(self, reason: Reason, where: str, what: str) -> None:
        self.reason, self.where, self.what, self.remedy = reason, where, what, _REMEDY[reason]
        super().__init__(f"{where}: {what} ({reason.value}); {self.remedy}")
