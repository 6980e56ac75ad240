"""The release document of the programs: complete sets of wheels, each for one kind of device."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.manifest import Artifact
from gateway.common.domain.software_release import (
    SOFTWARE_LIMIT_BYTES,
    Machine,
    SoftwareRelease,
    SoftwareVariant,
    fitting,
    read_software,
    software_bytes,
    wheel_parts,
)

OURS = "edge_inference_gateway-1.0-py3-none-any.whl"
PIP = "pip-23.2.1-py3-none-any.whl"
NUMPY = "numpy-2.2.0-cp311-cp311-manylinux_2_28_x86_64.whl"


def wheels(*names: str) -> tuple[Artifact, ...]:
    return tuple(Artifact(name, f"{number:064x}", 100 + number) for number, name in enumerate(names))


def release(*names: str, **requires: str) -> SoftwareRelease:
    only = SoftwareVariant("x86_64", "3.11", "2.28", wheels(*(names or (OURS, PIP, NUMPY))))
    at = datetime(2027, 3, 1, tzinfo=UTC)
    return SoftwareRelease("edge-gateway", "1.0", "1.0", at, (replace(only, **requires),))


def test_what_is_written_is_read() -> None:
    assert read_software(software_bytes(release())) == release()
    assert release().target == "software/edge-gateway/1.0/release"


def test_the_installer_is_not_installed_itself() -> None:
    (variant,) = release().variants
    assert variant.installer().path == PIP
    assert [wheel.path for wheel in variant.installed()] == [OURS, NUMPY]


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ((PIP, NUMPY), "must have version 1.0; found: none"),
        ((OURS.replace("1.0", "1.1"), PIP), "found: 1.1"),
        ((OURS, NUMPY), "pip is missing"),
        ((OURS, PIP, NUMPY, NUMPY.replace("2.2.0", "2.3.0")), "two wheels of numpy"),
        ((OURS, PIP, "../numpy-2.2.0-py3-none-any.whl"), "no file name of a wheel"),
        ((OURS, PIP, "numpy.tar.gz"), "no file name of a wheel"),
        ((OURS, PIP, f"{'n' * 300}-1-py3-none-any.whl"), "no file name of a wheel"),
    ],
)
def test_a_set_that_could_not_be_installed_is_no_release(names: tuple[str, ...], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_software(software_bytes(release(*names)))


@pytest.mark.parametrize(
    ("requires", "machine", "problem"),
    [
        ({}, Machine("aarch64", "3.11", "2.36"), "for x86_64, this device is aarch64"),
        ({}, Machine("x86_64", "3.12", "2.36"), "for Python 3.11, this device has 3.12"),
        ({}, Machine("x86_64", "3.11", "2.9"), "needs glibc 2.28, this device has 2.9"),
        ({}, Machine("x86_64", "3.11", ""), "another C library"),
    ],
)
def test_what_a_device_cannot_install_is_named(requires: dict[str, str], machine: Machine, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        fitting(release(**requires), machine)


@pytest.mark.parametrize("glibc", ["2.28", "2.36"])
def test_the_first_variant_that_fits_is_taken(glibc: str) -> None:
    other, made = release(machine="aarch64"), release()
    both = replace(made, variants=(*other.variants, *made.variants))
    assert fitting(both, Machine("x86_64", "3.11", glibc)) == made.variants[0]
    assert fitting(release(glibc=""), Machine("x86_64", "3.11", "")).glibc == ""


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("schema", 2),
        ("version", "../1"),
        ("version", 1),
        ("floor", None),
        ("released_at", "yesterday"),
        ("variants", {}),
        ("variants", [{"requires": {"machine": "riscv64", "python": "3.11", "glibc": ""}, "wheels": []}]),
        ("variants", [{"requires": {"machine": "x86_64", "python": "2.7", "glibc": ""}, "wheels": []}]),
        ("variants", [{}] * 33),
    ],
)
def test_a_damaged_document_is_refused(key: str, value: Any) -> None:
    document = json.loads(software_bytes(release())) | {key: value}
    with pytest.raises(ValueError, match=r"."):
        read_software(json.dumps(document).encode())


@pytest.mark.parametrize("size", [0, -1, 2**40, "1", True])
def test_sizes_are_bounded(size: Any) -> None:
    document = json.loads(software_bytes(release()))
    document["variants"][0]["wheels"][0]["bytes"] = size
    with pytest.raises(ValueError, match="no size"):
        read_software(json.dumps(document).encode())


def test_a_document_that_is_too_large_is_not_parsed() -> None:
    with pytest.raises(ValueError, match="at most"):
        read_software(software_bytes(release()) + b" " * SOFTWARE_LIMIT_BYTES)


@given(
    st.binary()
    | st.text().map(str.encode)
    | st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)).map(
        lambda x: json.dumps(x).encode()
    )
)
def test_anything_else_is_a_value_error(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  any text will do
        read_software(content)


@pytest.mark.parametrize("name", ["Foo.Bar-1-py3-none-any.whl", "foo_bar-1-py3-none-any.whl"])
def test_a_distribution_has_one_name(name: str) -> None:
    assert wheel_parts(name) == ("foo_bar", "1")
