"""TUF client of the device: the workflow of tuf.ngclient, made safe against loss of power.

`tuf.ngclient` decides what is trusted. This module adds what version 7.0.1 lacks (measured): durable writes; a
reference time that is passed in; floors that survive a lost timestamp or snapshot; bounded downloads in memory; the raw
bytes of verified metadata, which the daemon verifies again.
https://theupdateframework.github.io/specification/latest/#detailed-client-workflow
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import IO, cast

from tuf.api import exceptions
from tuf.api.metadata import Metadata, Root, Signed, Snapshot, TargetFile, Targets, Timestamp
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig

from gateway.common.files import durable
from gateway.common.transfer.source import FetchError, RepositorySource
from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.floors import RoleKeys, check_role_floor, keys_of, raised_floors, role_floor
from gateway.common.trust.reading import check_values
from gateway.common.trust.signatures import signers
from gateway.common.trust.targets import ONLINE
from gateway.device.agent.settings import RepositorySettings


class SourceFetcher(FetcherInterface):
    """Fetcher for tuf. Documents are held in memory up to their limit; nothing is written to $TMPDIR."""

    def __init__(self, source: RepositorySource) -> None:
        self._source = source

    def _fetch(self, url: str) -> Iterator[bytes]:
        raise NotImplementedError("a length is always known here: download_bytes")

    def download_bytes(self, url: str, max_length: int) -> bytes:
        """Return the file. Raise DownloadHTTPError on 403 and 404, which end the chain of roots, else FetchError."""
        try:
            return self._source.read(url, max_length).content or b""
        except FetchError as error:
            if error.status in {403, 404}:
                raise exceptions.DownloadHTTPError(str(error), error.status) from error
            raise

    @contextmanager
    def download_file(self, url: str, max_length: int) -> Iterator[IO[bytes]]:
        """Yield the file as a stream."""
        yield BytesIO(self.download_bytes(url, max_length))


class DurableUpdater(Updater):
    """One refresh at one reference time. `folder` holds the metadata; one process at a time.

    `now`: the current time. Documents of online keys may be expired by `grace` (0 with a network); documents of offline
    keys never. `floors`: the journal's; no role may be older, whatever happened to the files. Raise what tuf raises,
    FetchError, Distrust if a floor would fall, OSError if the disk fails.
    """

    def __init__(
        self,
        folder: Path,
        source: RepositorySource,
        pinned_root: bytes,
        now: datetime,
        *,
        grace: timedelta = timedelta(0),
        floors: Mapping[str, int] | None = None,
        settings: RepositorySettings | None = None,
        metadata_path: str = "metadata/",
        targets_path: str = "targets/",
    ) -> None:
        self._folder, self._now, self.floors = folder, now, dict(floors or {})
        self._raw: dict[str, bytes] = {}
        bounds = settings or RepositorySettings()
        self._values_left = bounds.values_limit
        self._parents: dict[str, str] = {}
        self._loaded_for: dict[str, str] = {}
        self._chain_followed = False
        durable.make_folder(folder / "root_history")
        for place in (folder, folder / "root_history"):
            durable.sweep(place)
        super().__init__(
            str(folder),
            metadata_path,
            target_base_url=targets_path,
            fetcher=SourceFetcher(source),
            config=UpdaterConfig(
                max_root_rotations=bounds.root_rotations,
                max_delegations=bounds.delegations,
                root_max_length=bounds.root_limit_bytes,
                timestamp_max_length=bounds.timestamp_limit_bytes,
                snapshot_max_length=bounds.snapshot_limit_bytes,
                targets_max_length=bounds.targets_limit_bytes,
            ),
            bootstrap=pinned_root,
        )
        self._trusted_set.reference_time = now - grace

    @property
    def root(self) -> Root:
        """Newest root that the pinned root leads to."""
        return self._trusted_set.root

    @property
    def targets(self) -> Targets:
        """Top-level targets role, verified; available after `refresh`."""
        return self._trusted_set.targets

    def find(self, path: str) -> tuple[TargetFile, Targets, tuple[bytes, ...]] | None:
        """Return target, role and metadata chain (from targets down) of the first role responsible for `path`.

        Return None if the role does not sign `path`.
        """
        self._parents.clear()
        target = self.get_targetinfo(path)
        if target is None:
            return None
        chain = [next(reversed(self._parents))]  # the search ends with the role that signs the target
        while chain[0] != Targets.type:
            chain.insert(0, self._parents[chain[0]])
        role = cast("Targets", self._trusted_set[chain[-1]])
        return target, role, tuple(self._raw[name] for name in chain)

    def read_target(self, target: TargetFile, limit_bytes: int) -> bytes:
        """Return a target's content, checked against its metadata. Raise Distrust if it exceeds `limit_bytes`."""
        if target.length > limit_bytes:
            problem = f"its metadata says {target.length} bytes, at most {limit_bytes} are read"
            raise Distrust(Reason.TOO_LARGE, target.path, problem)
        folder, slash, name = target.path.rpartition("/")
        prefix = f"{next(iter(target.hashes.values()))}." if self.root.consistent_snapshot else ""  # TUF 5.7.3
        content = self._fetcher.download_bytes(f"{self._target_base_url}{folder}{slash}{prefix}{name}", target.length)
        target.verify_length_and_hashes(content)
        return content

    def risen_floors(self) -> dict[str, int]:
        """Return floors that the verified metadata raises. Keep them in one transaction with what follows from them."""
        risen: dict[str, int] = {}
        for role, signed in self._loaded().items():
            if role_floor(role, self._keys(role), self.floors) < signed.version:
                voucher = _voucher(role)
                file = self._folder / "root_history" / f"{self.root.version}.root.json"
                raw = Metadata.from_bytes(self._raw.get(voucher) or file.read_bytes())
                risen |= raised_floors(role, signed.version, signers(self.root, voucher, raw, voucher), self.floors)
        return risen

    def expiries(self) -> dict[str, datetime]:
        """Return the expiry of each verified role."""
        return {role: signed.expires for role, signed in self._loaded().items()}

    def _loaded(self) -> dict[str, Signed]:
        return {role: self._trusted_set[role] for role in (Root.type, *self._raw) if role in self._trusted_set}

    def _keys(self, role: str) -> RoleKeys:
        """Return the keys that decide which version of a role is current (gateway/common/trust/floors.py)."""
        return keys_of(self.root, _voucher(role))

    def _check(self, role: str) -> None:
        """Check floors and expiry beyond tuf's checks, before metadata is kept and again when it is read back."""
        signed = self._trusted_set[role]
        check_role_floor(role, signed.version, self._keys(role), self.floors)
        if role not in ONLINE and signed.is_expired(self._now):
            raise exceptions.ExpiredMetadataError(f"{role} version {signed.version} expired at {signed.expires}")

    def _load_root(self) -> None:
        self._chain_followed = True
        super()._load_root()
        self._check(Root.type)  # TUF 5.3.10: the freeze attack check follows after root is kept

    def _load_timestamp(self) -> None:
        super()._load_timestamp()
        self._check(Timestamp.type)

    def _load_snapshot(self) -> None:
        super()._load_snapshot()
        self._check(Snapshot.type)

    def _load_targets(self, role: str, parent_role: str) -> Targets:
        self._parents[role] = parent_role
        if self._loaded_for.get(role, parent_role) != parent_role:
            # tuf caches one document per name, and each delegator it was verified for. With two delegators of one name,
            # one would get the other's document. Loading it again verifies it against this delegator.
            self._trusted_set._trusted_delegations.discard((parent_role, role))
        self._loaded_for[role] = parent_role
        targets = super()._load_targets(role, parent_role)
        self._check(role)
        return targets

    def _load_local_metadata(self, rolename: str) -> bytes:
        data = self._counted(super()._load_local_metadata(rolename), rolename)
        self._raw[rolename] = data
        return data

    def _download_metadata(self, rolename: str, length: int, version: int | None = None) -> bytes:
        return self._counted(super()._download_metadata(rolename, length, version), rolename)

    def _counted(self, data: bytes, role: str) -> bytes:
        """Count values before parsing. All documents of a refresh stay in memory, except old roots."""
        values = check_values(data, role)
        if role != Root.type:
            self._values_left -= values
        if self._values_left < 0:
            problem = "what is signed has more values than are read together"
            raise Distrust(Reason.TOO_LARGE, role, problem)
        return data

    def _persist_metadata(self, rolename: str, data: bytes) -> None:
        """Keep metadata that tuf has just verified. It is not on disk before."""
        self._check(rolename)
        self._raw[rolename] = data
        super()._persist_metadata(rolename, data)

    def _persist_file(self, filename: str, data: bytes) -> None:
        file = Path(filename)
        if not file.is_file() or file.read_bytes() != data:  # the pinned root is passed in at every poll
            durable.write_file(file, data)

    def _update_root_symlink(self) -> None:
        """Point root.json to root_history/N.root.json, never back to the pinned root, with which a refresh begins."""
        link = self._folder / "root.json"
        current = f"root_history/{self.root.version}.root.json"
        leads_to = str(link.readlink()) if link.is_symlink() else ""
        if os.path.lexists(link) and (not self._chain_followed or leads_to == current):
            return
        staged = durable.temporary(self._folder)
        staged.symlink_to(current)
        durable.rename(staged, link)


def _voucher(role: str) -> str:
    """Return the role whose signature states the version of `role`: snapshot for targets and what it delegates."""
    return role if role in ONLINE | {Root.type} else Snapshot.type
