"""Simulated devices that renew their certificates as agents do, and adopt the CAs that the answer names.

`python -m tests.simulators.renewing run …`: the options of `tests.load`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from cryptography import x509

from tests.load import actor
from tests.load.__main__ import PROGRAM
from tests.load.conversation import Conversation
from tests.load.enrolling import apply
from tests.load.wire import device_context

RENEW_AT_SHARE = 2 / 3


class RenewingConversation(Conversation):
    """Requests of one device, among them that for another certificate."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._renew_from = _renew_from(self.identity.identity)

    async def cycle(self) -> None:
        """Renew if it is time for it; then as before."""
        if datetime.now(timezone.utc) >= self._renew_from:
            async with self._stage.gate:
                await self._renew()
                self._hang_up()
        await super().cycle()

    async def _renew(self) -> None:
        made = apply(self.identity.device, "")
        body = json.dumps({"csr": json.loads(made.content)["csr"]}).encode()
        answer = await self._request("certificate", "POST", "/v1/self/certificate", body, actor.JSON)
        said = json.loads(answer.body)
        identity = f"{made.key}{said['certificate'].strip()}\n{said['chain'].strip()}\n"
        self.identity = replace(self.identity, identity=identity)
        self.line._context = device_context(said["chain"], identity.encode())
        self._renew_from = _renew_from(identity)


def _renew_from(identity: str) -> datetime:
    held = x509.load_pem_x509_certificate(identity.encode())
    begins, expires = held.not_valid_before_utc, held.not_valid_after_utc
    return begins + (expires - begins) * RENEW_AT_SHARE


if __name__ == "__main__":
    actor.Conversation = RenewingConversation  # type: ignore[misc]
    sys.exit(PROGRAM.main())
