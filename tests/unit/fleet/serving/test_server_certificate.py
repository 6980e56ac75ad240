"""Certificate that the port shows, as time goes by."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from fleet.controller.authority.ca import new_authority
from fleet.controller.serving.tls import filed_certificate, own_certificate
from gateway.common.domain.errors import ConfigurationError

NOW = datetime(2031, 5, 9, 12, tzinfo=UTC)


def test_its_own_is_renewed_at_two_thirds_of_its_life() -> None:
    shown = own_certificate(new_authority(NOW), ["fleet.example", "192.0.2.7"])
    first = shown(NOW)
    assert shown(NOW + timedelta(days=59)) == first
    second = shown(NOW + timedelta(days=61))
    assert second != first
    assert x509.load_pem_x509_certificate(second[0]).not_valid_after_utc == NOW + timedelta(days=61 + 90)
    assert shown(NOW + timedelta(days=62)) == second


def test_what_was_signed_while_the_clock_was_ahead_is_signed_anew() -> None:
    shown = own_certificate(new_authority(NOW), ["fleet.example"])
    assert x509.load_pem_x509_certificate(shown(NOW + timedelta(days=400))[0]).not_valid_before_utc > NOW
    after = shown(NOW)
    assert x509.load_pem_x509_certificate(after[0]).not_valid_before_utc <= NOW
    assert shown(NOW + timedelta(days=1)) == after


def test_files_are_read_as_they_are_now(tmp_path) -> None:
    shown = filed_certificate(tmp_path / "a.pem", tmp_path / "a.key")
    with pytest.raises(ConfigurationError, match=r"a\.pem"):
        shown(NOW)
    (tmp_path / "a.pem").write_bytes(b"one")
    (tmp_path / "a.key").write_bytes(b"two")
    assert shown(NOW) == (b"one", b"two")
