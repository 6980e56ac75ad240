"""Helpers of verbs: the publisher's folder, keys and their secrets, output on drafts."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from securesystemslib.signer import Key, Signer

from fleet.cli.remote import client
from fleet.client.workspace import remote_workspace
from fleet.controller.config import load_config
from fleet.disk import read_bounded
from fleet.publisher.drafts import Draft
from fleet.publisher.keys import KEY_LIMIT_BYTES, PUBLIC_SUFFIX, load_signer, read_public, refuse_to_ask
from fleet.publisher.releases import plan_withdrawal
from fleet.publisher.roles import signer_name
from fleet.publisher.settings import FleetSettings
from fleet.publisher.wording import progress_lines
from fleet.publisher.workspace import Workspace
from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.domain.release_paths import fits_slot, parse_written
from gateway.common.terminal.tables import print_json, progress
from gateway.common.trust.targets import Withdrawal

SAID_LIMIT_CHARS = 500
PASSPHRASE_VARIABLE = "EDGE_FLEET_PASSPHRASE"  # noqa: S105  # its name, not one


def workspace(arguments: argparse.Namespace) -> Workspace:
    """Return the folder of --dir with its fleet.toml. Raise ConfigurationError."""
    folder = Path(arguments.dir)
    return Workspace(folder, load_config(folder).publisher)


@contextmanager
def writing(arguments: argparse.Namespace) -> Iterator[Workspace]:
    """Yield the folder of --dir, locked; with --remote, that of the controller.

    Raise UnreachableError if another process holds the lock.
    """
    if is_remote(arguments):
        with remote_workspace(client(arguments)) as remote:
            yield remote
        return
    work = workspace(arguments)
    with work.locked():
        yield work


def is_remote(arguments: argparse.Namespace) -> bool:
    """Return whether a verb works at a controller instead of a folder."""
    return bool(getattr(arguments, "remote", False) or getattr(arguments, "url", None))


def now() -> datetime:
    """Return the time of the system's clock, in UTC."""
    return datetime.now(timezone.utc)


def asker(arguments: argparse.Namespace, *, attended: bool = True) -> Callable[[str], str]:
    """Return a function that asks for passphrases and PINs.

    It reads --passphrase-file, else the environment, else (`attended`) the terminal.
    """

    def ask(what: str) -> str:
        if arguments.passphrase_file:
            lines = read_bounded(Path(arguments.passphrase_file), KEY_LIMIT_BYTES).decode(errors="replace").splitlines()
            return lines[0] if lines else ""
        if PASSPHRASE_VARIABLE in os.environ:
            return os.environ[PASSPHRASE_VARIABLE]
        if not attended:
            return refuse_to_ask(what)
        if not sys.stdin.isatty():
            raise ConfigurationError(
                f"the {what} is needed and there is no terminal to ask on; "
                f"use --passphrase-file FILE or {PASSPHRASE_VARIABLE}"
            )
        return getpass.getpass(f"{what}: ")

    return ask


def public_keys(files: Iterable[str]) -> list[Key]:
    """Return the keys of `.pub` files. Raise ConfigurationError."""
    return [read_public(Path(file)).key for file in files]


def own_signers(work: Workspace, arguments: argparse.Namespace, wanted: Collection[str]) -> list[Signer]:
    """Return those keys of --key, else of the folder `keys`, that may sign here; others are not opened.

    Raise ConfigurationError, UnreachableError.
    """
    files = [Path(file) for file in arguments.key or sorted(map(str, work.keys.glob(f"*{PUBLIC_SUFFIX}")))]
    publics = [file if file.suffix == PUBLIC_SUFFIX else file.with_suffix(PUBLIC_SUFFIX) for file in files]
    fitting = [
        file
        for file, public in zip(files, publics, strict=True)
        if not public.exists() or read_public(public).key.keyid in wanted
    ]
    signers = [load_signer(file, asker(arguments)) for file in fitting]
    return [signer for signer in signers if signer.public_key.keyid in wanted]


def program_beside(program: str, named: str | None) -> str:
    """Return the path of a device's program on this machine. Raise UnreachableError if there is none."""
    installed = Path(sys.executable).with_name(program)
    found = named or (str(installed) if installed.exists() else shutil.which(program))
    if not found:
        raise UnreachableError(f"there is no {program} here, which checks releases; name it with --{program} PATH")
    return found


def run_check(program: str, command: Sequence[str], settings: FleetSettings) -> dict[str, Any]:
    """Return the JSON that a check by `program` prints; `ok` only if it exited with 0. Raise UnreachableError."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=settings.check_timeout_s, check=False)
        verdict = json.loads(done.stdout)
        return {**verdict, "ok": bool(verdict["ok"]) and done.returncode == 0}
    except subprocess.TimeoutExpired:
        problem = f"took longer than {settings.check_timeout_s:g} s; check it on a faster machine"
        raise UnreachableError(problem, file=" ".join(command)) from None
    except (ValueError, KeyError, TypeError):
        output = done.stderr.decode(errors="replace").strip()[-SAID_LIMIT_CHARS:]
        raise UnreachableError(f"did not answer: {output or 'nothing'}", file=" ".join(command)) from None
    except OSError as error:
        problem = f"cannot be run: {error.strerror}; name the program with --{program} PATH"
        raise UnreachableError(problem, file=command[0]) from None


def print_findings(where: Path, verdict: Mapping[str, Any], check: str, *, as_json: bool) -> int:
    """Print on standard error what a check of `where` found, and that nothing was drafted. Return 1."""
    if as_json:
        print_json(dict(verdict))
    for finding in verdict["findings"]:
        print(f"edge-fleet: {finding if finding.startswith(str(where)) else f'{where}: {finding}'}", file=sys.stderr)
    print(f"edge-fleet: not added: {check} has findings", file=sys.stderr)
    return 1


def withdraw(
    arguments: argparse.Namespace, written: str, slot: str = "", withdrawal: Withdrawal = Withdrawal.OFFER
) -> int:
    """Draft the withdrawal of a release of one kind, by its reserved slot. Raise ConfigurationError for another one."""
    try:
        release = parse_written(written)
    except ValueError:
        release = None
    if release is None or not fits_slot(release.path, slot):
        form = f"{slot}/NAME/VERSION" if slot else "OWNER/MODEL/VERSION"
        raise ConfigurationError(f"{written!r:.200} is not {form}")
    with writing(arguments) as work:
        draft = plan_withdrawal(work.drafting(now()), release.path, withdrawal)
        return save_drafts(work, [draft], as_json=arguments.json)


def draft_json(work: Workspace, draft: Draft) -> dict[str, Any]:
    """Return a draft that waits as a JSON object."""
    return {
        "role": draft.role,
        "version": draft.metadata.signed.version,
        "file": work.place(draft.role),
        "missing": draft.missing,
        "quorums": [
            {
                "purpose": wanted.purpose,
                "threshold": wanted.threshold,
                "optional": wanted.optional,
                "keys": [signer_name(key) for key in wanted.keys],
                "signed": [signer_name(key) for key in wanted.signed_by(draft.metadata)],
            }
            for wanted in draft.quorums
        ],
    }


def save_drafts(work: Workspace, drafts: Sequence[Draft], *, as_json: bool, warnings: Sequence[str] = ()) -> int:
    """Write drafts, and print what comes next, and warnings on standard error. Return 0."""
    voided = [role for role, waiting in work.drafts().items() if waiting.metadata.signatures]
    work.save(drafts)
    for warning in warnings:
        print(f"edge-fleet: warning: {warning}", file=sys.stderr)
    if as_json:
        print_json({"drafts": [draft_json(work, draft) for draft in drafts], "warnings": list(warnings)})
        return 0
    for draft in drafts:
        print(f"drafted {draft.role}, version {draft.metadata.signed.version}: {work.place(draft.role)}")
        for line in progress_lines(draft):
            print(f"  {line}")
        if draft.role in voided:
            print("  signatures of the draft that waited before are void")
    print(f"next: {work.next_steps}")
    return 0


@contextmanager
def byte_progress(what: str, total_bytes: int) -> Iterator[Callable[[int], object]]:
    """Show a progress bar in bytes on standard error, if that is a terminal. Yield what advances it."""
    with progress(in_bytes=True) as bar:
        task = bar.add_task(what, total=total_bytes)
        yield lambda piece: bar.advance(task, piece)
