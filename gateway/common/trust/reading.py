"""Strict and bounded parser of metadata. Every problem is raised as `Distrust`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.common.domain.release_form import each_once
from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.settings import DEFAULTS, TrustSettings

if TYPE_CHECKING:
    from tuf.api.metadata import Metadata, Root, Targets

    T = TypeVar("T", Root, Targets)


def read_metadata(
    content: bytes, kind: type[T], where: str, limit_bytes: int, settings: TrustSettings = DEFAULTS
) -> Metadata[T]:
    """Return metadata of `kind` (Root or Targets) without a check of its signatures. Raise Distrust, naming `where`."""
    from tuf.api.metadata import Metadata

    if len(content) > limit_bytes:
        raise Distrust(Reason.TOO_LARGE, where, f"it has {len(content)} bytes, at most {limit_bytes} are read")
    check_values(content, where, settings)
    document = _read_json(content, where, settings)
    try:
        metadata = Metadata.from_dict(document)
        metadata.signed_bytes  # noqa: B018  computed as a check: canonical JSON allows no lone surrogates
    except Exception as error:  # tuf raises various errors of dictionaries; all mean the same
        raise Distrust(Reason.DAMAGED, where, f"it is no TUF metadata: {error!r:.200}") from error
    if not isinstance(metadata.signed, kind):
        raise Distrust(Reason.DAMAGED, where, f"it is {metadata.signed.type} metadata, {kind.type} was expected")
    check_version(metadata.signed.version, where, settings)
    return metadata


def check_values(content: bytes, where: str, settings: TrustSettings = DEFAULTS) -> int:
    """Return an upper bound of the values in a JSON document, before it is parsed. Raise Distrust above the limit."""
    count = sum(map(content.count, (b",", b"[", b"{")))
    if count > settings.values_limit:
        raise Distrust(Reason.TOO_LARGE, where, f"it has {count} values, at most {settings.values_limit} are read")
    return count


def check_version(version: Any, where: str, settings: TrustSettings = DEFAULTS) -> None:
    """Raise Distrust unless `version` is an integer from 1 to `version_limit`."""
    if type(version) is not int or not 1 <= version <= settings.version_limit:
        rule = f"it must be an integer from 1 to {settings.version_limit}"
        raise Distrust(Reason.DAMAGED, where, f"its version is {version!r:.40}; {rule}")


def _read_json(content: bytes, where: str, settings: TrustSettings) -> dict[str, Any]:
    """Return a JSON object as TUF has it: UTF-8, unique keys, no floats (as in canonical JSON), bounded nesting."""
    try:
        document = json.loads(
            content.decode("utf-8"), object_pairs_hook=each_once, parse_float=_no_float, parse_constant=_no_float
        )
    except (ValueError, RecursionError) as error:
        raise Distrust(Reason.DAMAGED, where, f"it is no JSON that could be signed: {error!s:.200}") from error
    if not isinstance(document, dict):
        raise Distrust(Reason.DAMAGED, where, "it is JSON, but no object")
    if _nests_deeper(document, settings.nesting_limit):
        raise Distrust(Reason.TOO_LARGE, where, f"it nests deeper than {settings.nesting_limit}")
    return document


def _no_float(text: str) -> Any:
    raise ValueError(f"{text:.40} is no integer; signed documents have no other numbers")


def _nests_deeper(document: dict[str, Any], limit: int) -> bool:
    level: list[Any] = [document]
    for _ in range(limit):
        inner = (value for outer in level for value in (outer.values() if isinstance(outer, dict) else outer))
        level = [value for value in inner if isinstance(value, (dict, list))]
        if not level:
            return False
    return True
