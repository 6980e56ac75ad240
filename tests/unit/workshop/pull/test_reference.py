"""References to releases, and the digests that pin them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError
from gateway.workshop.pull.reference import OciReference, S3Reference, UrlReference, read_digest, read_reference

HEX = "0123456789abcdef" * 4
OTHER = "f" * 64
DIGEST = f"sha256:{HEX}"


@pytest.mark.parametrize(
    ("text", "digest", "found"),
    [
        (f"oci://r.example/a/b@{DIGEST}", "", OciReference("r.example", "a/b", "", HEX)),
        (f"oci://r.example:5000/a:v1@{DIGEST}", "", OciReference("r.example:5000", "a", "v1", HEX)),
        (f"oci://[::1]:5000/a:v1@{DIGEST}", DIGEST, OciReference("[::1]:5000", "a", "v1", HEX)),
        ("oci://r.example/a:v1", "", OciReference("r.example", "a", "v1", "")),
        ("oci://r.example/a:v1", DIGEST, OciReference("r.example", "a", "v1", HEX)),
        (f"https://h/d/m.onnx#sha256={HEX}", "", UrlReference("https://h/d/m.onnx", HEX)),
        ("https://h/m.tar.gz?key=x", DIGEST, UrlReference("https://h/m.tar.gz?key=x", HEX)),
        ("s3://models/a b/c.zip", DIGEST, S3Reference("models", "a b/c.zip", HEX)),
    ],
)
def test_what_is_a_reference(text: str, digest: str, found: object) -> None:
    assert read_reference(text, digest) == found


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("model.onnx", "write oci://"),
        ("ftp://h/m.onnx", "write oci://"),
        ("oci://r.example", "write oci://"),
        ("oci://r.example/A@" + DIGEST, "write oci://"),
        ("oci://r.example/a/../b@" + DIGEST, "write oci://"),
        ("oci://u:p@r.example/a@" + DIGEST, "write oci://"),
        ("oci://r.example/a:-@" + DIGEST, "write oci://"),
        ("oci://r.example/a", "write REPO@sha256"),
        ("oci://r.example/a@sha512:" + HEX, "64 lower-case hex digits"),
        ("https://h/m.onnx", "--digest sha256"),
        ("https://h/#sha256=" + HEX, "must end with the name"),
        ("https://u:p@h/m.onnx#sha256=" + HEX, "--credentials-file"),
        ("https://h/m.onnx#md5=1", "#sha256="),
        ("https://h/m.onnx#sha256=1", "64 lower-case hex digits"),
        ("https://[/m.onnx#sha256=" + HEX, "write oci://"),
        ("https://h/m\u00f6.onnx#sha256=" + HEX, "write oci://"),
        ("s3://b/m.onnx", "write oci://"),
        ("s3://models/m.onnx", "--digest sha256"),
        ("s3://models/a/../m.onnx", "write oci://"),
        ("s3://models", "write oci://"),
    ],
)
def test_what_is_none_names_its_remedy(text: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=r".") as caught:
        read_reference(text)
    assert remedy in str(caught.value)


@pytest.mark.parametrize("text", [f"https://h/m.onnx#sha256={HEX}", f"oci://r/a@{DIGEST}"])
def test_two_digests_that_differ_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="different digests"):
        read_reference(text, f"sha256:{OTHER}")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("https://h/detector.onnx", "detector"),
        ("https://h/detector-2.tar.gz", "detector-2"),
        ("https://h/a%20b.TGZ", "a b"),
        ("s3://models/x/detector.zip", "detector"),
        ("oci://r/team/detector:v1", "detector"),
    ],
)
def test_a_model_without_a_manifest_has_the_name_of_its_file(text: str, name: str) -> None:
    assert read_reference(text, DIGEST).name == name


def test_the_secret_part_of_a_url_is_not_shown() -> None:
    assert "key" not in str(read_reference("https://h/m.onnx?key=secret", DIGEST))


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (read_reference, read_digest):
        for prefix in ("", "oci://", "https://", "s3://", "sha256:"):
            with suppress(ConfigurationError):
                read(prefix + text)
