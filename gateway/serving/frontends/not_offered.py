"""Refusals of protocol parts that are not supported or not configured, with the same text everywhere."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.common.domain.errors import Fault, RequestError

PERMISSION = "[shared_memory] allowed = true"


def refuse_shared_memory(parameters: Iterable[str], where: str) -> None:
    """Raise RequestError UNSUPPORTED if an input's or output's `parameters` place it in shared memory."""
    if any(name.startswith("shared_memory_") for name in parameters):
        raise RequestError(
            Fault.UNSUPPORTED,
            f"{where} is in shared memory, which is not offered here; send and take its bytes (gRPC and HTTP offer it "
            f"to callers on this device where the configuration says {PERMISSION}) (EG-507)",
        )


def no_regions() -> RequestError:
    """Return UNSUPPORTED for the registration and removal of system shared memory regions."""
    return RequestError(
        Fault.UNSUPPORTED,
        f"shared memory is not offered unless the configuration says {PERMISSION}; send the tensors' bytes (EG-507)",
    )


def no_cuda_regions() -> RequestError:
    """Return UNSUPPORTED for CUDA shared memory."""
    return RequestError(
        Fault.UNSUPPORTED,
        "CUDA shared memory is not offered by this gateway; send the tensors' bytes, or register system shared memory",
    )


def no_trace_settings() -> RequestError:
    """Return UNSUPPORTED: requests are not traced."""
    return RequestError(
        Fault.UNSUPPORTED,
        "trace settings are not offered by this gateway, which traces no requests; see /metrics and model statistics",
    )


def no_log_settings() -> RequestError:
    """Return UNSUPPORTED: the operator configures the log."""
    return RequestError(
        Fault.UNSUPPORTED,
        "log settings are not offered over the network; set [log] in the configuration and reload the gateway",
    )


def refuse_load_parameters(parameters: Iterable[str]) -> None:
    """Raise RequestError UNSUPPORTED if a model is to be loaded with the caller's own configuration or files."""
    for name in parameters:
        if name == "config" or name.startswith("file:"):
            raise RequestError(
                Fault.UNSUPPORTED,
                f"load parameter '{name}' is not offered; put the model's files into the model directory, then load",
            )
