"""Keys as files: secret parts stay secret, public parts travel, nothing is overwritten."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.publisher.keys import import_token_key, load_signer, make_key, read_public
from gateway.common.domain.errors import ConfigurationError, UnreachableError

PASSPHRASE = "correct horse battery"


def tell(_: str) -> str:
    return PASSPHRASE


def silent(what: str) -> str:
    raise AssertionError(f"asked for the {what}")


@pytest.mark.parametrize("passphrase", [PASSPHRASE, None], ids=["encrypted", "plain"])
def test_a_key_signs_and_its_public_part_verifies(tmp_path: Path, passphrase: str | None) -> None:
    made = make_key(tmp_path, "ann", passphrase)
    for file in ("ann.pem", "ann.pub"):
        signer = load_signer(tmp_path / file, tell if passphrase else silent)
        assert signer.public_key == read_public(tmp_path / "ann.pub").key
        made.key.verify_signature(signer.sign(b"text"), b"text")


def test_only_the_holder_reads_the_secret_part(tmp_path: Path) -> None:
    make_key(tmp_path, "ann", PASSPHRASE)
    assert stat.S_IMODE((tmp_path / "ann.pem").stat().st_mode) == 0o600
    assert b"ENCRYPTED" in (tmp_path / "ann.pem").read_bytes()
    assert PASSPHRASE not in (tmp_path / "ann.pub").read_text()


def test_the_public_part_names_its_key(tmp_path: Path) -> None:
    made = make_key(tmp_path, "ann", None)
    document = json.loads((tmp_path / "ann.pub").read_text())
    assert (document["name"], document["keyid"]) == ("ann", made.key.keyid)
    assert read_public(tmp_path / "ann.pub").key.unrecognized_fields == {"x-edge-name": "ann"}


def test_a_wrong_passphrase_is_said(tmp_path: Path) -> None:
    make_key(tmp_path, "ann", PASSPHRASE)
    with pytest.raises(ConfigurationError, match=r"ann\.pem: the passphrase is wrong, or it is no key"):
        load_signer(tmp_path / "ann.pem", lambda _: "another one")


@pytest.mark.parametrize("suffix", [".pem", ".pub"])
def test_no_key_is_overwritten(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"ann{suffix}").write_text("mine")
    with pytest.raises(ConfigurationError, match="keys are never overwritten"):
        make_key(tmp_path, "ann", PASSPHRASE)
    assert [file.name for file in tmp_path.iterdir()] == [f"ann{suffix}"]


@pytest.mark.parametrize("name", ["", "../ann", "a b", ".ann", "ann/x"])
def test_a_key_has_a_name_that_is_a_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot name a key"):
        make_key(tmp_path / "inner", name, PASSPHRASE)
    assert list(tmp_path.iterdir()) == []


def test_a_short_passphrase_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="12 characters at least"):
        make_key(tmp_path, "ann", "elevenchars")


def test_a_plain_key_that_others_read_is_not_used(tmp_path: Path) -> None:
    make_key(tmp_path, "ann", None)
    (tmp_path / "ann.pem").chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        load_signer(tmp_path / "ann.pem", silent)


def test_a_secret_key_is_not_taken_for_a_public_one(tmp_path: Path) -> None:
    make_key(tmp_path, "ann", None)
    with pytest.raises(ConfigurationError, match=r"is a secret key; name its public part, ann\.pub"):
        read_public(tmp_path / "ann.pem")


def test_a_public_part_alone_does_not_sign(tmp_path: Path) -> None:
    make_key(tmp_path, "ann", None)
    (tmp_path / "ann.pem").unlink()
    with pytest.raises(ConfigurationError, match="is the public part; the secret one"):
        load_signer(tmp_path / "ann.pub", silent)


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
@settings(deadline=None)
def test_no_content_makes_reading_stumble(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.mktemp("keys") / "x.pub"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError):
        read_public(file)
    with pytest.raises(ConfigurationError):
        load_signer(file, tell)


@given(st.dictionaries(st.sampled_from(["schema", "name", "scheme", "public", "uri", "keyid"]), st.just(1) | st.text()))
@settings(deadline=None)
def test_no_document_makes_reading_stumble(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, object]
) -> None:
    file = tmp_path_factory.mktemp("keys") / "x.pub"
    file.write_text(json.dumps(document))
    with pytest.raises(ConfigurationError):
        read_public(file)


@pytest.mark.parametrize("uri", ["hsm", "hsm:two", "file:2", "hsm:2/3", ""])
def test_an_address_that_is_no_tokens_key_is_refused(tmp_path: Path, uri: str) -> None:
    with pytest.raises(ConfigurationError, match="is no token's key"):
        import_token_key(tmp_path, "ann", uri, tell)


def test_without_a_pkcs11_library_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYKCS11LIB", raising=False)
    with pytest.raises(UnreachableError, match="set PYKCS11LIB"):
        import_token_key(tmp_path, "ann", "hsm:2", tell)
