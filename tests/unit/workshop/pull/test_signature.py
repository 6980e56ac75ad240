"""Signatures of AWS: the example of its documentation, and Amazon's own client."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError
from gateway.workshop.pull.bucket import BucketPlace, S3Keys, object_path, object_url, read_place, signed_headers
from gateway.workshop.pull.reference import S3Reference
from tests.simulators.s3_server import PLACE

KEYS = S3Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
TIME = datetime(2013, 5, 24, tzinfo=UTC)


def test_the_example_of_the_documentation() -> None:
    """GET Bucket Lifecycle in "Examples: Signature Calculations", Amazon S3 API reference."""
    headers = signed_headers("https://examplebucket.s3.amazonaws.com/?lifecycle=", KEYS, "us-east-1", TIME)
    assert headers["Authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        "SignedHeaders=host;x-amz-content-sha256;x-amz-date, "
        "Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
    )
    assert "host" not in headers


@given(key=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1), token=st.sampled_from(["", "session"]))
def test_amazons_client_signs_the_same(key: str, token: str) -> None:
    if str(PLACE) not in sys.path:
        sys.path.append(str(PLACE))
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    url = f"https://models.example:9000/{object_path('bucket', key)}"
    headers = signed_headers(url, S3Keys(KEYS.access, KEYS.secret, token), "eu-central-1", TIME)
    given_headers = {name: value for name, value in headers.items() if name != "Authorization"}
    request = AWSRequest("GET", url, headers=given_headers)
    request.context["timestamp"] = headers["x-amz-date"]
    signer = S3SigV4Auth(Credentials(KEYS.access, KEYS.secret, token or None), "s3", "eu-central-1")
    text = signer.string_to_sign(request, signer.canonical_request(request))
    assert signer.signature(text, request) == headers["Authorization"].rpartition("=")[2]


def test_secrets_are_not_in_the_text_of_keys() -> None:
    assert KEYS.secret not in repr(KEYS)


@pytest.mark.parametrize(
    ("bucket", "place", "url"),
    [
        ("models", BucketPlace(), "https://models.s3.us-east-1.amazonaws.com/a%20b/m.onnx"),
        ("my.models", BucketPlace(region="eu-west-1"), "https://s3.eu-west-1.amazonaws.com/my.models/a%20b/m.onnx"),
        ("models", BucketPlace("https://s3.lan:9000"), "https://s3.lan:9000/models/a%20b/m.onnx"),
        ("models", BucketPlace("https://s3.lan", style="virtual"), "https://models.s3.lan/a%20b/m.onnx"),
        ("models", BucketPlace(style="path"), "https://s3.us-east-1.amazonaws.com/models/a%20b/m.onnx"),
    ],
)
def test_a_bucket_is_in_the_path_or_in_the_name(bucket: str, place: BucketPlace, url: str) -> None:
    assert object_url(S3Reference(bucket, "a b/m.onnx", ""), place) == url
    assert urlsplit(url).scheme == "https"


def test_options_come_before_the_environment() -> None:
    environ = {"AWS_ENDPOINT_URL": "https://a", "AWS_ENDPOINT_URL_S3": "https://b/", "AWS_DEFAULT_REGION": "eu-north-1"}
    assert read_place("", "", "", environ) == BucketPlace("https://b", "eu-north-1")
    assert read_place("https://c", "r-1", "path", environ) == BucketPlace("https://c", "r-1", "path")
    assert read_place("", "", "", {}) == BucketPlace()


@pytest.mark.parametrize(
    ("endpoint", "region"),
    [("s3.lan", ""), ("https://", ""), ("https://u@h", ""), ("https://h:x", ""), ("https://h?a", ""), ("", "a b")],
)
def test_places_that_are_none_are_refused(endpoint: str, region: str) -> None:
    with pytest.raises(ConfigurationError, match="--endpoint takes"):
        read_place(endpoint, region, "", {})
