"""Verification that what is committed is what its owners signed, in a process of its own.

    python -m gateway.serving.committed.release_verifier STORE ROOT < active.json

It prints a problem ("": none) for each slot, each previous release and each file. It is a process because the library
that reads TUF metadata needs more memory than many a model, and a daemon that once loaded it would keep it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.common.domain.activation import Activation, Installed
from gateway.common.store.active import Active, parse_active
from gateway.common.store.blobs import LocalBlobs
from gateway.common.store.errors import StoreError
from gateway.common.store.roots import read_bounded, read_roots

if TYPE_CHECKING:
    from gateway.common.trust.chain import Chain


@dataclass(frozen=True, slots=True)
class SignatureProblems:
    """Problems by slot and by path; "" if the signatures are valid."""

    slots: Mapping[str, str] = field(default_factory=dict)
    previous: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def verify_active(store: Path, root: Path, active: Active) -> SignatureProblems:
    """Verify everything in `active` by the files in `store`, from the pinned `root` on. Files never make it raise."""
    try:
        chain = open_chain(store, root)
    except StoreError as error:
        paths = [one.target.path for one in active.files]
        return SignatureProblems(*(dict.fromkeys(keys, str(error)) for keys in (active.slots, active.previous, paths)))

    def releases(slots: Mapping[str, Activation]) -> dict[str, str]:
        ordered = sorted(
            slots, key=lambda slot: slots[slot].evidence
        )  # items with the same evidence one after the other
        return {slot: _problem(partial(chain.activation, slots[slot])) for slot in ordered}

    def file(one: Installed) -> str:
        return _problem(lambda: chain.file(one.target, one.evidence, one.root))

    files = {one.target.path: file(one) for one in sorted(active.files, key=lambda one: one.evidence)}
    return SignatureProblems(releases(active.slots), releases(active.previous), files)


def open_chain(store: Path, root: Path) -> Chain:
    """Return the chain of trust from the pinned `root` on. Raise StoreError with the remedy."""
    from gateway.common.trust.chain import Chain
    from gateway.common.trust.settings import DEFAULTS

    blobs, limit_bytes = LocalBlobs(store / "blobs"), DEFAULTS.metadata_limit_bytes
    try:
        pinned, roots = read_bounded(root, limit_bytes), read_roots(store, limit_bytes, DEFAULTS.roots_limit)
    except StoreError as error:
        problem = f"the root of trust cannot be read: {error}; run edge-agent bootstrap again"
        raise StoreError(problem) from error
    return Chain(pinned, roots, lambda digest: blobs.read(digest, limit_bytes))


def main() -> int:
    """Run the process."""
    store, root = sys.argv[1:]
    judgement = verify_active(Path(store), Path(root), parse_active(sys.stdin.buffer.read()))
    document = {"slots": judgement.slots, "previous": judgement.previous, "files": judgement.files}
    sys.stdout.write(json.dumps(document))
    return 0


def _problem(verify: Callable[[], object]) -> str:
    from gateway.common.trust.distrust import Distrust

    try:
        verify()
    except (Distrust, StoreError) as error:
        return str(error)
    except ImportError:  # the library is not installed: that is no fault of the releases
        raise
    except Exception as error:  # noqa: BLE001  an unexpected error of one item must not stop the others
        return f"it cannot be verified: {type(error).__name__}: {error!s:.300}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
