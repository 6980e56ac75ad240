"""Publication over the API: moves ready drafts into `public`, signed with the online keys in `keys`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from fleet.controller.audit import Deed
from fleet.controller.blobs.choice import upload
from fleet.controller.blobs.store import BlobStore
from fleet.controller.control.drafts import Drafts
from fleet.controller.control.online_keys import OnlineKeys
from fleet.controller.database import audit
from fleet.controller.problems import ProblemError
from fleet.problem_types import PUBLICATION_REFUSED
from fleet.publisher.impact import Impact, impacts
from fleet.publisher.publish import Publication, choose_ready, online_roots, plan_publication, with_drafts
from fleet.publisher.repository import BLOBS
from fleet.publisher.signing import Drafting
from fleet.publisher.verify import Expiry, expiries
from gateway.common.domain.errors import ConfigurationError

SUBJECT_CHARACTERS = 100
"""Largest number of characters of the published roles in the list of audit entries; the details hold all roles."""


@dataclass(frozen=True, slots=True)
class PublicationState:
    """Published state, and the effect of a publication. `ready`: roles; `waiting`: why others wait."""

    expiries: tuple[Expiry, ...]
    ready: tuple[str, ...]
    waiting: Mapping[str, str]
    concerns: tuple[Impact, ...]


@dataclass(frozen=True, slots=True)
class PublicationResult:
    """Result of a publication: versions by role, files copied, files uploaded (None: no bucket)."""

    published: Mapping[str, int]
    waiting: Mapping[str, str]
    files: int
    uploaded: int | None
    concerns: tuple[Impact, ...]
    expires: datetime


class Publisher:
    """Publisher of a controller: one per process, for any thread. `bucket`: second place of blobs, or None."""

    def __init__(self, drafts: Drafts, keys: OnlineKeys, bucket: BlobStore | None) -> None:
        self._drafts, self._keys, self._bucket = drafts, keys, bucket

    def standing(self, now: datetime) -> PublicationState:
        """Return the state before a publication. Raise RequestError UNAVAILABLE, AwayError."""
        return self._standing(self._drafts.drafting(now))

    def publish(self, by: str, now: datetime, *, check: Callable[[PublicationState], object]) -> PublicationResult:
        """Publish what is ready, with a new timestamp. `check` gets the state before, and raises a refusal.

        An interrupted publication can be repeated. Raise ProblemError, RequestError OVERLOADED, UNAVAILABLE, AwayError.
        """
        with self._drafts.changing(by, now) as drafting:
            standing = self._standing(drafting)
            check(standing)
            publication, content = self._planned(drafting)
            uploaded = self._to_bucket(content)
            self._drafts.workspace.copy(publication.targets)
            soonest = expiries(publication.state, now)[0].expires
            done = PublicationResult(
                publication.versions, publication.waiting, len(content), uploaded, standing.concerns, soonest
            )
            drafts = self._drafts.workspace.drafts()
            versions = {
                **{role: drafts[role].metadata.signed.version for role in drafts.keys() - drafting.drafts.keys()},
                **done.published,
            }
            details = {"published": dict(versions), "waiting": sorted(done.waiting), "files": done.files}
            deed = Deed(by, "publication.publish", ",".join(sorted(versions))[:SUBJECT_CHARACTERS], details)
            with self._drafts.database.write() as connection:
                audit.append(connection, deed, now)
                self._drafts.workspace.write(publication)
            self._drafts.workspace.clear(publication)  # later: drafts that stay let a repetition record what was done
        return done

    def _standing(self, drafting: Drafting) -> PublicationState:
        published = drafting.published
        ready, waiting = choose_ready(published, drafting.drafts.values(), drafting.now)
        found = tuple(impacts(self._drafts.running(), published, with_drafts(published, ready)))
        return PublicationState(expiries(published, drafting.now), tuple(sorted(ready)), waiting, found)

    def _planned(self, drafting: Drafting) -> tuple[Publication, Mapping[str, str]]:
        signers = self._keys.of_roots(online_roots(drafting.published, drafting.drafts))
        work = self._drafts.workspace
        try:
            publication = plan_publication(
                drafting.published, [*drafting.drafts.values()], signers, drafting.now, work.settings
            )
            return publication, work.content(publication.targets)
        except ConfigurationError as error:
            problem = f"nothing was published: {error}"
            raise ProblemError(PUBLICATION_REFUSED.status, problem, kind=PUBLICATION_REFUSED) from None

    def _to_bucket(self, content: Iterable[str]) -> int | None:
        if self._bucket is None:
            return None
        files = [self._drafts.workspace.staged / name for name in content if name.startswith(f"{BLOBS}/")]
        return upload(self._bucket, {file.name: file for file in files}, lambda _: None)
