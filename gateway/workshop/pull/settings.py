"""Limits of `edge-gateway models pull`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from gateway.common.store.settings import LibrarySettings, StoreSettings
from gateway.common.transfer.settings import FetchSettings


@dataclass(frozen=True, slots=True)
class PullFetchSettings(FetchSettings):
    """Limits of the requests of a pull."""

    document_deadline_s: float = 180.0
    environment_proxy: bool = True

    retry_after_limit_s: ClassVar[float] = 120.0
    user_agent: ClassVar[str] = "edge-gateway"


@dataclass(frozen=True, slots=True)
class PullSettings:
    """Limits of one pull. `bytes_limit` applies to what is sent, and again to what archives hold."""

    bytes_limit: int = 17_179_869_184  # 16 GiB
    manifest_limit_bytes: int = 4_194_304  # an OCI manifest; registries must take 4 MiB
    token_limit_bytes: int = 65_536  # an answer of a token service
    layers_limit: int = 256  # blobs of one OCI manifest
    restarts: int = 3  # downloads of one file that begin again because its source changed
    entries_limit: int = 10_000  # files and folders in all archives
    depth_limit: int = 16  # folders above a file in an archive
    header_limit_bytes: int = 1_048_576  # one extended header of a tar, or the directory of a zip: both are in memory
    credentials_limit_bytes: int = 1_048_576  # a file of credentials
    fetch: FetchSettings = field(default_factory=PullFetchSettings)
    # Without a quota of the staging folder: the limit of one pull and the free space bound it instead.
    store: StoreSettings = field(default_factory=lambda: StoreSettings(quota_bytes=2**62))
    library: LibrarySettings = field(default_factory=LibrarySettings)

    def with_options(self, ca_file: str | None, bytes_limit: int, library: LibrarySettings) -> PullSettings:
        """Return settings with options of the command line (0 keeps the limit), and the configuration's `library`."""
        return replace(
            self,
            fetch=replace(self.fetch, ca_file=ca_file),
            bytes_limit=bytes_limit or self.bytes_limit,
            library=library,
        )
