"""Programs of other authors read what edge-fleet publishes, check its signatures, and hold its keys."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from tuf.api.metadata import Metadata

from tests.simulators.publisher import PASSPHRASE, ROOT, Publisher, publisher, serving
from tests.simulators.stock_client import StockClient

__all__ = ["publisher"]
pytestmark = pytest.mark.timeout(180)
TARGET = "models/acme/meter-reader/1/release"
TUF_JS = ROOT / ".venv" / "tuf-js" / "node_modules"
SOFT_HSM = Path("/usr/lib/softhsm/libsofthsm2.so")


def tuf_js(folder: Path, root: Path, url: str, target: str) -> subprocess.CompletedProcess[str]:
    """Run npm's client in a process of its own; its metadata stays in `folder`."""
    assert TUF_JS.is_dir(), "npm's client is not installed; make .venv/.npm"
    script = ROOT / "tests" / "system" / "peers" / "tuf-js" / "download.js"
    command = ["/usr/bin/env", "node", str(script), str(folder), str(root), url, target]
    environment = {**os.environ, "NODE_PATH": str(TUF_JS)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_tuf_client_of_npm_downloads_a_release(publisher: Publisher, tmp_path: Path) -> None:
    with publisher.served() as url:
        done = tuf_js(tmp_path, publisher.public / "metadata/1.root.json", url, TARGET)
    assert done.returncode == 0, done.stderr
    assert json.loads(Path(done.stdout.strip()).read_text())["model"] == "meter-reader"


def test_it_refuses_what_an_owner_did_not_sign(publisher: Publisher, tmp_path: Path) -> None:
    """The test above is meaningless without this refusal."""
    shutil.copytree(publisher.public, tmp_path / "public")
    (file,) = (tmp_path / "public/metadata").glob("*.models-acme.json")
    file.write_bytes(file.read_bytes().replace(b'"floor":"1"', b'"floor":"0"'))
    with serving(tmp_path / "public") as url:
        done = tuf_js(tmp_path / "client", publisher.public / "metadata/1.root.json", url, TARGET)
    assert done.returncode == 1
    assert "signed by 0/1" in done.stderr or "threshold" in done.stderr, done.stderr


def openssl(*arguments: str | Path, code: int = 0, environment: Mapping[str, str] | None = None) -> str:
    """Return what openssl prints."""
    done = subprocess.run(
        ["/usr/bin/env", "openssl", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **(environment or {})},
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def signed_part(file: Path, tmp_path: Path) -> dict[str, Any]:
    """Write what is signed as TUF says (canonical JSON: sorted keys, no spaces), and the first signature."""
    document = json.loads(file.read_bytes())
    canonical = json.dumps(document["signed"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    (tmp_path / "signed").write_bytes(canonical.encode())
    (tmp_path / "signature").write_bytes(bytes.fromhex(document["signatures"][0]["sig"]))
    return document


def test_openssl_verifies_a_signature_with_the_published_key(publisher: Publisher, tmp_path: Path) -> None:
    file = publisher.public / "metadata" / "1.models-acme.json"
    document = signed_part(file, tmp_path)
    public = json.loads((publisher.folder / "acme.pub").read_text())
    assert public["keyid"] == document["signatures"][0]["keyid"]
    (tmp_path / "key.pem").write_text(public["public"])
    check = ("pkeyutl", "-verify", "-pubin", "-inkey", tmp_path / "key.pem", "-rawin")
    files = ("-in", tmp_path / "signed", "-sigfile", tmp_path / "signature")
    assert "Verified Successfully" in openssl(*check, *files)
    (tmp_path / "signed").write_bytes((tmp_path / "signed").read_bytes() + b" ")
    openssl(*check, *files, code=1)


def test_openssl_opens_a_secret_key_with_its_passphrase_only(publisher: Publisher) -> None:
    secret = publisher.folder / "alice.pem"
    read = ("pkey", "-in", secret, "-pubout", "-passin", "env:GIVEN")
    printed = openssl(*read, environment={"GIVEN": PASSPHRASE})
    assert printed == json.loads((publisher.folder / "alice.pub").read_text())["public"]
    openssl(*read, environment={"GIVEN": "another passphrase"}, code=1)


def test_a_key_that_openssl_encrypted_with_scrypt_signs(publisher: Publisher, tmp_path: Path) -> None:
    """The documentation offers this where PBKDF2 is not strong enough."""
    made = Publisher(tmp_path)
    made.run("keys", "new", "ann")
    secrets = ("-passin", "env:GIVEN", "-passout", "env:GIVEN")
    openssl(
        *("pkcs8", "-topk8", "-scrypt", "-in", tmp_path / "ann.pem", "-out", tmp_path / "stronger.pem", *secrets),
        environment={"GIVEN": PASSPHRASE},
    )
    (tmp_path / "stronger.pem").replace(tmp_path / "ann.pem")
    made.run("keys", "new", "online", "--out", "keys", "--no-passphrase")
    key = ("ann.pub",)
    init = ("--root", *key, "--root-threshold", "1", "--targets", *key, "--online", "keys/online.pub")
    made.run("repo", "init", *init)
    made.sign("root", "ann")


@pytest.fixture
def token(tmp_path: Path) -> dict[str, str]:
    """Return the environment with a software token that holds an ECDSA P-256 key, number 2."""
    environment = {
        **os.environ,
        "SOFTHSM2_CONF": str(tmp_path / "softhsm2.conf"),
        "PYKCS11LIB": str(SOFT_HSM),
        "EDGE_FLEET_PASSPHRASE": "123456",
    }
    (tmp_path / "tokens").mkdir()
    (tmp_path / "softhsm2.conf").write_text(f"directories.tokendir = {tmp_path}/tokens\nlog.level = ERROR\n")
    openssl(
        *("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", tmp_path / "token.pem"),
    )
    pins = ("--pin", "123456")
    for command in (
        ("--init-token", "--free", "--label", "vault", "--so-pin", "1234", *pins),
        ("--import", str(tmp_path / "token.pem"), "--token", "vault", "--label", "root", "--id", "02", *pins),
    ):
        subprocess.run(["/usr/bin/env", "softhsm2-util", *command], env=environment, capture_output=True, check=True)
    return {name: environment[name] for name in ("SOFTHSM2_CONF", "PYKCS11LIB", "EDGE_FLEET_PASSPHRASE")}


def test_a_token_signs_a_repository_that_clients_take(tmp_path: Path, token: dict[str, str]) -> None:
    made = Publisher(tmp_path / "publisher")
    made.run("keys", "new", "vault", "--hsm", "hsm:2?label=vault", environment=token)
    assert "PRIVATE" not in (made.folder / "vault.pub").read_text()
    assert not (made.folder / "vault.pem").exists()
    made.run("keys", "new", "online", "--out", "keys", "--no-passphrase")
    key = ("vault.pub",)
    init = ("--root", *key, "--root-threshold", "1", "--targets", *key, "--online", "keys/online.pub")
    made.run("repo", "init", *init)
    made.run("sign", "drafts/root.json", "drafts/targets.json", "--key", "vault.pub", "--yes", environment=token)
    made.run("publish")
    root = (made.public / "metadata/1.root.json").read_bytes()
    assert Metadata.from_bytes(root).signed.keys
    StockClient(tmp_path / "client", made.public, root).refresh()
    pem = json.loads((made.folder / "vault.pub").read_text())["public"]
    assert load_pem_public_key(pem.encode()).curve.name == "secp256r1"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"EDGE_FLEET_PASSPHRASE": "999999"}, "cannot be used"),
        ({"PYKCS11LIB": "/nonexistent.so"}, "cannot be used"),
        ({"PYKCS11LIB": ""}, "PYKCS11LIB"),
    ],
    ids=["wrong-pin", "no-library", "not-set"],
)
def test_a_token_that_does_not_sign_is_said_in_one_line(
    tmp_path: Path, token: dict[str, str], changes: dict[str, str], said: str
) -> None:
    made = Publisher(tmp_path / "publisher")
    made.run("keys", "new", "vault", "--hsm", "hsm:2?label=vault", environment=token)
    made.run("keys", "new", "online", "--out", "keys", "--no-passphrase")
    key = ("vault.pub",)
    made.run("repo", "init", "--root", *key, "--root-threshold", "1", "--targets", *key, "--online", "keys/online.pub")
    sign = ("sign", "drafts/root.json", "--key", "vault.pub", "--yes")
    done = made.run(*sign, environment={**token, **changes}, code=3)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
