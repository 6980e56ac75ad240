"""Frontends: each translates one protocol to the domain's requests and back, and does nothing else."""
