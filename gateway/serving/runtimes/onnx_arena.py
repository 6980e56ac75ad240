"""Memory of all ONNX Runtime sessions of the process: one arena that grows by the requested size and can be freed.

By default each session has an arena of its own, which doubles when it grows, even if that fails, and keeps its memory.
With a limit (`[gateway] memory_mib`), one large request then took all memory of the process permanently. Near
the limit, ONNX Runtime 1.31.1 also loses the memory of an allocation whose table does not fit any more. Runs take as
long in either arena (decision 0026).
"""

from __future__ import annotations

import atexit
import resource
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType

import numpy as np

from gateway.common.domain.tensor import Array

DATA_SHARE = 0.75
"""Part of the process's data (RLIMIT_DATA) that the arena may take. The rest is for requests, answers and Python."""
LARGE_BYTES = 16 * 1024 * 1024
"""Size of an output after which the arena is freed, which also frees other memory of the run."""
FREE_AFTER_S = 0.5
"""Time after the deletion of a large output at which the arena is freed if no run did it before."""
IDENTITY = bytes.fromhex(
    "08083a390a120a017812017922084964656e746974793a001201675a0f0a0178120a0a08080112040a02080162"
    "0f0a0179120a0a08080112040a02080142040a001011"
)
"""A model: y = Identity(x), FP32 [1]."""
GROW_AS_REQUESTED = 1
"""kSameAsRequested of ONNX Runtime's arena_extend_strategy."""


class Arena:
    """Arena of the process. Make it before the first session that has its `option`."""

    option = ("session.use_env_allocators", "1")

    def __init__(self, ort: ModuleType, errors: tuple[type[Exception], ...]) -> None:
        info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
        bound, _ = resource.getrlimit(resource.RLIMIT_DATA)
        most_bytes = 0 if bound == resource.RLIM_INFINITY else int(bound * DATA_SHARE)
        settings = {"max_mem": most_bytes, "arena_extend_strategy": GROW_AS_REQUESTED}
        ort.create_and_register_allocator(info, ort.OrtArenaCfg(settings))
        self._errors, self._freeing = errors, ort.RunOptions()
        self._freeing.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self._input = {"x": np.zeros(1, np.float32)}
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry(*self.option)
        self._session = ort.InferenceSession(IDENTITY, options, ["CPUExecutionProvider"])
        self.full = False
        """True if a large output was allocated since the arena was freed."""
        self._due, self._started, self._inside = threading.Event(), False, threading.Lock()
        # Python ends a daemon thread by unwinding it, for which ONNX Runtime aborts the process: none may be inside.
        atexit.register(self._inside.acquire)

    def free_after(self, outputs: Sequence[Array]) -> None:
        """Free memory at the next run, or FREE_AFTER_S after one of these large outputs is deleted."""
        self.full = True
        for output in outputs:
            weakref.finalize(output, self._free_soon).atexit = False

    def _free_soon(self) -> None:
        """Wake the thread that frees memory. Any thread may call it."""
        self._due.set()
        if not self._started:  # one thread for all: the stack of a new one might not fit near the limit
            with suppress(RuntimeError):  # no thread can start: the next run frees the memory
                threading.Thread(target=self._free_late, name="onnx memory", daemon=True).start()
                self._started = True

    def _free_late(self) -> None:
        while self._due.wait():
            time.sleep(FREE_AFTER_S)
            self._due.clear()
            with self._inside:
                self.free()

    def free(self) -> None:
        """Free memory that no run and no session uses. Any thread may call it.

        ONNX Runtime does so at the end of a run with that option, even if the run fails.
        """
        self.full = False
        with suppress(*self._errors):
            self._session.run(None, self._input, self._freeing)
