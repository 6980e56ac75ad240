"""Bounds that more than one frontend keeps."""

from __future__ import annotations

from dataclasses import dataclass, fields

from gateway.domain.errors import ConfigurationError

SERVER_NAME = "edge-inference-gateway"
"""What server metadata calls this server where the configuration says nothing else."""
KEY_LIMIT_BYTES = 255
"""Longest name of a file (NAME_MAX), which a segment's key is."""


@dataclass(frozen=True, slots=True)
class SharedMemorySettings:
    """`[shared_memory]`: tensors of callers on this device that stay in their shared memory (gRPC and HTTP)."""

    allowed: bool = False  # whether callers on this device may register segments of /dev/shm
    callers: tuple[
        str, ...
    ] = ()  # only these may: token's name, certificate, uid:1000, address; (): any on this device
    key_prefix: str = ""  # only keys that begin so may be registered
    over_tcp: bool = False  # whether callers on this device may register over TCP, which does not tell their user
    copy_inputs: bool = True  # read inputs by copy; false: in place, and truncating a segment ends the gateway
    max_regions: int = 64  # regions registered at once, of all callers; one more needs an idle one to give way
    max_region_bytes: int = 64 * 1024 * 1024  # largest region
    max_bytes: int = 256 * 1024 * 1024  # all regions together
    idle_s: float = 60.0  # a region unused for this long gives way where a bound is reached
    sweep_s: float = 30.0  # how often regions are dropped whose segment or whose process is gone

    def __post_init__(self) -> None:
        """Refuse bounds that nothing passes. Raises ConfigurationError (table shared_memory)."""
        for key in (spec.name for spec in fields(self) if type(getattr(self, spec.name)) in {int, float}):
            if getattr(self, key) <= 0:
                raise _refused(key, "must be more than 0")
        if "/" in self.key_prefix or len(self.key_prefix.encode()) > KEY_LIMIT_BYTES:
            raise _refused(
                "key_prefix", f"must be the beginning of a file's name, without '/', not {self.key_prefix!r:.80}"
            )


def _refused(key: str, problem: str) -> ConfigurationError:
    return ConfigurationError(problem, table="shared_memory", key=key)
