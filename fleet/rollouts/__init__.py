"""Rollouts as pure decisions: recorded facts and the time in, decisions out. Imports `gateway.domain` and nothing else.

Nothing here reads a clock, a disk or a database; who calls records what was decided, in the transaction it read from.
"""
