"""Rollouts as pure decisions: recorded facts and the time in, decisions out. Imports `common.domain` only.

Nothing here reads a clock, a disk or a database. The caller records each decision in the transaction that read the
facts.
"""
