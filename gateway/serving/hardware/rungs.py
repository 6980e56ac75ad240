"""Rules that all families share: the ten rungs in order, driver, firmware, node, permission, and versions."""

from __future__ import annotations

import grp
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.common.domain.inventory import RUNGS, Rung
from gateway.serving.hardware.tree import GROUP_READ_WRITE, OTHERS_READ_WRITE, OVERFLOW_GROUP, Tree

EXTRA = ("updates/dkms", "extra")
"""Folders of modules that do not come with the kernel."""
OUT_OF_TREE = ("apex", "hailo_pci", "hailo1x_pci", "nvidia")
"""Modules that never come with a kernel, so that no distribution's key has signed them."""
PACKED = ("", ".xz", ".zst", ".gz")
CONTAINER_SIGNS = ("/.dockerenv", "/run/.containerenv")
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SIGN = "sign it: sudo mokutil --import /var/lib/dkms/mok.pub, restart and confirm the key, or switch Secure Boot off"
MULTIARCH = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
LIBRARY_FOLDERS = (*MULTIARCH, "/usr/lib", "/usr/lib64", "/usr/local/lib")


@dataclass(frozen=True, slots=True)
class Needs:
    """Needs of a kind above the kernel. One library of each group in `libraries` must load (sonames differ by release).

    One runtime that can use the kind (`gateway.common.domain.runtimes`) must list it. The remedies say what to install.
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


def driver_rung(
    tree: Tree, bound: str | None, wanted: tuple[str, ...], remedy: str, firmware: Rung | None = None
) -> Rung:
    """Return a rung that is True if one of `wanted`, which are also names of modules, is bound.

    It is null if a module only waits for its `firmware`.
    """
    if bound in wanted:
        return Rung("driver", True, f"{bound} is bound")
    if bound:
        reserved = "use it in the virtual machine that has it, or take its id out of vfio-pci.ids and restart"
        detail = f"{bound} is bound, not {' or '.join(wanted)}"
        return Rung("driver", False, detail, reserved if bound == "vfio-pci" else remedy)
    if (loaded := loaded_module(tree, wanted)) is None:
        detail, mend = _unloaded(tree, wanted, remedy)
        return Rung("driver", False, detail, f"{mend} (EG-401)")
    if firmware and firmware.ok is False:
        return Rung("driver", None, f"module {loaded} is loaded, and binds when it finds its firmware")
    why = f"sudo dmesg | grep -iE '{loaded}|firmware' tells why it refused (firmware, kernel version, interrupts)"
    return Rung("driver", False, f"no driver is bound, although module {loaded} is loaded", why)


def loaded_module(tree: Tree, names: Sequence[str]) -> str | None:
    """Return the first of these modules that the kernel has loaded, or None."""
    return next((name for name in names if tree.exists(f"/sys/module/{name}")), None)


def firmware_rung(tree: Tree, folders: Sequence[str], remedy: str) -> Rung:
    """Return a rung that is False if this machine, which is no container, has firmware, but none in `folders`."""
    if (
        any(map(tree.exists, CONTAINER_SIGNS))
        or not tree.is_directory("/lib/firmware")
        or any(tree.names(folder) for folder in folders)
    ):
        return Rung("firmware", None)
    return Rung("firmware", False, f"there is no file in {folders[0]}", f"{remedy} (EG-402)")


def versions_rung(tree: Tree, driver: str, soname: str, remedy: str) -> Rung:
    """Return the library rung: False if no `soname` on disk has the driver's version, else null."""
    names = (name for folder in LIBRARY_FOLDERS for name in tree.names(folder))
    found = {name.removeprefix(f"{soname}.") for name in names if name.startswith(f"{soname}.")}
    versions = sorted(version for version in found if re.fullmatch(r"[0-9]+(?:\.[0-9]+)+", version))
    if not driver or not versions or driver in versions:
        return Rung("library", None)
    return Rung("library", False, f"the driver is {driver}, {soname} is {' and '.join(versions)}", f"{remedy} (EG-407)")


def node_rung(tree: Tree, path: str | None, wanted: str, remedy: str) -> Rung:
    """Return a rung that is True if `path` exists.

    It is null in a tree without any /dev: then the absence means nothing.
    """
    if path is not None and tree.exists(path):
        return Rung("node", True, path)
    if not tree.is_directory("/dev"):
        return Rung("node", None, "there is no /dev to look into")
    passed = (
        "" if "container" in remedy else "; in a container pass it: --device NODE; in Proxmox dev0: NODE,gid=NUMBER"
    )
    return Rung("node", False, f"there is no {path or wanted}", f"{remedy}{passed} (EG-403)")


def usb_node_rung(tree: Tree, path: str | None) -> Rung:
    """Return the rung of a device on USB; it is null if `path` is unknown."""
    if path is None:
        return Rung("node", None, "bus and device number are unknown")
    return node_rung(tree, path, path, "plug it in again")


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
    if tree.live and _mode_allows(status):
        remedy = (
            f"allow it: sudo systemctl edit edge-gateway, and write DeviceAllow={path} rw below [Service]; "
            f"in a container pass it: --device {path} (EG-405)"
        )
        return Rung("permission", False, f"{detail}, which is enough, but the control group forbids the device", remedy)
    mend = permission_remedy(status.st_mode, status.st_gid, group, access)
    return Rung("permission", False, detail, f"{mend} (EG-404)")


def _mode_allows(status: os.stat_result) -> bool:
    """Return whether owner, group and mode let this process read and write."""
    if os.geteuid() in {0, status.st_uid}:
        return True
    shift = 3 if status.st_gid in {os.getegid(), *os.getgroups()} else 0
    return status.st_mode >> shift & OTHERS_READ_WRITE == OTHERS_READ_WRITE


def permission_remedy(mode: int, group_id: int, group: str, access: NodeAccess) -> str:
    """Return the remedy: join the node's group if that is enough, else write the rule. `group` "": it has no name."""
    if group_id == OVERFLOW_GROUP:
        return (
            f"give the node a group of this container (Proxmox: dev0: /dev/…,gid=NUMBER), and join it: {access.group}"
        )
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


def _unloaded(tree: Tree, wanted: Sequence[str], remedy: str) -> tuple[str, str]:
    """Return detail and remedy for a device without driver whose module is not loaded."""
    release, module = tree.line("/proc/sys/kernel/osrelease") or "", next(filter(OUT_OF_TREE.count, wanted), wanted[0])
    ends = [f"{way}/{module}.ko{packed}" for way in EXTRA for packed in PACKED]
    kernels = tree.names("/lib/modules")
    built = [kernel for kernel in kernels if any(tree.exists(f"/lib/modules/{kernel}/{end}") for end in ends)]
    if release and built and release not in built:
        detail = f"no driver is bound: {module} is built for {', '.join(built)}, but {release} runs"
        build = f"sudo apt install linux-headers-{release} && sudo dkms autoinstall && sudo modprobe {module}"
        return detail, f"{build}; if it does not compile, take a newer package of the driver or start the older kernel"
    if not (built or module in OUT_OF_TREE) or not (tree.read_text(SECURE_BOOT) or "").endswith("\x01"):
        return "no driver is bound", remedy
    return (
        f"no driver is bound: Secure Boot refuses {module} unless its key is enrolled",
        SIGN if built else f"{remedy}; {SIGN}",
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
