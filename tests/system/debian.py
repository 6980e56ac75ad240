"""Debian systems with the packages of this tree: roots kept in the user's cache, built packages, boots."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from pathlib import Path

from tests.system.installation import REPOSITORY, leave_no_groups, run

LIMIT_S = 1500.0
MACHINE = "edge-gateway-debian"
SYSTEM = "systemd,systemd-sysv,dbus,python3,udev,libstdc++6,libgomp1,procps,curl"
"""What a booted system has before the packages are installed: what they need, and what the scripts inside use."""


def debian(suite: str, included: str, architecture: str = "amd64") -> Path:
    """Return the root of a Debian, which must not be changed: 200 MB of the user's cache."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "edge-inference-gateway"
    root = home / f"{suite}-{architecture}-{hashlib.sha256(included.encode()).hexdigest()[:8]}"
    if not root.exists():
        home.mkdir(parents=True, exist_ok=True)
        made = root.with_suffix(".new")
        shutil.rmtree(made, ignore_errors=True)
        options = ("--quiet", "--variant=minbase", f"--architectures={architecture}", f"--include={included}")
        run("mmdebstrap", *options, suite, made, limit_s=LIMIT_S)
        made.rename(root)
    return root


def packages(destination: Path, suite: str, architecture: str, version: str, wanted: str) -> None:
    """Build the named packages (or all, if "" is given) of this tree as `version`, with a note in the configuration."""
    source = destination.with_name(f"source-{destination.name}")
    ignored = shutil.ignore_patterns(".venv*", ".git", "build", "dist", ".*cache", "tests")
    shutil.copytree(REPOSITORY, source, symlinks=True, ignore=ignored)
    stated = source / "gateway/__init__.py"
    stated.write_text(re.sub(r'__version__ = ".*"', f'__version__ = "{version}"', stated.read_text()))
    with (source / "packaging/edge-gateway.toml").open("a") as sample:
        sample.write(f"# Settings of {version}.\n")
    chosen = {"DH_OPTIONS": " ".join(f"-p{name}" for name in wanted.split())} if wanted else {}
    environ = {**os.environ, "ZSTD_LEVEL": "1", "SOURCE_DATE_EPOCH": "1790000000", **chosen}
    options = ("--suite", suite, "--arch", architecture, "--dest", destination)
    run(sys.executable, "packaging/deb.py", *options, cwd=source, env=environ, limit_s=LIMIT_S)
    shutil.rmtree(source)


def boot(root: Path, folder: Path, script: str, kind: str = "container") -> dict[str, str]:
    """Boot `root` with `folder`/upper over it, as a container or a virtual machine. Remove `folder`.

    Return what the script inside wrote, by file name.
    """
    here = Path(__file__).parent
    (folder / "upper/result").mkdir(parents=True, exist_ok=True)
    shutil.copy(here / script, folder / "upper/result.sh")
    done = run(
        "unshare", "--mount", "bash", here / "debian.sh", kind, root, folder, MACHINE, check=False, limit_s=LIMIT_S
    )
    leave_no_groups(MACHINE)
    result = folder / "upper/result"
    assert (result / "end").exists(), f"it did not boot: {done.stdout[-4000:]}{done.stderr[-4000:]}"
    answers = {file.name: file.read_text() for file in result.iterdir()}
    shutil.rmtree(folder)
    return answers
