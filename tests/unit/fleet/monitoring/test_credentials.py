"""Files for the controller's own requests: authorities that it trusts, secrets that only it may read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleet.controller.authority.ca import new_authority
from fleet.controller.monitoring.credentials import secret_text, trusting
from gateway.common.domain.errors import ConfigurationError


def test_only_the_authorities_of_the_file_are_believed(tmp_path: Path) -> None:
    (tmp_path / "ours.pem").write_bytes(new_authority(datetime.now(UTC)).pem)
    assert trusting(tmp_path, "ours.pem", "otlp").cert_store_stats()["x509_ca"] == 1
    assert trusting(tmp_path, "", "otlp").cert_store_stats()["x509_ca"] != 1


@pytest.mark.parametrize("content", [None, b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_authorities_that_are_none_are_named(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "ours.pem").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"otlp\.ca_file: .*ours\.pem cannot be used .*name a PEM file"):
        trusting(tmp_path, "ours.pem", "otlp")


@pytest.mark.parametrize(
    ("mode", "content", "problem"),
    [(0o644, b"hunter2", "chmod 600"), (0o600, b"\xff", "no.* UTF-8"), (0o600, bytes(70_000), "larger")],
)
def test_a_secret_that_is_none_is_named_and_not_shown(tmp_path: Path, mode: int, content: bytes, problem: str) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    file.chmod(mode)
    with pytest.raises(ConfigurationError, match=problem) as refused:
        secret_text(file)
    assert "hunter2" not in str(refused.value)
