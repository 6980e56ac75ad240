"""Exception roots: one for errors that a caller can correct, one for errors that the device's operator can correct."""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Fault(enum.Enum):
    """Kind of a refusal, by what a caller should do about it; `gateway.serving.frontends.status` has the wire codes."""

    INVALID = "INVALID"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    DENIED = "DENIED"
    NOT_FOUND = "NOT_FOUND"
    TOO_LARGE = "TOO_LARGE"
    THROTTLED = "THROTTLED"
    OVERLOADED = "OVERLOADED"
    EXPIRED = "EXPIRED"
    UNAVAILABLE = "UNAVAILABLE"
    UNSUPPORTED = "UNSUPPORTED"
    INTERNAL = "INTERNAL"


class RequestError(Exception):
    """Refusal of one request; other requests are not affected.

    `retry_after_s` is set if waiting helps (OVERLOADED, THROTTLED, UNAVAILABLE). `is_loading`: the model that is asked
    for is loading, or waits for its next attempt. `in_run`: the model failed while it ran with these inputs.
    `by_quota`: the caller has used its quota of this ("requests", "tokens").
    """

    def __init__(
        self,
        fault: Fault,
        message: str,
        *,
        retry_after_s: float | None = None,
        is_loading: bool = False,
        in_run: bool = False,
        by_quota: str = "",
    ) -> None:
        super().__init__(message)
        self.fault = fault
        self.message = message
        self.retry_after_s = retry_after_s
        self.is_loading = is_loading
        self.in_run = in_run
        self.by_quota = by_quota


class ConfigurationError(Exception):
    """Refusal of an operator's input: file, table, key and line, and the remedy.

    `excerpt`: the line of the file with a marker below the key, for people ("": it is not known).
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str = "",
        table: str = "",
        key: str = "",
        line: int | None = None,
        excerpt: str = "",
    ) -> None:
        self.problem, self.file, self.table, self.key, self.line = problem, file, table, key, line
        self.excerpt = excerpt
        super().__init__(self._sentence())

    def _sentence(self) -> str:
        place = self.file + (f":{self.line}" if self.line else "")
        name = ".".join(part for part in (self.table, self.key) if part)
        where = ": ".join(part for part in (place, name) if part)
        return f"{where}: {self.problem}" if where else self.problem


def of_answer(error: RequestError, advice: str = "") -> RequestError:
    """Return a refusal for lack of memory that names the answer as the cause."""
    message = f"the answer: {error.message}; {advice}" if advice else f"the answer: {error.message}"
    return RequestError(error.fault, message, retry_after_s=error.retry_after_s)


class VariantError(Exception):
    """Failure of a runtime to open or run a variant: `reason` as text, `remedy` for the operator (may be empty).

    `transient`: the fault is temporary (no memory, no process), not the variant's.
    """

    def __init__(self, reason: str, *, remedy: str = "", transient: bool = False) -> None:
        super().__init__(f"{reason}; {remedy}" if remedy else reason)
        self.reason = reason
        self.remedy = remedy
        self.transient = transient


class UnofferedError(ConfigurationError):
    """Refusal of something that is valid where it comes from, and that this gateway does not offer."""


class UnreachableError(ConfigurationError):
    """Failure to reach something that is named correctly: a port in use, a daemon that does not answer."""


NO_MEMORY = (
    *("bad_alloc", "MemoryError", "Failed to allocate memory", "smaller than requested bytes"),
    *("out of memory", "Cannot allocate memory"),
)
"""Signs of a failed allocation: ONNX Runtime's, Python's and the kernel's (ENOMEM)."""


NO_DEVICE = ("No such device", "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device", "no ROCm-capable device")
"""Signs of an accelerator that is gone: the kernel's (ENODEV), CUDA's and HIP's."""


def lacks_memory(failure: str) -> bool:
    """Return True if a runtime's message reports a failed allocation. Runtimes have no other sign of it."""
    return any(sign in failure for sign in NO_MEMORY)


def lacks_device(failure: str) -> bool:
    """Return True if a runtime's message reports an accelerator that is gone."""
    return any(sign in failure for sign in NO_DEVICE)


def is_temporary(failure: str) -> bool:
    """Return True if a runtime's message reports a lack of memory, or a device that is gone."""
    return lacks_memory(failure) or lacks_device(failure)


def suggest(word: str, known: Iterable[str]) -> str:
    """Return '; did you mean "x"?' with the known word that is closest, in any case; "" if none is close."""
    from difflib import get_close_matches  # only an error needs it

    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), by_lower, n=1)
    return f'; did you mean "{by_lower[close[0]]}"?' if close else ""
