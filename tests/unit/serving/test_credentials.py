"""Replacement of tokens and certificates: at every front end, or at none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.common.domain.access import Address, Security
from gateway.common.domain.errors import ConfigurationError
from gateway.serving.config import AuthSettings, Config
from gateway.serving.credentials import Credentials


class Frontend:
    """A front end that holds what is in force, and may refuse what is new."""

    def __init__(self, security: Security) -> None:
        self.security, self.refuses = security, False

    def secure(self, security: Security) -> Callable[[], None]:
        if self.refuses:
            raise ConfigurationError("no file can be opened")

        def take() -> None:
            self.security = security

        return take


@pytest.mark.parametrize("refusing", [0, 1])
def test_a_set_that_one_front_end_refuses_is_in_force_at_none(tmp_path: Path, refusing: int) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("old\n")
    credentials = Credentials(
        Config(grpc_listen=(Address("127.0.0.1", 1),), auth=AuthSettings(tokens_file=str(tokens)))
    )
    before = credentials.security
    frontends = [credentials.guard(Frontend(before)) for _ in range(2)]
    tokens.write_text("new\n")
    frontends[refusing].refuses = True
    asyncio.run(credentials.renew(None))
    assert [each.security for each in (*frontends, credentials)] == [before] * 3
    frontends[refusing].refuses = False
    asyncio.run(credentials.renew(None))
    assert before not in [each.security for each in (*frontends, credentials)]
