"""python-tuf's own client, used without changes, reading a repository's folder without a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tuf.api.exceptions import DownloadHTTPError
from tuf.ngclient import FetcherInterface, Updater, UpdaterConfig


class FolderFetcher(FetcherInterface):
    """Fetcher whose URLs are paths below a folder. A missing file is a 404."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _fetch(self, url: str) -> Iterator[bytes]:
        path = self._folder / url.removeprefix("folder:///")
        if not path.is_file():
            raise DownloadHTTPError(f"no {path}", 404)
        yield path.read_bytes()


class StockClient:
    """Client that keeps its metadata between calls and refreshes it in each."""

    def __init__(self, folder: Path, public: Path, root: bytes) -> None:
        self._folder, self._public, self._root = folder, public, root
        (folder / "metadata").mkdir(parents=True, exist_ok=True)
        (folder / "targets").mkdir(exist_ok=True)

    def refresh(self) -> Updater:
        """Refresh the metadata. Raise RepositoryError if the repository cannot be trusted."""
        updater = Updater(
            str(self._folder / "metadata"),
            "folder:///metadata/",
            str(self._folder / "targets"),
            "folder:///targets/",
            fetcher=FolderFetcher(self._public),
            config=UpdaterConfig(prefix_targets_with_hash=True),
            bootstrap=self._root,
        )
        updater.refresh()
        return updater

    def download(self, path: str) -> bytes:
        """Return a target's content. Raise RepositoryError."""
        updater = self.refresh()
        found = updater.get_targetinfo(path)
        assert found, f"{path} is not in the repository"
        return Path(updater.download_target(found)).read_bytes()
