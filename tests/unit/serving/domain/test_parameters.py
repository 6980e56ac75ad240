"""Request parameters: known ones typed and bounded, unknown ones counted; deadlines on one clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.domain.parameters import (
    OutputParameters,
    RequestParameters,
    deadline_ns,
    read_output_parameters,
    read_parameters,
)

KNOWN = {
    "sequence_id": (int, str), "sequence_start": (bool,), "sequence_end": (bool,), "priority": (int,),
    "timeout": (int,), "binary_data_output": (bool,), "triton_enable_empty_final_response": (bool,),
}  # fmt: skip
VALUES = {int: 3, str: "3", bool: True, float: 3.0}


def test_known_parameters_are_read_and_unknown_ones_counted() -> None:
    sent = {"timeout": 5, "priority": 1, "binary_data_output": False, "sequence_id": "a", "colour": "red", "x": 1.5}
    assert read_parameters(sent) == RequestParameters(5, 1, "a", binary_data_output=False, ignored=2)
    assert read_parameters({}) == RequestParameters()
    output = read_output_parameters({"classification": 3, "binary_data": True, "odd": 1}, "y")
    assert output == OutputParameters(3, True, 1)


def test_names_that_triton_reserves_are_invalid() -> None:
    with pytest.raises(RequestError, match=r"reserved for Triton usage; only .* not 'triton_final_response'"):
        read_parameters({"triton_enable_empty_final_response": True, "triton_final_response": True})
    assert read_parameters({"tritons": 1}).ignored == 1


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("kind", VALUES)
def test_a_known_parameter_of_a_wrong_type_is_invalid(name: str, kind: type) -> None:
    if kind in KNOWN[name]:
        read_parameters({name: VALUES[kind]})  # type: ignore[dict-item]
        return
    with pytest.raises(RequestError, match=f"parameter '{name}' of the request must be") as error:
        read_parameters({name: VALUES[kind]})  # type: ignore[dict-item]
    assert error.value.fault is Fault.INVALID


@pytest.mark.parametrize(("name", "value"), [("classification", True), ("classification", 1.0), ("binary_data", 1)])
def test_a_wrong_output_parameter_names_its_output(name: str, value: object) -> None:
    with pytest.raises(RequestError, match="of the output 'y' must be"):
        read_output_parameters({name: value}, "y")  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("name", "value"), [("timeout", -1), ("timeout", 2**63), ("priority", -1), ("priority", 2**32)]
)
def test_numbers_out_of_range_are_invalid(name: str, value: int) -> None:
    with pytest.raises(RequestError, match=f"parameter '{name}' must be between 0 and"):
        read_parameters({name: value})


def test_the_name_of_a_sequence_has_a_bound() -> None:
    assert read_parameters({"sequence_id": "x" * 256}).stream == "x" * 256
    with pytest.raises(RequestError, match="parameter 'sequence_id' has 257 characters, at most 256 are read") as error:
        read_parameters({"sequence_id": "x" * 257})
    assert error.value.fault is Fault.INVALID


@given(st.integers(0, 10**12), st.integers(0, 10**9), st.none() | st.floats(0, 1e6))
def test_the_sooner_deadline_holds(now_ns: int, timeout_us: int, remaining_s: float | None) -> None:
    ends = [now_ns + timeout_us * 1000] if timeout_us else []
    ends += [] if remaining_s is None else [now_ns + int(remaining_s * 1e9)]
    assert deadline_ns(now_ns, timeout_us=timeout_us, remaining_s=remaining_s) == (min(ends) if ends else None)


@pytest.mark.parametrize("endless", [float("inf"), float("nan")])
def test_an_endless_transport_sets_no_deadline(endless: float) -> None:
    assert deadline_ns(7, remaining_s=endless) is None
    assert deadline_ns(7, timeout_us=1, remaining_s=endless) == 1007
