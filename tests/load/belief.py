"""Trust of the simulated devices: one verified chain from the pinned root to the director's key, shared by all.

It is refreshed if an assignment does not verify with it. Every signature is real; sharing the chain makes it cheap.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gateway.common.domain.assignment import Assignment
from gateway.common.trust.assignment import verify_assignment
from gateway.common.trust.chain import trusted_root
from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.reading import read_metadata
from gateway.common.trust.settings import DEFAULTS
from gateway.common.trust.signatures import signers
from gateway.common.trust.targets import TARGETS
from tests.load.device import SimulatedDevice
from tests.load.wire import Response

if TYPE_CHECKING:
    from tuf.api.metadata import Root, Targets

Fetch = Callable[[str], Awaitable[Response]]
"""Return the response to a path of the repository. Raise LostError."""
WHERE = "the repository"


class Belief:
    """Trusted metadata of the fleet. `pinned`: the root from the first enrolment; all devices are of one fleet."""

    def __init__(self) -> None:
        self.pinned = b""
        self.root_version = 1
        self._director: Targets | None = None
        self._lock = asyncio.Lock()

    def pin(self, root: Any) -> None:
        """Pin the root of an enrolment. Raise Distrust if it is not signed by its own keys."""
        if not self.pinned:
            content = json.dumps(root).encode()
            trusted_root(content, (), 1)
            self.pinned = content

    async def assignment(self, device: SimulatedDevice, content: bytes, now: datetime, fetch: Fetch) -> Assignment:
        """Return the verified assignment in `content`. Raise Distrust, LostError."""
        director = self._director or await self._refreshed(None, fetch)
        try:
            return _verified(device, content, director, now)
        except Distrust as error:
            if error.reason is not Reason.WRONG_KEY:
                raise
        return _verified(device, content, await self._refreshed(director, fetch), now)

    async def _refreshed(self, known: Targets | None, fetch: Fetch) -> Targets:
        """Return the top-level targets role. Concurrent callers share one fetch.

        `known` is the role with which an assignment did not verify, or None.
        """
        async with self._lock:
            if self._director is None or self._director is known:
                root = await self._root(fetch)
                self._director = await _targets(root, fetch)
            return self._director

    async def _root(self, fetch: Fetch) -> Root:
        """Return the newest root that the pinned one leads to."""
        pinned = json.loads(self.pinned)["signed"]["version"]
        following: list[bytes] = []
        while (found := await fetch(f"metadata/{pinned + len(following) + 1}.root.json")).status == 200:
            following.append(found.body)
        self.root_version = pinned + len(following)
        return trusted_root(self.pinned, following, self.root_version)


async def _targets(root: Root, fetch: Fetch) -> Targets:
    """Read the targets role, found through timestamp and snapshot. Only its own signatures are checked.

    The keys come from `root`. Timestamp and snapshot only say which version is current.
    """
    from tuf.api.metadata import Targets

    timestamp = await _document(fetch, "metadata/timestamp.json")
    version = timestamp["meta"]["snapshot.json"]["version"]
    snapshot = await _document(fetch, f"metadata/{version}.snapshot.json")
    answer = await fetch(f"metadata/{snapshot['meta']['targets.json']['version']}.targets.json")
    metadata = read_metadata(answer.body, Targets, WHERE, DEFAULTS.metadata_limit_bytes)
    signers(root, TARGETS, metadata, WHERE)
    return metadata.signed


async def _document(fetch: Fetch, path: str) -> Any:
    answer = await fetch(path)
    try:
        return json.loads(answer.body)["signed"]
    except (ValueError, KeyError, TypeError) as error:
        raise Distrust(Reason.DAMAGED, path, f"it cannot be read ({error}); status {answer.status}") from error


def _verified(device: SimulatedDevice, content: bytes, director: Targets, now: datetime) -> Assignment:
    last = device.assignment
    return verify_assignment(
        content,
        director,
        device=device.name,
        now=now,
        last_version=last.version if last else 0,
        last_digest=device.digest if last else "",
    )
