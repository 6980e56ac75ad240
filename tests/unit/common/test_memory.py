"""Memory limits of control groups, as cgroups(7) writes them."""

from pathlib import Path

import pytest

from gateway.common.memory import available_bytes, group_limit_bytes


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


def test_without_control_groups_nothing_limits(tmp_path: Path) -> None:
    assert group_limit_bytes(tmp_path) is None
    assert available_bytes(tmp_path) == 0
