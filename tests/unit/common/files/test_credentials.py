"""Files of secrets by path, and by the name of a credential of the unit."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.files.credentials import secret_path


def resolved(named: str, folder: Path | None) -> Path:
    return secret_path(named, "mqtt", "password_file", {} if folder is None else {"CREDENTIALS_DIRECTORY": str(folder)})


def test_a_path_is_a_path(tmp_path: Path) -> None:
    assert resolved("/etc/secret", None) == Path("/etc/secret")
    assert resolved("./credential:x", tmp_path) == Path("credential:x")


@pytest.mark.parametrize("name", ["mqtt-password", "a.b_c@1", "..."])
def test_a_credential_is_a_file_in_the_folder_of_the_unit(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("secret")
    assert resolved(f"credential:{name}", tmp_path).read_text() == "secret"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "/etc/passwd", "a/b", "a/../../x", "a\0", "a\n", "a b", "x" * 256]
)
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "credentials"
    folder.mkdir()
    (tmp_path / "x").write_text("secret")
    with pytest.raises(ConfigurationError, match=r"^mqtt\.password_file: .*the name of a credential"):
        resolved(f"credential:{name}", folder)


@pytest.mark.parametrize("absent", ["no folder", "no file"])
def test_the_error_says_what_to_write_into_the_unit(tmp_path: Path, absent: str) -> None:
    with pytest.raises(ConfigurationError, match=r"LoadCredential=broker:/path/of/file into \[Service\]"):
        resolved("credential:broker", None if absent == "no folder" else tmp_path)
