"""Scopes that the methods need, by name.

A method that is not listed stops the start: it would be open to everyone.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.domain.rights import ANY_CALLER, CONTROL, INFER, MEMORY, READ, Needs

NEEDS: Mapping[str, Needs] = {
    "ServerLive": ANY_CALLER,
    "ServerReady": ANY_CALLER,
    "Check": ANY_CALLER,  # for a model: READ
    "Watch": ANY_CALLER,  # the same for a model
    "ServerMetadata": READ,
    "ModelReady": READ,
    "ModelMetadata": READ,
    "ModelConfig": READ,
    "ModelStatistics": READ,
    "RepositoryIndex": READ,
    "ServerReflectionInfo": READ,
    "ModelInfer": INFER,
    "ModelStreamInfer": INFER,
    "RepositoryModelLoad": CONTROL,
    "RepositoryModelUnload": CONTROL,
    "SystemSharedMemoryRegister": MEMORY,
    # Only a caller's own regions, and clients request these before they register any.
    "SystemSharedMemoryStatus": READ,
    "SystemSharedMemoryUnregister": READ,
    "CudaSharedMemoryStatus": READ,
    "CudaSharedMemoryUnregister": READ,
    # Not offered: every caller gets that answer.
    "CudaSharedMemoryRegister": ANY_CALLER,
    "TraceSetting": ANY_CALLER,
    "LogSettings": ANY_CALLER,
}
