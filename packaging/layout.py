"""What lands where: the one list that install, uninstall and their tests share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

SYSTEMD_SEARCHES = ("/usr", "/usr/local")
"""Prefixes whose lib/ holds units, sysusers.d and udev rules that systemd finds by itself."""

PROGRAMS = {"edge-gateway": "gateway", "edge-agent": "gateway.agent"}
"""Commands of a device, to the package that Python runs for each. `edge-fleet` is no device's."""
UNITS = ("edge-agent.service", "edge-gateway.service")
"""In the order in which they are stopped."""


@dataclass(frozen=True, slots=True, init=False)
class Layout:
    """Final paths; `real()` says where they are while DESTDIR is assembled."""

    destdir: str
    prefix: Path

    def __init__(self, destdir: str, prefix: str) -> None:
        """Raises ValueError for a PREFIX that a unit file or a path below DESTDIR could not hold."""
        if not re.fullmatch(r"(/[\w.+-]+)+/?", prefix) or ".." in prefix:
            raise ValueError(f"PREFIX={prefix!r} must be an absolute path of letters, digits, '.', '_', '+' and '-'")
        object.__setattr__(self, "destdir", str(Path(destdir).resolve()) if destdir else "")
        object.__setattr__(self, "prefix", Path(prefix))

    @property
    def live(self) -> bool:
        """Whether this system itself is meant, and no image."""
        return self.destdir in {"", "/"}

    def real(self, final: Path) -> Path:
        """Where `final` is now."""
        return Path(self.destdir or "/") / final.relative_to("/")

    @property
    def bin(self) -> Path:
        return self.prefix / "bin"

    @property
    def venv(self) -> Path:
        return self.prefix / "lib" / "edge-gateway"

    @property
    def staging(self) -> Path:
        return self.venv.with_name("edge-gateway.new")

    @property
    def retired(self) -> Path:
        return self.venv.with_name("edge-gateway.old")

    @property
    def share(self) -> Path:
        return self.prefix / "share" / "edge-gateway"

    @property
    def doc(self) -> Path:
        return self.prefix / "share" / "doc" / "edge-gateway"

    @property
    def units(self) -> Path:
        """Parent of systemd/system, sysusers.d and udev/rules.d."""
        return (self.prefix if str(self.prefix) in SYSTEMD_SEARCHES else Path("/usr/local")) / "lib"

    @property
    def configurations(self) -> dict[Path, str]:
        """File that the operator may change, to the sample in `share` that it begins as."""
        return {Path("/etc/edge-gateway") / name: name for name in ("edge-gateway.toml", "edge-agent.toml")}

    @property
    def profiles(self) -> Path:
        """The folder of the operator's own device profiles: begins empty, and nothing in it is ever touched."""
        return Path("/etc/edge-gateway/device_profiles")

    @property
    def states(self) -> dict[Path, str]:
        """Folder that stays when all else goes, to what it holds."""
        return {
            Path("/var/lib/edge-gateway"): "verdicts",
            Path("/var/lib/edge-agent"): "who this device is to its fleet, signed releases and floors",
        }

    @property
    def files(self) -> dict[str, Path]:
        """Source file to final path; replaced by every upgrade."""
        return {
            "systemd/edge-gateway.service": self.units / "systemd" / "system" / "edge-gateway.service",
            "systemd/edge-agent.service": self.units / "systemd" / "system" / "edge-agent.service",
            "systemd/edge-gateway.sysusers": self.units / "sysusers.d" / "edge-gateway.conf",
            "systemd/60-edge-gateway.rules": self.units / "udev" / "rules.d" / "60-edge-gateway.rules",
            "packaging/edge-gateway.toml": self.share / "edge-gateway.toml",
            "packaging/edge-agent.toml": self.share / "edge-agent.toml",
            "packaging/README.md": self.doc / "README.md",
        }

    @property
    def links(self) -> dict[Path, str]:
        """Link to what it points at inside the virtual environment."""
        shipped = "lib/python3*/site-packages/gateway/_share"
        return {
            **{self.bin / name: f"bin/{name}" for name in PROGRAMS},
            self.share / "device_profiles": f"{shipped}/device_profiles",
            self.share / "models": f"{shipped}/models",
        }

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every folder that must exist, parents first."""
        placed = (*self.files.values(), *self.links, *self.configurations, self.venv)
        leaves = {self.profiles, *(path.parent for path in placed)}
        return tuple(sorted((leaves | {parent for leaf in leaves for parent in leaf.parents}) - {Path("/")}))
