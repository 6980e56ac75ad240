"""Limits of control groups, as cgroups(7) writes them."""

from pathlib import Path

import pytest

from gateway.common.memory import available_bytes, group_limit_bytes, usable_cores


@pytest.mark.parametrize(
    ("group", "limits", "least"),
    [
        (
            "0::/system.slice/edge-gateway.service",
            {"system.slice": "max", "system.slice/edge-gateway.service": "700"},
            700,
        ),
        (
            "0::/system.slice/edge-gateway.service",
            {"system.slice": "600", "system.slice/edge-gateway.service": "max"},
            600,
        ),
        ("0::/", {"": "500"}, 500),  # in a container
        ("4:memory:/x\n0::/x", {"x": "400"}, 400),
        ("0::/x", {"x": "max"}, None),
        ("0::/../../outside", {"": "max"}, None),
        ("4:memory:/x", {"": "300"}, None),
    ],
)
def test_the_least_limit_counts(tmp_path: Path, group: str, limits: dict[str, str], least: int | None) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{group}\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 4 kB\nMemAvailable:       2 kB\n")
    for name, limit in limits.items():
        folder = tmp_path / "sys/fs/cgroup" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
    assert group_limit_bytes(tmp_path) == least
    assert available_bytes(tmp_path) == min(least or 2048, 2048)


@pytest.mark.parametrize(
    ("affinity", "quota", "cores"),
    [(4, "max 100000", 4), (4, "150000 100000", 2), (1, "300000 100000", 1), (4, "10000 100000", 1), (4, "", 4)],
)
def test_cores_are_those_of_the_affinity_within_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, affinity: int, quota: str, cores: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(affinity)))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/system.slice/edge-gateway.service\n")
    (tmp_path / "sys/fs/cgroup/system.slice").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/system.slice/cpu.max").write_text(f"{quota}\n")
    assert usable_cores(tmp_path) == cores


def test_without_control_groups_nothing_limits(tmp_path: Path) -> None:
    assert group_limit_bytes(tmp_path) is None
    assert available_bytes(tmp_path) == 0
