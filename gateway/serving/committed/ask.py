"""Client of the process that verifies signatures."""

from __future__ import annotations

import asyncio
import json
import os
import site
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.common.domain.activation import Activation, activation_document
from gateway.common.domain.errors import VariantError
from gateway.common.domain.installation import HERE
from gateway.common.domain.python310 import SAFE_PATH
from gateway.common.store.active import Active, active_bytes
from gateway.common.timeouts import timeout
from gateway.serving.committed.release_verifier import SignatureProblems
from gateway.serving.committed.settings import SignedReleaseSettings
from gateway.serving.committed.settings_verifier import VerifiedSettings

PYTHON = (sys.executable, SAFE_PATH, "-m")
COMMAND = (*PYTHON, "gateway.serving.committed.release_verifier")
SETTINGS_COMMAND = (*PYTHON, "gateway.serving.committed.settings_verifier")
LAST_WORDS_CHARS = 300


async def ask_release_verifier(settings: SignedReleaseSettings, active: Active) -> SignatureProblems:
    """Verify everything in `active`. Cancelling this call kills the process.

    Raise VariantError (transient) if the process failed.
    """
    if not (active.slots or active.previous or active.files):
        return SignatureProblems()
    return SignatureProblems(**await _answer(COMMAND, settings, active_bytes(active)))


async def ask_settings_verifier(settings: SignedReleaseSettings, activation: Activation) -> VerifiedSettings:
    """Verify a release of settings, and read what the device's policies permit.

    Raises as `ask_release_verifier` does.
    """
    question = json.dumps(activation_document(activation)).encode()
    return VerifiedSettings(**await _answer(SETTINGS_COMMAND, settings, question))


async def _answer(command: Sequence[str], settings: SignedReleaseSettings, question: bytes) -> dict[str, Any]:
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            str(settings.folder),
            str(settings.root_file),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise _undecided(f"the process that verifies them could not be started: {error}") from error
    try:
        async with timeout(settings.verify_deadline_s):
            output, words = await process.communicate(question)
    except TimeoutError:
        raise _undecided(f"it took longer than {settings.verify_deadline_s:g} s, and is tried again") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        spoken = " ".join(words.decode("utf-8", "replace").split())[-LAST_WORDS_CHARS:]
        hint = f"; {HERE.adding('agent')}" if "No module named" in spoken else ""
        raise _undecided(f"the process that verifies them ended with {process.returncode}: {spoken}{hint}")
    return dict(json.loads(output))


def _undecided(why: str) -> VariantError:
    return VariantError(f"the signatures could not be verified: {why}", transient=True)


def _environment() -> dict[str, str]:
    """Return our environment, with this package found first, independent of the working directory."""
    root = str(Path(__file__).resolve().parents[3])
    paths = [] if root in site.getsitepackages() else [root]  # an installed package is found without help
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OPENBLAS_NUM_THREADS": "1"}
