"""`make release`: all files of one version, with bills of materials, checksums, a signature and a signed tag.

Everything is built from one clean commit of main, into dist/release-VERSION. Nothing is uploaded. A run that was cut is
run again: what was built completely is kept for its commit, anything else is built anew.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

from deb import FLEET, LOCKS, MACHINES, RELEASES, Build, bill, component, locked
from image import PARTS, SUITE, Image
from install import DISTRIBUTION, SOURCE, InstallError, make_tools, run, say
from packaging.utils import canonicalize_name
from record import digest

from gateway import RELEASED, __version__
from gateway.common.files import durable

EXAMPLES = """examples:
  make release KEY=FINGERPRINT                                 everything
  make release KEY=FINGERPRINT RELEASE=--dry-run               only check, and list what would be made
  make release KEY="OLD NEW"                                   sign with two keys; the first one signs the tag
  make release KEY=FINGERPRINT RELEASE='--suite bookworm --arch arm64'

exit codes: 0 fine · 1 not ready, nothing was built · 2 usage · 3 a step failed
gpg --list-secret-keys shows fingerprints. docs/pages/howto/releases.md has every step."""
TOOLS = {
    **dict.fromkeys(("git", "zstd", "mmdebstrap")),
    "gpg": "gnupg",
    "dpkg-buildpackage": "dpkg-dev",
    "dh": "debhelper",
}
"""Debian package of each program that a release needs; None: of the same name."""
DIST = SOURCE / "dist"
TAG = f"v{__version__}"
SITE = {"docs.txt": ("mkdocs", "mkdocs-material")}
"""Distributions whose files are part of the site."""


def output(*command: str) -> str:
    """Return what a command prints in the source tree; nothing if it fails."""
    done = subprocess.run(command, cwd=SOURCE, check=False, capture_output=True, text=True)
    return "" if done.returncode else done.stdout.strip()


def missing_tools() -> Iterator[str]:
    """Yield each program that is absent, with the command that installs it."""
    for tool, package in TOOLS.items():
        if not shutil.which(tool):
            yield f"{tool} is not installed: sudo apt-get install {package or tool}"


def findings_of_tree() -> Iterator[str]:
    """Yield why the source tree cannot be released: branch, changes."""
    branch = output("git", "symbolic-ref", "--short", "HEAD") or "no branch"
    if branch != "main":
        yield f"releases are made from main, and {branch} is checked out: git switch main"
    if changes := output("git", "status", "--porcelain", "--untracked-files=normal"):
        names = [line.split(maxsplit=1)[1] for line in changes.splitlines()]
        yield f"the tree has changes ({', '.join(names[:5])}{' …' if names[5:] else ''}): commit or remove them"


def findings_of_version() -> Iterator[str]:
    """Yield where version, its day, CHANGELOG.md and tags disagree."""
    if output("git", "rev-parse", "--verify", "--quiet", f"refs/tags/{TAG}"):
        yield f"{TAG} is released: its tag exists. The next version needs a new number in gateway/__init__.py"
        return
    today, base = datetime.now(timezone.utc).strftime("%Y-%m-%d"), __version__.partition(".dev")[0]
    heading = re.search(r"(?m)^## .*$", (SOURCE / "CHANGELOG.md").read_text("utf-8"))
    found = heading.group() if heading else "no heading"
    if __version__ == base and found == f"## [{base}] - {RELEASED}" and today >= RELEASED:
        return
    yield f"""the version is {__version__} of {RELEASED} in gateway/__init__.py, and CHANGELOG.md begins with {found!r}.
To release {base} today:
    sed -i 's/^__version__ = .*/__version__ = "{base}"/; s/^RELEASED = .*/RELEASED = "{today}"/' gateway/__init__.py
    sed -i '0,/^## .*/s//## [{base}] - {today}/' CHANGELOG.md
    git commit --all --message 'Release {base}'"""


def findings_of_keys(keys: Sequence[str]) -> Iterator[str]:
    """Yield why gpg cannot sign with the keys, by signing a file with each of them."""
    if not keys:
        yield "no key is named to sign with: KEY=FINGERPRINT (gpg --list-secret-keys)"
    for key in keys:
        # To a pipe: where gpg fails it removes its output file, /dev/null too.
        words = ("gpg", "--quiet", "--local-user", key, "--output", "-", "--detach-sign", SOURCE / "CHANGELOG.md")
        done = subprocess.run(words, check=False, capture_output=True)
        if done.returncode:
            reason = " ".join(done.stderr.decode().split())
            remedy = "see gpg --list-secret-keys; for a passphrase: export GPG_TTY=$(tty)"
            yield f"gpg cannot sign with {key}: {reason}; {remedy}"


def fingerprint(text: str) -> str:
    """Check that a key is named in full: shorter names are ambiguous."""
    if not re.fullmatch(r"[0-9A-F]{40}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no fingerprint of 40 hexadecimal digits in capitals")
    return text


def bill_of(file: Path) -> str:
    """Return the bill of materials of a file: that inside a package, else what the locks hold for it."""
    if file.suffix == ".deb":
        inside = f"./usr/share/doc/{file.name.split('_')[0]}/sbom.cdx.json"
        unpack, extract = ("dpkg-deb", "--fsys-tarfile", file), ("tar", "--extract", "--to-stdout", inside)
        with subprocess.Popen(unpack, stdout=subprocess.PIPE) as opened:
            return subprocess.run(extract, stdin=opened.stdout, check=True, capture_output=True, text=True).stdout
    targets = [Build(suite, arch, file.parent, file).target for suite in RELEASES for arch in MACHINES]
    found = {
        (str(canonicalize_name(needed.name)), str(needed.specifier).removeprefix("=="))
        for lock, wanted in (SITE if "docs" in file.name else LOCKS).items()
        for needed, _ in locked(lock)
        if not wanted or needed.name in wanted
        if needed.marker is None or any(needed.marker.evaluate(target) for target in targets)
    }
    hashes = [{"alg": "SHA-256", "content": digest(file)}]
    whole = {"type": "application", "name": file.name, "version": __version__, "hashes": hashes}
    return bill(whole, [component(*one) for one in sorted(found)])


def build(folder: Path, suites: Sequence[str], machines: Sequence[str], keys: Sequence[str]) -> None:
    """Build sdist, wheel, packages, images, site, bills of materials and, when all else is there, the checksums.

    Images are of packages of one suite (packaging/image.py).

    These hold the public keys as well, so that an older key vouches for a newer one.

    Raises InstallError, OSError, CalledProcessError.
    """
    run("make", "--no-print-directory", "check", "docs", cwd=SOURCE)
    with tempfile.TemporaryDirectory(prefix="edge-release-") as work:
        tools = make_tools(Path(work))
        run(tools, "-m", "hatchling", "build", "-d", folder, cwd=SOURCE)
        for suite in suites:
            for machine in machines:
                with tempfile.TemporaryDirectory(dir=work) as one:
                    Build(suite, machine, Path(one), tools).run(folder)
        for parts in (PARTS, (FLEET,)) if SUITE in suites else ():
            for machine in machines:
                with tempfile.TemporaryDirectory(dir=work) as one:
                    Image(machine, parts, folder, Path(one)).build(folder, int(os.environ["SOURCE_DATE_EPOCH"]))
    site = folder / f"{DISTRIBUTION}-docs-{__version__}.tar.gz"
    fixed = ("--sort=name", f"--mtime=@{os.environ['SOURCE_DATE_EPOCH']}", "--owner=0", "--group=0", "--numeric-owner")
    run("tar", *fixed, "--use-compress-program=gzip -n", "-cf", site, "-C", SOURCE / "build/docs", ".")
    for file in [each for each in folder.iterdir() if not each.name.endswith((".oci.tar", ".json"))]:
        (folder / f"{file.name}.cdx.json").write_text(bill_of(file))
    run("gpg", "--armor", "--output", folder / f"{DISTRIBUTION}.asc", "--export", *keys)
    sums = "".join(f"{digest(file)}  {file.name}\n" for file in sorted(folder.iterdir()))
    durable.write_file(folder / "SHA256SUMS", sums.encode(), mode=0o644)


def sign(folder: Path, keys: Sequence[str]) -> None:
    """Sign the checksums of what is there. Raises CalledProcessError."""
    run("sha256sum", "--quiet", "--check", "SHA256SUMS", cwd=folder)
    users = [word for key in keys for word in ("--local-user", key)]
    signature = folder / "SHA256SUMS.asc"
    run("gpg", "--quiet", "--yes", *users, "--armor", "--output", signature, "--detach-sign", folder / "SHA256SUMS")


def report(folder: Path, keys: Sequence[str]) -> None:
    """Print a table of the files, and what to do next."""
    for file in sorted(folder.iterdir()):
        say(f"{file.stat().st_size / 1e3:10,.0f} kB  {file.name}")
    name, commit = folder.relative_to(SOURCE), output("git", "rev-parse", "--short", "HEAD")
    say(f"""
{name} has version {__version__} of commit {commit}, signed by {" and ".join(keys)}. Nothing was uploaded.
Verify:
    (cd {name} && gpg --verify SHA256SUMS.asc SHA256SUMS && sha256sum --quiet --check SHA256SUMS)
    git tag --verify {TAG}
CI (.ci/run) must have passed for {commit}: this command does not ask for its result. Then publish:
    git push origin main {TAG}
    packaging/apt-repo {name} dist/apt {" ".join(keys)}
    .venv/bin/uv publish {name}/edge_inference_gateway-{__version__}{{-py3-none-any.whl,.tar.gz}}
and copy {name} to the place of downloads.
Then begin the next version: a new number that ends with .dev0, and a section of CHANGELOG.md.
To give up this release before it is published: git tag --delete {TAG}""")


def complain(message: str) -> int:
    sys.stderr.write(f"make release: {message}\n")
    return 3


def main() -> int:
    """Release; 0 fine, 1 not ready, 2 usage, 3 a step failed."""
    parser = argparse.ArgumentParser(
        prog="make release", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--key", action="append", type=fingerprint, default=[], help="what gpg signs with; repeatable")
    parser.add_argument("--suite", action="append", choices=sorted(RELEASES), help="default: each; repeatable")
    parser.add_argument("--arch", action="append", choices=sorted(MACHINES), help="default: each; repeatable")
    parser.add_argument("--dry-run", action="store_true", help="only check, and list what would be made")
    options = parser.parse_args()
    suites, machines = options.suite or sorted(RELEASES), options.arch or sorted(MACHINES)
    findings = [*missing_tools()] or [*findings_of_tree(), *findings_of_version(), *findings_of_keys(options.key)]
    for finding in findings:
        sys.stderr.write(f"make release: {finding}\n")
    if findings:
        return 1
    packages = [f"{suite}-{machine}" for suite in suites for machine in machines]
    images = ", images for both programs" if SUITE in suites else ""
    say(f"version {__version__}: wheel, sdist, site and packages for {', '.join(packages)}{images}; then the tag {TAG}")
    if options.dry_run:
        return 0
    commit, names = output("git", "rev-parse", "HEAD"), "-".join([*packages, *(key[-8:] for key in options.key)])
    os.environ["SOURCE_DATE_EPOCH"] = output("git", "log", "-1", "--format=%ct")
    os.umask(0o022)
    folder, partial = DIST / f"release-{__version__}", DIST / f".release-{commit[:12]}-{names}"
    try:
        if not (partial / "SHA256SUMS").exists():
            for left in DIST.glob(".release-*"):  # by runs that were cut
                shutil.rmtree(left)
            partial.mkdir(parents=True)
            build(partial, suites, machines, options.key)
        if [*findings_of_tree()] or output("git", "rev-parse", "HEAD") != commit:
            shutil.rmtree(partial)
            return complain("the source tree changed during the build. Run it again: it begins anew")
        sign(partial, options.key)
        tag = ("-c", "gpg.format=openpgp", "tag", "--local-user", options.key[0])
        run("git", *tag, "--message", f"Edge inference gateway {__version__}", TAG, commit, cwd=SOURCE)
        shutil.rmtree(folder, ignore_errors=True)  # of a release that was given up
        partial.rename(folder)
    except subprocess.CalledProcessError as error:
        return complain(
            f"'{' '.join(map(str, error.cmd[:6]))} …' ended with {error.returncode}; see above. Run it again"
        )
    except (InstallError, OSError) as error:
        return complain(f"{error}. Run it again")
    report(folder, options.key)
    return 0


if __name__ == "__main__":
    sys.exit(main())
