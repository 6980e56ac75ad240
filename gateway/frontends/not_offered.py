"""What the protocol has and this gateway does not, refused in the same words over every wire."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.domain.errors import Fault, RequestError


def refuse_shared_memory(parameters: Iterable[str], where: str) -> None:
    """RequestError UNSUPPORTED where the names of an input's or output's `parameters` place it in shared memory."""
    if any(name.startswith("shared_memory_") for name in parameters):
        raise RequestError(
            Fault.UNSUPPORTED, f"{where} is in shared memory, which is not offered here; send and take its bytes"
        )


def refuse_load_parameters(parameters: Iterable[str]) -> None:
    """RequestError UNSUPPORTED where a model is to be loaded with a configuration or files of the caller's."""
    for name in parameters:
        if name == "config" or name.startswith("file:"):
            raise RequestError(
                Fault.UNSUPPORTED,
                f"load parameter '{name}' is not offered; put the model's files into the model directory, then load",
            )
