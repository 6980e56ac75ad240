"""Pin of the installer's root of trust, made once by root. Later only signed rotations replace it."""

from __future__ import annotations

from gateway.domain.errors import ConfigurationError
from gateway.software.record import InstallRecords
from gateway.trust.chain import newest_root, trusted_root
from gateway.trust.distrust import Distrust
from gateway.trust.settings import DEFAULTS


def pin(records: InstallRecords, content: bytes, *, replace: bool = False) -> int:
    """Keep `content` as the root of trust if there is none yet. Return the version that is trusted then.

    Raise Distrust if it is not signed by itself, ConfigurationError if another root is trusted that neither precedes
    nor follows it, StoreError.
    """
    version = trusted_root(content, (), 1).version
    known = records.root(DEFAULTS.metadata_limit_bytes)
    if known is None or replace:
        records.keep_root(content)
        return version
    if known == content or _follows(known, content) or _follows(content, known):
        return newest_root(known, ())[0].version
    problem = "another root is trusted already; edge-software trust --replace ROOT.json trusts this one"
    raise ConfigurationError(problem, file=str(records.folder))


def _follows(known: bytes, content: bytes) -> bool:
    try:
        return newest_root(known, [content])[1] == content
    except Distrust:
        return False
