"""Assignments that a director signs."""

from __future__ import annotations

from securesystemslib.signer import Signer

from gateway.common.domain.assignment import Assignment
from gateway.common.trust.assignment_form import assignment_metadata


def sign_assignment(assignment: Assignment, signer: Signer) -> bytes:
    """Return the assignment's signed bytes. The director serves them unchanged."""
    metadata = assignment_metadata(assignment)
    metadata.sign(signer)
    return metadata.to_bytes()
