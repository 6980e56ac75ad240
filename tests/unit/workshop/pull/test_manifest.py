"""OCI manifests: which blobs make a release."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError
from gateway.workshop.pull.manifest import FILE_PATH, INDEXES, MANIFESTS, TITLE, ReleasePart, read_parts
from gateway.workshop.pull.settings import PullSettings

HEX = "0123456789abcdef" * 4
SETTINGS = PullSettings(layers_limit=3)


def layer(**changes: Any) -> dict[str, Any]:
    found = {"mediaType": "application/vnd.onnx", "digest": f"sha256:{HEX}", "size": 7}
    return {**found, "annotations": {TITLE: "m.onnx"}, **changes}


def parts(*layers: object, **changes: Any) -> tuple[ReleasePart, ...]:
    document = {"schemaVersion": 2, "mediaType": MANIFESTS[0], "layers": list(layers), **changes}
    return read_parts(json.dumps(document).encode(), "r/a@sha256:1", SETTINGS)


def test_a_file_has_the_name_of_its_annotation() -> None:
    assert parts(layer()) == (ReleasePart(HEX, 7, "m.onnx"),)
    assert parts(layer(annotations={FILE_PATH: "a/m.onnx"}))[0].name == "a/m.onnx"


@pytest.mark.parametrize(
    ("kind", "archive"),
    [
        ("application/vnd.oci.image.layer.v1.tar+gzip", ".tar.gz"),
        ("application/vnd.docker.image.rootfs.diff.tar.gzip", ".tar.gz"),
        ("application/vnd.kitops.modelkit.model.v1.tar+gzip", ".tar.gz"),
        ("application/vnd.cncf.model.weight.v1.tar", ".tar"),
        ("application/vnd.oci.image.layer.v1.tar", ".tar"),
    ],
)
def test_archives_are_known_by_their_media_type(kind: str, archive: str) -> None:
    assert parts(layer(mediaType=kind, annotations=None)) == (ReleasePart(HEX, 7, "", archive),)


def test_a_file_that_is_called_a_tar_by_default_is_a_file() -> None:
    tar = "application/vnd.oci.image.layer.v1.tar"
    assert parts(layer(mediaType=tar)) == (ReleasePart(HEX, 7, "m.onnx"),)
    for title in ("m.tar", "folder"):
        assert parts(layer(mediaType=tar, annotations={TITLE: title})) == (ReleasePart(HEX, 7, "", ".tar"),)


def test_a_manifest_without_a_media_type_is_an_image() -> None:
    content = json.dumps({"schemaVersion": 2, "layers": [layer()]}).encode()
    assert len(read_parts(content, "r", SETTINGS)) == 1


@pytest.mark.parametrize(
    ("layers", "changes", "remedy"),
    [
        ([], {}, "1 to 3"),
        ([layer()] * 4, {}, "1 to 3"),
        ([layer()] * 2, {}, "two layers for the file"),
        ([layer(digest=HEX)], {}, "only sha256"),
        ([layer(digest=f"sha512:{HEX}")], {}, "only sha256"),
        ([layer(size=-1)], {}, "without a size"),
        ([layer(size=True)], {}, "without a size"),
        ([layer(mediaType=1)], {}, "without a size"),
        ([layer(annotations={})], {}, TITLE),
        ([layer(annotations={TITLE: ""})], {}, TITLE),
        ([layer(mediaType="application/vnd.oci.image.layer.v1.tar+zstd")], {}, "push it as tar+gzip"),
        (["no layer"], {}, "only sha256"),
        ([layer()], {"mediaType": "text/plain"}, "no image manifest"),
        ([layer()], {"layers": None}, "no image manifest"),
        ([layer()], {"schemaVersion": 1}, "schema version 2"),
        ([], {"mediaType": INDEXES[0], "manifests": [{"digest": "sha256:one"}]}, "pin one of them: sha256:one"),
        ([], {"mediaType": INDEXES[1], "manifests": 1}, "it lists none"),
    ],
)
def test_what_is_no_release_names_its_remedy(layers: list[object], changes: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parts(*layers, **changes)
    assert remedy in str(caught.value)


KEYS = st.sampled_from(["layers", "digest", "size", "mediaType", "annotations", TITLE]) | st.text()
VALUES = st.none() | st.booleans() | st.integers() | st.text()
JSON = st.recursive(VALUES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner))


@given(st.one_of(st.binary(), JSON.map(lambda value: json.dumps({"schemaVersion": 2, "layers": value}).encode())))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with suppress(ConfigurationError):
        read_parts(content, "r", SETTINGS)
