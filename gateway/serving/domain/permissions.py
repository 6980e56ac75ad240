"""File permissions of one account, decided on stat results (path_resolution(7)): no file is opened."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass

READ, WRITE, SEARCH = 4, 2, 1
"""Permission bits of one class: r, w and x."""
ROOT = 0
_VERBS = {READ: "read", WRITE: "write", SEARCH: "search"}


@dataclass(frozen=True, slots=True)
class UserAccount:
    """User with the groups of a process: `gids` has its primary group and all others. `group` names the primary one."""

    name: str
    uid: int
    gids: frozenset[int]
    group: str


@dataclass(frozen=True, slots=True)
class PathNode:
    """File or folder on a path. `mode` includes its type.

    `acl`: it has an access control list, which `mode` does not show.
    """

    path: str
    mode: int
    uid: int
    gid: int
    acl: bool = False


@dataclass(frozen=True, slots=True)
class Denial:
    """Obstacle between an account and a file: the first node that refuses, and the command that changes it."""

    path: str
    problem: str
    remedy: str


def may(account: UserAccount, node: PathNode, wanted: int) -> bool:
    """Return True if `account` has all `wanted` bits on `node`. One class counts: owner, else group, else others.

    Root may do everything. An access control list is not evaluated: True.
    """
    if account.uid == ROOT or node.acl:
        return True
    if account.uid == node.uid:
        bits = node.mode >> 6
    elif node.gid in account.gids:
        bits = node.mode >> 3
    else:
        bits = node.mode
    return bits & wanted == wanted


def denial(account: UserAccount, nodes: Sequence[PathNode], wanted: int) -> Denial | None:
    """Return the obstacle between `account` and the last of `nodes`, which lead there from the root folder, or None."""
    *parents, target = nodes
    for node in parents:
        if not may(account, node, SEARCH):
            problem = f"user {account.name} may not search the folder {node.path}, which {target.path} lies in"
            return Denial(node.path, problem, f"{_grant(account, node, SEARCH)}, or move what lies in it (EG-202)")
    if may(account, target, wanted):
        return None
    verbs = " and ".join(verb for bit, verb in _VERBS.items() if wanted & bit)
    kind = "folder" if stat.S_ISDIR(target.mode) else "file"
    facts = f"mode {stat.S_IMODE(target.mode):04o}, owner {target.uid}, group {target.gid}"
    problem = f"user {account.name} may not {verbs} the {kind} {target.path} ({facts})"
    return Denial(target.path, problem, f"{_grant(account, target, wanted)} (EG-202)")


def _grant(account: UserAccount, node: PathNode, wanted: int) -> str:
    """Return the narrowest command: for the class that counts for the account, else for its primary group."""
    letters = "".join(letter for bit, letter in ((READ, "r"), (WRITE, "w"), (SEARCH, "x")) if wanted & bit)
    if account.uid == node.uid:
        return f"chmod u+{letters} {node.path}"
    change = f"chmod g+{letters} {node.path}"
    return change if node.gid in account.gids else f"chgrp {account.group} {node.path} && {change}"
