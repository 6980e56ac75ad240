"""`make release` in a repository of its own: what it refuses, and a whole release that is cut and verified."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.installation import REPOSITORY, clean_environment, run

VERSION = "9.9.9"
PAGE = (REPOSITORY / "docs/pages/howto/releases.md").read_text()
IGNORED = shutil.ignore_patterns(".venv*", ".git", "build", "dist", "__pycache__", ".*cache")
UNKNOWN = "A" * 40
REFUSED = {
    "a file that is not committed": ("touch new.txt", "the tree has changes (new.txt): commit"),
    "a changed file": ("echo >> README.md", "the tree has changes (README.md): commit"),
    "another branch": ("git switch -q -c work", "work is checked out: git switch main"),
    "no branch": ("git switch -q --detach", "no branch is checked out: git switch main"),
    "a tag": (f"git tag v{VERSION}", f"v{VERSION} is released: its tag exists"),
    "no heading": ("sed -i '0,/^## .*/d' CHANGELOG.md", "CHANGELOG.md begins with 'no heading'"),
    "another day": (r"sed -i 's/^RELEASED.*/RELEASED = \"2026-01-01\"/' gateway/__init__.py", "of 2026-01-01 in "),
    "a day to come": (
        r"sed -i '1,8s/2[0-9-]*\(\"\?\)$/2999-01-01\1/' gateway/__init__.py CHANGELOG.md",
        " - 2999-01-01'",
    ),
}
"""What makes a repository not ready, and what is said about it."""


@pytest.fixture(scope="module")
def keyring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield variables that name a keyring with one key that can sign."""
    home = tmp_path_factory.mktemp("gnupg")
    home.chmod(0o700)
    gpg = ("gpg", "--homedir", home, "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", "")
    run(*gpg, "--quick-generate-key", "Publisher <publisher@example.invalid>", "ed25519", "sign", "1y")
    yield {"GNUPGHOME": str(home)}
    run("gpgconf", "--homedir", home, "--kill", "all")


@pytest.fixture(scope="module")
def key(keyring: dict[str, str]) -> str:
    listed = run("gpg", "--list-keys", "--with-colons", env=clean_environment(**keyring)).stdout
    return next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr"))


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory, keyring: dict[str, str], key: str) -> Path:
    """Return a repository of this source tree, made ready by the commands that `make release` prints."""
    source = tmp_path_factory.mktemp("release") / "source"
    shutil.copytree(REPOSITORY, source, symlinks=True, ignore=IGNORED)
    shell(source, f"sed -i 's/^__version__.*/__version__ = \"{VERSION}.dev0\"/' gateway/__init__.py")
    shell(source, "git init -q -b main . && git config user.name X && git config user.email x@example.invalid")
    shell(source, "git config gc.auto 0 && git add . && git commit -q -m 'The source'")
    refused = release(source, keyring, "--key", key, "--dry-run")
    assert refused.returncode == 1
    assert f"the version is {VERSION}.dev0 of " in refused.stderr
    commands = re.findall(r"(?m)^    (.*)$", refused.stderr)
    assert len(commands) == 3
    shell(source, "\n".join(commands))
    return source


def shell(source: Path, commands: str, **variables: str) -> str:
    return run("bash", "-euc", commands, cwd=source, env=clean_environment(HOME=str(source.parent), **variables)).stdout


def release(source: Path, keyring: dict[str, str], *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    environ = clean_environment(HOME=str(source.parent), **keyring) | more
    return run(sys.executable, "-B", "packaging/release.py", *options, cwd=source, env=environ, check=False)


def test_a_dry_run_names_what_would_be_made_and_makes_nothing(ready: Path, keyring: dict[str, str], key: str) -> None:
    done = release(ready, keyring, "--key", key, "--dry-run", "--arch", "arm64")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"version {VERSION}: wheel, sdist, site and packages for bookworm-arm64, " in done.stdout
    assert "amd64" not in done.stdout
    assert done.stdout.endswith(f"then the tag v{VERSION}\n")
    assert shell(ready, "git tag; git status --porcelain") == ""
    assert not (ready / "dist").exists()


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_is_not_ready_is_refused(
    ready: Path, keyring: dict[str, str], key: str, tmp_path: Path, wrong: str
) -> None:
    command, expected = REFUSED[wrong]
    source = tmp_path / "source"
    shell(tmp_path, f"git clone -q {ready} source")
    shell(source, f"git config user.name X; git config user.email x@example.invalid; {command}")
    if "sed" in command:
        shell(source, "git commit -q -a -m 'A mistake'")
    done = release(source, keyring, "--key", key)
    assert done.returncode == 1
    assert done.stderr.count("make release: ") == 1
    assert expected in done.stderr
    assert not (source / "dist").exists()


@pytest.mark.parametrize(
    ("options", "code", "expected"),
    [
        ([], 1, "no key is named to sign with: KEY=FINGERPRINT"),
        (["--key", UNKNOWN], 1, f'gpg cannot sign with {UNKNOWN}: gpg: skipped "{UNKNOWN}": No secret key'),
        (["--key", "publisher"], 2, "'publisher' is no fingerprint of 40 hexadecimal digits in capitals"),
        (["--suite", "sarge"], 2, "invalid choice: 'sarge'"),
    ],
)
def test_wrong_options_are_refused(
    ready: Path, keyring: dict[str, str], options: list[str], code: int, expected: str
) -> None:
    done = release(ready, keyring, *options, "--dry-run")
    assert (done.returncode, expected in done.stderr) == (code, True), done.stderr


def test_a_missing_program_is_named_with_its_package(ready: Path, keyring: dict[str, str], tmp_path: Path) -> None:
    for tool in ("git", "gpg", "zstd", "dpkg-buildpackage", "mmdebstrap"):
        (tmp_path / tool).symlink_to(shutil.which(tool) or tool)
    done = release(ready, keyring, "--dry-run", PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "make release: dh is not installed: sudo apt-get install debhelper\n")


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_a_release_that_is_cut_is_completed_and_verified(
    ready: Path, keyring: dict[str, str], key: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shell(tmp_path, f"git clone -q {ready} source")
    shell(source, "git config user.name X; git config user.email x@example.invalid")
    # The environment of this test, which make must not take for older than the locks.
    shell(
        source, f"ln -s {sys.prefix} .venv; echo .venv > .git/info/exclude; touch -d 2001-01-01 Makefile requirements/*"
    )
    words = ("make", "release", f"KEY={key}", "RELEASE=--suite trixie --arch amd64")
    environ = {**os.environ, **keyring, "HOME": str(tmp_path), "ZSTD_LEVEL": "1"}
    with (tmp_path / "log").open("w") as log:
        cut = subprocess.Popen(words, cwd=source, env=environ, start_new_session=True, stdout=log, stderr=log)
    while not [*source.glob("dist/.release-*/*.whl")]:
        assert cut.poll() is None, (tmp_path / "log").read_text()[-3000:]
        time.sleep(0.2)
    os.killpg(cut.pid, signal.SIGKILL)
    cut.wait()
    hook = source / ".git/hooks/reference-transaction"
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    unsigned = run(*words, cwd=source, env=environ, limit_s=2000, check=False)
    assert unsigned.returncode == 2, unsigned.stdout + unsigned.stderr
    assert "make release: 'git -c gpg.format=openpgp tag" in unsigned.stderr
    assert [file.name[:9] for file in (source / "dist").iterdir()] == [".release-"]
    hook.unlink()
    done = run(*words, cwd=source, env=environ)
    assert "building" not in done.stdout, "what was built is kept"
    folder = source / f"dist/release-{VERSION}"
    assert [file.name for file in (source / "dist").iterdir()] == [folder.name]
    assert release(source, keyring, "--key", key).stderr.startswith(f"make release: v{VERSION} is released")

    verify_as_a_user_does(folder, tmp_path, key)
    verify = "\n".join(re.findall(r"(?m)^    (\(cd .*|git tag --verify .*)$", done.stdout))
    shell(source, verify, **keyring)
    files = {file.name for file in folder.iterdir()}
    made = {name for name in files if name.endswith((".deb", ".whl", ".tar.gz", ".oci.tar"))}
    assert Counter(name.rpartition(".")[2] for name in made) == {"deb": 7, "whl": 1, "gz": 2, "tar": 2}
    assert files == made | {f"{name}.cdx.json" for name in made} | {
        "SHA256SUMS",
        "SHA256SUMS.asc",
        "edge-inference-gateway.asc",
    }
    for name in made:
        bill = json.loads((folder / f"{name}.cdx.json").read_text())
        assert bill["bomFormat"] == "CycloneDX"
        assert len(bill["components"]) > (1 if "docs" in name else 0)
    the_source_builds_the_same_wheel(folder, tmp_path)
    page = "dpkg-deb --fsys-tarfile edge-gateway_*.deb | tar -xO ./usr/share/man/man1/edge-gateway.1.gz"
    manual = shell(folder, f"{page} | zcat | man --warnings --local-file - 2>&1", MANWIDTH="80")
    assert "\n         edge-gateway models pull oci://" in manual
    assert "warning" not in manual


def verify_as_a_user_does(folder: Path, scratch: Path, key: str) -> None:
    """Paste the commands of the page, in a new keyring; then again with a file that was changed."""
    (commands,) = re.findall(r"## Verify a download.*?```sh\n(.*?)```", PAGE, re.DOTALL)
    copy = scratch / "downloaded"
    shutil.copytree(folder, copy)
    (copy / "edge-gateway_9.9.9+deb13_amd64.deb.cdx.json").unlink()
    (scratch / "user").mkdir(mode=0o700)
    words = ("bash", "-euc", f"exec 2>&1; {commands}")
    environ = clean_environment(GNUPGHOME=str(scratch / "user"))
    told = run(*words, cwd=copy, env=environ).stdout
    assert "Good signature" in told
    assert key in told.replace(" ", "")
    assert "edge-gateway_9.9.9+deb13_amd64.deb: OK" in told
    assert "edge-inference-gateway.asc: OK" in told
    with (copy / "edge-gateway_9.9.9+deb13_amd64.deb").open("ab") as changed:
        changed.write(b"x")
    done = run(*words, cwd=copy, env=environ, check=False)
    assert (done.returncode, "edge-gateway_9.9.9+deb13_amd64.deb: FAILED" in done.stdout) == (1, True)
    (copy / "SHA256SUMS").write_text("")
    assert "BAD signature" in run(*words, cwd=copy, env=environ, check=False).stdout


def the_source_builds_the_same_wheel(folder: Path, scratch: Path) -> None:
    with tarfile.open(folder / f"edge_inference_gateway-{VERSION}.tar.gz") as archive:
        archive.extractall(scratch, filter="data")
        when = str(archive.getmembers()[0].mtime)
    unpacked = scratch / f"edge_inference_gateway-{VERSION}"
    words = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", scratch)
    run(*words, cwd=unpacked, env=clean_environment(SOURCE_DATE_EPOCH=when))
    wheel = f"edge_inference_gateway-{VERSION}-py3-none-any.whl"
    same = {hashlib.sha256((place / wheel).read_bytes()).hexdigest() for place in (folder, scratch)}
    assert len(same) == 1
