from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.common.domain.inventory import RUNGS, Rung
from gateway.serving.hardware.rungs import RENDER, permission_remedy, permission_rung, ten
from gateway.serving.hardware.tree import Tree
from tests.devices.build import Node, build

NODE = "/dev/dri/renderD128"


def test_ten_rungs_in_order_and_null_where_not_asked() -> None:
    rungs = ten(Rung("node", True), Rung("bus", True))
    assert tuple(rung.name for rung in rungs) == RUNGS
    assert [rung.name for rung in rungs if rung.ok] == ["bus", "node"]


def test_who_is_not_in_the_nodes_group_joins_it() -> None:
    remedy = permission_remedy(0o660, 993, "render", RENDER)
    assert remedy.startswith("join the group: sudo usermod -aG render $USER")
    assert "SupplementaryGroups=render" in remedy


def test_a_group_without_a_name_is_the_hosts() -> None:
    assert "--group-add 993" in permission_remedy(0o660, 993, "", RENDER)


def test_a_node_of_root_alone_needs_a_rule() -> None:
    for mode, group_id in ((0o600, 993), (0o660, 0)):
        remedy = permission_remedy(mode, group_id, "root", RENDER)
        assert RENDER.rule in remedy
        assert "udevadm" in remedy


def test_groups_are_named_by_the_trees_own_file(tmp_path: Path) -> None:
    root = build(tmp_path, {NODE: Node(0o600)})
    group_id = (root / NODE.lstrip("/")).stat().st_gid
    build(root, {"/etc/group": f"broken\nvideo:x:99999:\nprinters:x:{group_id}:me\n"})
    assert permission_rung(Tree(root), NODE, RENDER).detail == f"{NODE} has mode 0600, group printers"


def test_groups_are_the_systems_on_the_live_root() -> None:
    rung = permission_rung(Tree(Path("/")), "/dev/null", RENDER)
    assert rung.ok
    assert rung.detail.startswith("/dev/null has mode 0666, group ")


def test_a_refusal_in_spite_of_the_mode_is_the_control_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tree, "may_open", lambda *_: False)
    rung = permission_rung(Tree(Path("/")), "/dev/null", RENDER)
    assert rung.ok is False
    assert "control group forbids" in rung.detail
    assert "DeviceAllow=/dev/null rw" in str(rung.remedy)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    other = os.stat_result((0o20600, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    monkeypatch.setattr(Tree, "status", lambda *_: other)
    assert "write SUBSYSTEM" in str(permission_rung(Tree(Path("/")), "/dev/null", RENDER).remedy)


def test_no_node_no_permission() -> None:
    assert permission_rung(Tree(Path("/")), None, RENDER).ok is None
    assert permission_rung(Tree(Path("/")), "/dev/no-such-node", RENDER).ok is None
