"""Rollouts as pure decisions: recorded facts and the time in, decisions out. Imports `gateway.domain` and nothing else.

Nothing here reads a clock, a disk or a database. The caller records each decision in the transaction that read the
facts.
"""
