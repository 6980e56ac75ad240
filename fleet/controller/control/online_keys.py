"""Keys with which this controller signs. The folder is read again if the publication names a missing key."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from securesystemslib.signer import Signer
from tuf.api.metadata import Root

from fleet import events
from fleet.publisher.keys import PUBLIC_SUFFIX, Ask, has_secret, load_signer, read_public
from fleet.publisher.roles import ONLINE
from gateway.common.domain.errors import ConfigurationError, UnreachableError

_log = logging.getLogger(__name__)


class OnlineKeys:
    """Online keys. One per process; any thread may call it. `held`: keys that were read at the start."""

    def __init__(
        self,
        folder: Path,
        held: Sequence[Signer],
        ask: Ask,
        every_s: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._ask, self._every_s, self._monotonic = folder, ask, every_s, monotonic
        self._held = {signer.public_key.keyid: signer for signer in held}
        self._looked: dict[str, tuple[frozenset[str], float]] = {}
        self._problems: dict[Path, str] = {}
        self._lock = threading.Lock()

    def signers(self, role: str, keyids: Sequence[str], threshold: int) -> list[Signer]:
        """Return the signers of these keys that are here.

        The folder is read first if they are fewer than `threshold`: at once for keys that `role` did not lack at the
        last reading, otherwise at most every `every_s`.
        """
        with self._lock:
            missing = frozenset(keyids) - self._held.keys()
            if len(set(keyids)) - len(missing) < threshold and self._is_due(role, missing):
                self._read(missing)
            return [self._held[keyid] for keyid in keyids if keyid in self._held]

    def of_roots(self, roots: Iterable[Root]) -> list[Signer]:
        """Return the signers of snapshot and timestamp that are here, for the keys that any of these roots names."""
        named = ((role, root.roles[role]) for root in roots for role in ONLINE)
        found = [signer for role, one in named for signer in self.signers(role, one.keyids, one.threshold)]
        return [*{signer.public_key.keyid: signer for signer in found}.values()]

    def _is_due(self, role: str, missing: frozenset[str]) -> bool:
        lacked, looked_s = self._looked.get(role, (frozenset(), 0.0))
        now_s = self._monotonic()
        if missing == lacked and now_s - looked_s < self._every_s:
            return False
        self._looked[role] = (missing, now_s)
        return True

    def _read(self, missing: frozenset[str]) -> None:
        for file in sorted(self._folder.glob(f"*{PUBLIC_SUFFIX}")):
            try:
                if read_public(file).key.keyid in missing and has_secret(file):
                    signer = load_signer(file, self._ask)
                    self._held[signer.public_key.keyid] = signer
                    _log.info(events.KEY_LOADED, file)
                self._problems.pop(file, None)
            except (ConfigurationError, UnreachableError, OSError) as error:
                problem = str(error)
                if self._problems.get(file) != problem:
                    self._problems[file] = problem
                    _log.warning(events.KEY_NOT_LOADED, problem)
