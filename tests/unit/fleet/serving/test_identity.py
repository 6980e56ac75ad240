"""Owner of a certificate: verified once, checked against clock and revocations every time."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from fleet.controller.authority.ca import new_authority
from fleet.controller.serving import identity
from fleet.controller.serving.identity import PeerMiddleware, Recognition
from fleet.controller.serving.proxies import read_proxies
from fleet.controller.serving.settings import ProxySettings
from gateway.common.domain.errors import Fault, RequestError
from tests.simulators.fleet_http import AUTHORITY, device

NOW = datetime.now(UTC)
ONE = device("one").certificate.certificate.public_bytes(Encoding.DER)


def test_what_was_verified_is_still_asked_about() -> None:
    times, revoked = [NOW], set()
    recognition = Recognition(AUTHORITY.trusted, lambda: revoked, lambda: times[0])
    found = recognition.device(ONE)
    assert recognition.device(ONE) is found
    revoked.add(found.serial)
    with pytest.raises(RequestError, match="revoked"):
        recognition.device(ONE)
    revoked.clear()
    for days, problem in ((-1, "set the clock"), (91, "has expired")):
        times[0] = NOW + timedelta(days=days)
        with pytest.raises(RequestError, match=problem):
            recognition.device(ONE)


def test_what_did_not_verify_is_not_remembered_as_if_it_had() -> None:
    stranger = device("one", new_authority(NOW), when=NOW).certificate.certificate.public_bytes(Encoding.DER)
    recognition = Recognition(AUTHORITY.trusted, set, lambda: NOW)
    for shown in (stranger, stranger, ONE[:-1], b"", ONE + b"x"):
        with pytest.raises(RequestError) as caught:
            recognition.device(shown)
        assert caught.value.fault is Fault.UNAUTHENTICATED


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "VERIFIED_LIMIT", 2)
    recognition = Recognition(AUTHORITY.trusted, set, lambda: NOW)
    for number in range(4):
        recognition.device(device(f"d{number}", when=NOW).certificate.certificate.public_bytes(Encoding.DER))
    assert len(recognition._known) == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("spelling", [b"client-cert", b"x-forwarded-for"])
async def test_nobody_further_in_sees_a_header_that_speaks_of_identity(spelling: bytes) -> None:
    seen = []

    async def app(scope, _, __) -> None:
        seen.append((scope["headers"], scope["state"]["peer"]))

    recognition = Recognition(AUTHORITY.trusted, set, lambda: NOW)
    part = PeerMiddleware(app, recognition, read_proxies([]), ProxySettings(), Counter())
    headers = [(spelling, b"1.2.3.4"), (b"accept", b"*/*"), (spelling, b"5.6.7.8")]
    await part({"type": "http", "client": ("192.0.2.1", 1), "headers": headers}, None, None)
    assert seen[0][0] == [(b"accept", b"*/*")]
    assert (seen[0][1].address, seen[0][1].device, seen[0][1].proxied) == ("192.0.2.1", "", False)
