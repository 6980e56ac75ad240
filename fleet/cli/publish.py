"""`edge-fleet publish`: copies what is signed to `public`, in an order that harms no device."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from fleet.cli.common import byte_progress, is_remote, now, own_signers, writing
from fleet.cli.drafts import publish_remote
from fleet.controller.blobs.choice import open_blobs, upload
from fleet.controller.config import load_config
from fleet.publisher.drafts import merged
from fleet.publisher.impact import Impact, impacts
from fleet.publisher.publish import Publication, is_published, online_roots, plan_publication
from fleet.publisher.repository import BLOBS
from fleet.publisher.roles import ONLINE
from fleet.publisher.verify import expiries
from fleet.publisher.workspace import Workspace
from gateway.common.domain.errors import ConfigurationError, RequestError, UnreachableError
from gateway.common.domain.release_form import TIME_FORMAT
from gateway.common.terminal.tables import counted, print_json


def command(arguments: argparse.Namespace) -> int:
    """Merge signatures that were made elsewhere, then publish what is ready and print what waits."""
    if is_remote(arguments):
        return publish_remote(arguments)
    with writing(arguments) as work:
        published = work.published()
        drafts = {role: draft for role, draft in work.drafts().items() if not is_published(draft, published)}
        for name in arguments.draft:
            returned = work.read_draft(Path(name))
            if returned.role not in drafts:
                raise ConfigurationError(
                    f"no draft of {returned.role} waits here; it was published or dropped", file=name
                )
            drafts[returned.role] = merged(drafts[returned.role], returned)
            work.save([drafts[returned.role]])
        signers = own_signers(
            work,
            arguments,
            {keyid for root in online_roots(published, drafts) for role in ONLINE for keyid in root.roles[role].keyids},
        )
        publication = plan_publication(published, list(drafts.values()), signers, now(), work.settings)
        found = tuple(impacts(_running(arguments.dir), published, publication.state))
        for impact in found:
            print(f"edge-fleet: {impact.sentence}", file=sys.stderr)
        content = work.content(publication.targets)
        uploaded = _upload(work, content, whole=arguments.mirror)
        with byte_progress("publishing", sum((work.staged / name).stat().st_size for name in content)) as advance:
            work.copy(publication.targets, advance)
        work.publish(publication)
    return _say(work, publication, len(content), uploaded, found, as_json=arguments.json)


def _running(folder: str) -> Mapping[tuple[str, str], int]:
    """Return how many devices run each release, by slot and path; empty if no controller's database can be read."""
    if not (load_config(Path(folder)).database.url or (Path(folder) / "fleet.sqlite").exists()):
        return {}  # no controller works in this folder
    try:
        from fleet.cli.local_database import opened_database  # sqlalchemy, which only a controller needs
        from fleet.controller.database import watching

        with opened_database(folder) as database, database.read() as connection:
            return watching.running_by_slot(connection)
    except (ConfigurationError, UnreachableError, RequestError, OSError, ModuleNotFoundError) as error:
        print(f"edge-fleet: affected devices are not counted: {error}", file=sys.stderr)
        return {}


def _upload(work: Workspace, content: Iterable[str], *, whole: bool) -> int | None:
    """Upload blobs that are about to be published to the bucket of `[blobs.s3]`; `whole`: and published ones.

    Return how many were uploaded, or None if there is no bucket.
    """
    settings = load_config(work.folder).blobs
    if not settings.s3.bucket:
        return None
    files = [work.staged / name for name in content if name.startswith(f"{BLOBS}/")]
    files += (work.public / BLOBS).glob("[!.]*") if whole else []
    with byte_progress("uploading", sum(file.stat().st_size for file in files)) as advance:
        try:
            return upload(open_blobs(work.public / BLOBS, settings), {file.name: file for file in files}, advance)
        except RequestError as error:
            raise UnreachableError(f"nothing was published: {error.message}") from error


def _say(
    work: Workspace,
    done: Publication,
    files: int,
    uploaded: int | None,
    found: Sequence[Impact],
    *,
    as_json: bool,
) -> int:
    soonest = expiries(done.state, now())[0]
    if as_json:
        document = {
            "public": str(work.public),
            "published": done.versions,
            "waiting": dict(done.waiting),
            "files": files,
        }
        document |= {} if uploaded is None else {"uploaded": uploaded}
        concerns = [asdict(impact) for impact in found]
        print_json({**document, "concerns": concerns, "expires": soonest.expires.strftime(TIME_FORMAT)})
        return 0
    for role, version in done.versions.items():
        print(f"published {role}, version {version}")
    for role, why in done.waiting.items():
        print(f"the draft of {role} waits: {why}")
    if uploaded is not None:
        print(f"{counted(uploaded, 'blob')} uploaded to the bucket")
    print(
        f"{counted(files, 'file')} copied to {work.public}; publish again before {soonest.expires:%Y-%m-%d %H:%M} UTC"
    )
    return 0
