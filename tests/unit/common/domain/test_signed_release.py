"""The release document: what owners sign is read strictly, and only what can lie in one folder is a release."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gateway.common.domain.manifest import Artifact
from gateway.common.domain.signed_release import SignedRelease, SignedVariant, read_release, release_bytes

MANIFEST = Artifact("manifest.toml", "0" * 64, 10)
GOLDEN = Artifact("golden.npz", "1" * 64, 10)


def release(*paths: str, golden: Artifact | None = GOLDEN) -> SignedRelease:
    """Return a release of one variant with these files, all different ones."""
    files = tuple(Artifact(path, f"{number:064x}", 5) for number, path in enumerate(paths, 100))
    only = SignedVariant("only", "reference", "fp32", ("cpu",), files)
    return SignedRelease("acme", "meter", "2", "1", datetime(2027, 3, 1, tzinfo=UTC), MANIFEST, golden, (only,))


@pytest.mark.parametrize("golden", [GOLDEN, None])
def test_what_is_written_is_read(golden: Artifact | None) -> None:
    made = release("a/b", "a/c", "ab", "a.b", golden=golden)
    assert read_release(release_bytes(made)) == made


def test_variants_may_share_a_file() -> None:
    made = release("a/b", "c")
    made = replace(made, variants=(*made.variants, replace(made.variants[0], name="other")))
    assert read_release(release_bytes(made)) == made


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        (("a", "a/b"), "a/b lies in a, which is a file"),
        (("a/b/c", "a"), "a/b/c lies in a, which is a file"),
        (("manifest.toml/x",), "manifest.toml/x lies in manifest.toml"),
        (("manifest.toml",), "manifest.toml is two different files"),
        (("golden.npz",), "golden.npz is two different files"),
        (("a/b", "a/b"), "a/b is two different files"),
        (("n" * 256,), "too long"),
        (("/".join("d" * 600),), "too long"),
    ],
)
def test_files_that_cannot_lie_in_one_folder_are_no_release(paths: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_release(release_bytes(release(*paths)))
