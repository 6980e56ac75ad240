"""Action `edge-gateway models pull SOURCE`: a release from a registry, a web server or a bucket, pinned by digest."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError, UnreachableError
from gateway.common.store.errors import StoreError
from gateway.common.terminal.tables import print_json, progress
from gateway.common.transfer.connection import ConnectionPool
from gateway.common.transfer.source import FetchError
from gateway.serving.cli.common import configured, warn
from gateway.serving.cli.http_client import Keys
from gateway.serving.cli.models_check import check_releases, checked_json, passed, print_checked
from gateway.serving.config import Config, state_folder
from gateway.serving.store.library import scan_version
from gateway.workshop.pull.archive_bounds import ArchiveError
from gateway.workshop.pull.bucket import read_place
from gateway.workshop.pull.pull import PulledRelease, PullRequest, pull_release
from gateway.workshop.pull.reference import OciReference, read_reference
from gateway.workshop.pull.settings import PullSettings
from gateway.workshop.pull.sources import PullAccess

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

FAULTS = {401: Fault.UNAUTHENTICATED, 403: Fault.DENIED, 404: Fault.NOT_FOUND}
"""Faults by the status of a server's refusal."""


def command(arguments: argparse.Namespace) -> int:
    """Pull and check a release; return 1 if it is refused or its check has a finding."""
    request = _request(arguments)
    config = configured(arguments)
    pulled = _pull(request, arguments, config)
    release = scan_version(pulled.folder, config.library)
    checked = asyncio.run(check_releases(config, (release,), state_folder(arguments.state)))
    fine = all(map(passed, checked))
    if arguments.json:
        entries = [checked_json(entry) for entry in checked]
        print_json({"ok": fine, **_facts(request, pulled), "releases": entries})
    else:
        print(f"{release.name} {release.version} {'is' if pulled.is_new else 'was already'} in {pulled.folder}\n")
        print_checked(checked)
    return 0 if fine else 1


def _request(arguments: argparse.Namespace) -> PullRequest:
    if not arguments.dir or not arguments.into:
        raise ConfigurationError("models pull needs a source and --into DIR; see edge-gateway models --help")
    reference = read_reference(arguments.dir, arguments.digest or "")
    if arguments.accept_tag and not isinstance(reference, OciReference):
        raise ConfigurationError("--accept-tag is for oci:// only; a file needs its digest")
    models = Path(arguments.into).absolute()
    return PullRequest(reference, models, arguments.name or "", arguments.version or "", arguments.accept_tag)


def _pull(request: PullRequest, arguments: argparse.Namespace, config: Config) -> PulledRelease:
    Keys(ca=arguments.ca).context()  # refuses a file that is no PEM, with the option's name
    settings = PullSettings().with_options(arguments.ca, arguments.limit_bytes, config.library)
    place = read_place(arguments.endpoint or "", arguments.region or "", arguments.style, os.environ)
    connections = ConnectionPool(settings.fetch)
    access = PullAccess(connections, settings, arguments.credentials_file, place)
    try:
        with refusals(), progress(in_bytes=True) as bar:
            task = bar.add_task(f"pulling {request.reference.name}", total=None)
            pulled = pull_release(request, access, _advance(bar, task))
    finally:
        connections.close()
    reference = request.reference
    if isinstance(reference, OciReference) and not reference.digest:
        warn(f"the tag names this digest now; pin it: {reference}@sha256:{pulled.digest}")
    return pulled


def _advance(bar: Progress, task: TaskID) -> Callable[[int, int], None]:
    return lambda here_bytes, total_bytes: bar.update(task, completed=here_bytes, total=total_bytes)


@contextmanager
def refusals() -> Iterator[None]:
    """Convert errors of a pull to those of commands: refused (exit code 1), or not reached (3)."""
    try:
        yield
    except FetchError as error:
        if not error.final:
            raise UnreachableError(str(error)) from error
        raise RequestError(FAULTS.get(error.status, Fault.INVALID), str(error)) from error
    except ArchiveError as error:
        raise RequestError(Fault.INVALID, f"what was pulled {error}") from error
    except StoreError as error:
        raise UnreachableError(str(error)) from error


def _facts(request: PullRequest, pulled: PulledRelease) -> dict[str, object]:
    return {
        "source": str(request.reference),
        "digest": f"sha256:{pulled.digest}",
        "folder": str(pulled.folder),
        "new": pulled.is_new,
        "bytes": pulled.size_bytes,
    }
