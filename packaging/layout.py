"""Paths of all installed files: the one list that install, uninstall and their tests share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from docs.terminal import MADE
from gateway.device.installer.environment import PROGRAMS
from gateway.device.installer.places import CONFIRMED, CURRENT, VERSIONS, VersionFolder

SYSTEMD_SEARCHES = ("/usr", "/usr/local")
"""Prefixes whose lib/ holds units, sysusers.d, tmpfiles.d and udev rules that systemd finds by itself."""

UNITS = ("edge-agent.service", "edge-software.socket", "edge-software.service", "edge-gateway.service")
"""Units, in the order in which they are stopped."""
REFERENCE = "edge-gateway-reference.toml"
"""Every setting of the gateway. `edge-gateway.toml` has those that most people set."""
SAMPLES = ("edge-gateway.toml", "edge-agent.toml", "edge-software.toml")
RECORD = "installed.json"
KEPT = frozenset({VERSIONS, CURRENT, CONFIRMED, RECORD})
"""Names in the folder of versions; all others are of the layout without versions."""


@dataclass(frozen=True, slots=True, init=False)
class Layout:
    """Final paths; `real()` says where they are while DESTDIR is assembled."""

    destdir: str
    prefix: Path

    def __init__(self, destdir: str, prefix: str) -> None:
        """Raise ValueError for a PREFIX that a unit file or a path below DESTDIR could not hold."""
        if not re.fullmatch(r"(/[\w.+-]+)+/?", prefix) or ".." in prefix:
            raise ValueError(f"PREFIX={prefix!r} must be an absolute path of letters, digits, '.', '_', '+' and '-'")
        object.__setattr__(self, "destdir", str(Path(destdir).resolve()) if destdir else "")
        object.__setattr__(self, "prefix", Path(prefix))

    @property
    def live(self) -> bool:
        """True if this system itself is meant, and no image."""
        return self.destdir in {"", "/"}

    def real(self, final: Path) -> Path:
        """Return where `final` is now."""
        return Path(self.destdir or "/") / final.relative_to("/")

    @property
    def bin(self) -> Path:
        return self.prefix / "bin"

    @property
    def lib(self) -> Path:
        """Return the final path of the folder of versions."""
        return self.prefix / "lib" / "edge-gateway"

    @property
    def home(self) -> VersionFolder:
        """Return that folder where it is now."""
        return VersionFolder(self.real(self.lib))

    @property
    def share(self) -> Path:
        return self.prefix / "share" / "edge-gateway"

    @property
    def doc(self) -> Path:
        return self.prefix / "share" / "doc" / "edge-gateway"

    @property
    def units(self) -> Path:
        """Parent of systemd/system, sysusers.d, tmpfiles.d and udev/rules.d."""
        return (self.prefix if str(self.prefix) in SYSTEMD_SEARCHES else Path("/usr/local")) / "lib"

    @property
    def configurations(self) -> dict[Path, str]:
        """File that the operator may change, to the sample in `share` that it begins as."""
        return {Path("/etc/edge-gateway") / name: name for name in SAMPLES}

    @property
    def profiles(self) -> Path:
        """The folder of the operator's own device profiles: begins empty, and nothing in it is ever touched."""
        return Path("/etc/edge-gateway/device_profiles")

    @property
    def more_settings(self) -> Path:
        """The folder of the operator's own settings: begins empty, and nothing in it is ever touched."""
        return Path("/etc/edge-gateway/conf.d")

    @property
    def states(self) -> dict[Path, str]:
        """Folder that stays when all else goes, to what it holds."""
        return {
            Path("/var/lib/edge-gateway"): "your models, and verdicts",
            Path("/var/lib/edge-agent"): "who this device is to its fleet, signed releases and floors",
            Path("/var/lib/edge-software"): "whose new versions of these programs are trusted",
        }

    @property
    def files(self) -> dict[str, Path]:
        """Source file to final path; replaced by every upgrade."""
        return {
            **{f"systemd/{unit}": self.units / "systemd" / "system" / unit for unit in UNITS},
            "systemd/edge-gateway.sysusers": self.units / "sysusers.d" / "edge-gateway.conf",
            "systemd/edge-gateway.tmpfiles": self.units / "tmpfiles.d" / "edge-gateway.conf",
            "systemd/40-edge-gateway.rules": self.units / "udev" / "rules.d" / "40-edge-gateway.rules",
            **{f"packaging/{sample}": self.share / sample for sample in (*SAMPLES, REFERENCE)},
            "packaging/models.md": self.share / "models.md",
            "packaging/README.md": self.doc / "README.md",
        }

    @property
    def made(self) -> dict[str, Path]:
        """Manual pages and completions, by their place where docs/terminal.py makes them, to final path."""
        zsh = "vendor-completions" if str(self.prefix) == "/usr" else "site-functions"
        places = [place.format(name) for name in PROGRAMS for place in MADE.values()]
        return {place: self.prefix / "share" / place.replace("vendor-completions", zsh) for place in places}

    @property
    def links(self) -> dict[Path, tuple[str, str]]:
        """Link to the version that it follows, and what it leads to in there.

        The installer of new versions is never one that has not proved itself.
        """
        shipped = "lib/python3*/site-packages/gateway/_share"
        followed = {name: CONFIRMED if name == "edge-software" else CURRENT for name in PROGRAMS}
        return {
            **{self.bin / name: (link, f"bin/{name}") for name, link in followed.items()},
            self.share / "device_profiles": (CURRENT, f"{shipped}/device_profiles"),
            self.share / "models": (CURRENT, f"{shipped}/models"),
        }

    @property
    def folders(self) -> tuple[Path, ...]:
        """Every folder that must exist, parents first."""
        placed = (*self.files.values(), *self.made.values(), *self.links, *self.configurations, self.lib / RECORD)
        leaves = {self.profiles, self.more_settings, *(path.parent for path in placed)}
        return tuple(sorted((leaves | {parent for leaf in leaves for parent in leaf.parents}) - {Path("/")}))
