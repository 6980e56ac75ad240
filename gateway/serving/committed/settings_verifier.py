"""Verification of one release of settings, and of the policies that say what it may set.

It runs as a process of its own, for the same reason as `release_verifier`:

    python -m gateway.serving.committed.settings_verifier STORE ROOT < activation.json

It prints JSON: the reason of a refusal ("": the signatures hold), the TOML text, and the settings that policies permit.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from gateway.common.domain.activation import Activation, read_activation
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.policy import FOLDER, permitted_settings, read_policy
from gateway.common.store.active import ACTIVE_FILE, read_active
from gateway.common.store.errors import StoreError
from gateway.serving.committed.release_verifier import open_chain


@dataclass(frozen=True, slots=True)
class VerifiedSettings:
    """`problem`: reason of the refusal, "" if there is none. `permitted`: settings that all policies permit."""

    problem: str = ""
    toml: str = ""
    permitted: tuple[str, ...] = ()


def verify_settings(store: Path, root: Path, activation: Activation) -> VerifiedSettings:
    """Verify the release and every policy that is installed, from the pinned `root` on."""
    from gateway.common.trust.distrust import Distrust

    try:
        chain = open_chain(store, root)
        release = chain.settings(activation)
        installed = [one for one in read_active(store / ACTIVE_FILE).files if one.target.path.startswith(FOLDER)]
        policies = [read_policy(chain.file(one.target, one.evidence, one.root), one.target.path) for one in installed]
        permitted = permitted_settings(policies)
    except (Distrust, StoreError, ConfigurationError, ValueError) as error:
        return VerifiedSettings(problem=str(error))
    return VerifiedSettings(toml=release.toml, permitted=tuple(sorted(permitted)))


def main() -> int:
    """Run the process."""
    store, root = sys.argv[1:]
    activation = read_activation(json.loads(sys.stdin.buffer.read()))
    sys.stdout.write(json.dumps(asdict(verify_settings(Path(store), Path(root), activation))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
