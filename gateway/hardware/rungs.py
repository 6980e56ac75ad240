"""Rules that all families share: the ten rungs in order, driver, node and permission, and needs above the kernel."""

from __future__ import annotations

import grp
import stat
from dataclasses import dataclass

from gateway.domain.inventory import RUNGS, Rung
from gateway.hardware.tree import GROUP_READ_WRITE, Tree


@dataclass(frozen=True, slots=True)
class Needs:
    """Needs of a kind above the kernel. One library of each group in `libraries` must load (sonames differ by release).

    One runtime that can use the kind (`gateway.domain.runtimes`) must list it. The remedies say what to install.
    """

    libraries: tuple[tuple[str, ...], ...] = ()
    library_remedy: str = ""
    runtime_remedy: str = ""


@dataclass(frozen=True, slots=True)
class NodeAccess:
    """Access to a node: the usual `group`, and the udev `rule` that gives it the node."""

    group: str
    rule: str


RENDER = NodeAccess("render", 'SUBSYSTEM=="drm", KERNEL=="renderD*", GROUP="render", MODE="0660"')
ACCEL = NodeAccess("render", 'SUBSYSTEM=="accel", KERNEL=="accel*", GROUP="render", MODE="0660"')


def ten(*known: Rung) -> tuple[Rung, ...]:
    """Return the rungs of the contract in order; those not given are null."""
    found = {rung.name: rung for rung in known}
    return tuple(found.get(name) or Rung(name, None) for name in RUNGS)


def driver_rung(bound: str | None, wanted: tuple[str, ...], remedy: str) -> Rung:
    """Return a rung that is True if one of `wanted` is bound."""
    if bound in wanted:
        return Rung("driver", True, f"{bound} is bound")
    detail = f"{bound} is bound, not {' or '.join(wanted)}" if bound else "no driver is bound"
    return Rung("driver", False, detail, remedy)


def node_rung(tree: Tree, path: str | None, wanted: str, remedy: str) -> Rung:
    """Return a rung that is True if `path` exists.

    It is null in a tree without any /dev: then the absence means nothing.
    """
    if path is not None and tree.exists(path):
        return Rung("node", True, path)
    if not tree.is_directory("/dev"):
        return Rung("node", None, "there is no /dev to look into")
    return Rung("node", False, f"there is no {path or wanted}", remedy)


def permission_rung(tree: Tree, path: str | None, access: NodeAccess) -> Rung:
    """Return a rung that is True if the node may be opened; null if there is none.

    The remedy is the group to join or the rule to write.
    """
    status = tree.status(path) if path else None
    if path is None or status is None:
        return Rung("permission", None)
    group = _group_name(tree, status.st_gid)
    detail = f"{path} has mode {stat.S_IMODE(status.st_mode):04o}, group {group or status.st_gid}"
    if tree.may_open(path):
        return Rung("permission", True, detail)
    return Rung("permission", False, detail, permission_remedy(status.st_mode, status.st_gid, group, access))


def permission_remedy(mode: int, group_id: int, group: str, access: NodeAccess) -> str:
    """Return the remedy: join the node's group if that is enough, else write the rule. `group` "": it has no name."""
    if mode & GROUP_READ_WRITE == GROUP_READ_WRITE and group_id != 0:
        if group:
            return (
                f"join the group: sudo usermod -aG {group} $USER, then log in again; "
                f"for the service: SupplementaryGroups={group}"
            )
        return f"group {group_id} has no name here; in a container start it with --group-add {group_id}"
    return (
        f"write {access.rule} to /etc/udev/rules.d/60-edge-gateway.rules, then: sudo udevadm control --reload && "
        f"sudo udevadm trigger; sudo usermod -aG {access.group} $USER, then log in again"
    )


def _group_name(tree: Tree, group_id: int) -> str:
    if tree.live:
        try:
            return grp.getgrgid(group_id).gr_name
        except KeyError:
            return ""
    for line in (tree.read_text("/etc/group", tree.settings.table_bytes) or "").splitlines():
        fields = line.split(":")
        if len(fields) > 2 and fields[2] == str(group_id) and fields[0].isprintable():
            return fields[0][: tree.settings.text_chars]
    return ""
