"""Bounded HTTP transfers: shared by the update agent and `edge-gateway models pull`."""
