"""Documents of policies, as their signers publish them."""

from __future__ import annotations

from gateway.common.domain.policy import Policy, blackout_documents
from gateway.common.domain.release_form import SCHEMA, document_bytes


def policy_bytes(policy: Policy) -> bytes:
    """Return the document that is signed, as `document_bytes` writes it."""
    document = {
        "schema": SCHEMA,
        "share_percent_per_hour": policy.share_percent_per_hour,
        "profiles": list(policy.profiles),
        "profile_delay_h": policy.profile_delay_h,
        "blackouts": blackout_documents(policy.blackouts),
        "removal_hold_h": policy.removal_hold_h,
        "removal_share_percent_per_hour": policy.removal_share_percent_per_hour,
        "removal_of_last": policy.removal_of_last,
        "slots": {slot: list(models) for slot, models in policy.slots},
    }
    if policy.settings is not None:
        document["settings"] = list(policy.settings)
    return document_bytes(document)
