"""A signed document and the pipeline that it belongs to agree on name, version and galleries."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import Artifact
from gateway.common.domain.signed_release import (
    SignedRelease,
    SignedVariant,
    declared,
    disagreement,
    read_release,
    release_bytes,
)

TEXT = """
schema = 1
name = "faces"
version = "2"
[input]
x = "FP32[4]"
[[step]]
name = "embed"
model = "embedder@3"
of = "x"
[[step]]
name = "who"
match = "known.npz"
of = "embed.vector"
[output]
people = { name = "who.label", score = "who.score" }
"""
GALLERY = Artifact("known.npz", "1" * 64, 7)
VARIANT = SignedVariant("pipeline", "pipeline", "none", ("cpu",), (GALLERY,))
RELEASE = SignedRelease(
    "acme",
    "faces",
    "2",
    "1",
    datetime(2026, 1, 1, tzinfo=timezone.utc),
    Artifact("pipeline.toml", "0" * 64, len(TEXT)),
    None,
    (VARIANT,),
)


def test_what_is_signed_of_a_pipeline_agrees_with_it() -> None:
    assert read_release(release_bytes(RELEASE)) == RELEASE
    manifest = declared(RELEASE, TEXT, "here")
    assert disagreement(RELEASE, manifest) == ""
    assert ([spec.name for spec in manifest.inputs], [spec.name for spec in manifest.outputs]) == (
        ["x"],
        ["people.name", "people.score"],
    )
    assert [artifact.path for artifact in RELEASE.files(["pipeline"])] == ["pipeline.toml", "known.npz"]


@pytest.mark.parametrize(
    ("release", "words"),
    [
        (replace(RELEASE, version="3"), "of faces 2, not of faces 3"),
        (replace(RELEASE, variants=(replace(VARIANT, artifacts=()),)), "other files of them"),
        (
            replace(RELEASE, variants=(replace(VARIANT, artifacts=(GALLERY, replace(GALLERY, path="b.npz"))),)),
            "other files",
        ),
        (replace(RELEASE, variants=()), "other variants"),
        (replace(RELEASE, golden=Artifact("golden.npz", "2" * 64, 1)), "another golden set"),
    ],
)
def test_what_differs_is_said(release: SignedRelease, words: str) -> None:
    assert words in disagreement(release, declared(release, TEXT, "here"))


def test_the_golden_set_of_a_pipeline_is_signed() -> None:
    text = f'{TEXT}[golden]\nfile = "golden.npz"\nsha256 = "{"2" * 64}"\n'
    release = replace(RELEASE, golden=Artifact("golden.npz", "2" * 64, 9))
    assert disagreement(release, declared(release, text, "here")) == ""
    assert "another golden set" in disagreement(RELEASE, declared(RELEASE, text, "here"))
    assert [artifact.path for artifact in release.files()] == ["pipeline.toml", "golden.npz"]


@pytest.mark.parametrize("path", ["manifest.toml", "pipeline.toml"])
def test_a_text_of_another_kind_is_refused(path: str) -> None:
    text = TEXT if path == "manifest.toml" else TEXT.replace("[[step]]", "[[variant]]")
    with pytest.raises(ConfigurationError, match="here"):
        declared(replace(RELEASE, manifest=replace(RELEASE.manifest, path=path)), text, "here")
