"""SenML (RFC 8428) in JSON and CBOR: records with base values become rows by time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.serving.frontends.mqtt.inbound.payloads.content import ContentType, check_rows, invalid
from gateway.serving.frontends.mqtt.inbound.payloads.documents import read_cbor, read_json

LABELS = {-2: "bn", -3: "bt", -4: "bu", -5: "bv", -6: "bs", -1: "bver"} | {
    0: "n",
    1: "u",
    2: "v",
    3: "vs",
    4: "vb",
    5: "s",
    6: "t",
    7: "ut",
    8: "vd",
}
"""Labels of SenML by their number in CBOR (RFC 8428, 6)."""
VERSION = 10
"""Version of SenML that is read (RFC 8428, 4.4)."""
Record = Mapping[Any, Any]


def read_senml_json(payload: bytes, content: ContentType) -> list[dict[str, Any]]:
    """Return the rows of a SenML pack in JSON. Raises RequestError INVALID."""
    return resolve(_records(read_json(payload, content)))


def read_senml_cbor(payload: bytes, content: ContentType) -> list[dict[str, Any]]:
    """Return the rows of a SenML pack in CBOR, whose labels are numbers. Raises RequestError INVALID."""
    records = _records(read_cbor(payload, content))
    return resolve(
        [{LABELS.get(key, key) if type(key) is int else key: value for key, value in one.items()} for one in records]
    )


def resolve(records: list[Record]) -> list[dict[str, Any]]:
    """Return one object per time, in the order of the pack: `bn`, `t`, and each value by the name of its record.

    The name is that of the record without the base name, or the base name if the record has none of its own.
    """
    base: dict[str, Any] = {}
    rows: dict[Any, dict[str, Any]] = {}
    for record in records:
        for key in record:
            if isinstance(key, str) and key.endswith("_"):
                raise invalid(f"the SenML pack needs the feature {key:.32}, which the gateway does not know")
        if record.get("bver", VERSION) != VERSION:
            raise invalid(f"the SenML pack has version {record['bver']!r:.32}; the gateway reads version {VERSION}")
        base.update({key: record[key] for key in ("bn", "bt", "bv", "bs") if key in record})
        name = record.get("n") or base.get("bn")
        if not isinstance(name, str) or not name:
            raise invalid("a record of the SenML pack has no name; each needs n, or bn before it (RFC 8428, 4.5)")
        time = _sum(base.get("bt"), record.get("t"), "t") or 0
        row = rows.setdefault(time, {"bn": base.get("bn", ""), "t": time})
        row[name] = _value(record, base)
    return list(rows.values())


def _records(document: Any) -> list[Record]:
    if not isinstance(document, list) or not all(isinstance(record, Mapping) for record in document):
        raise invalid('a SenML pack is an array of records, such as [{"n": "temperature", "v": 21.5}]')
    check_rows(document)
    return document


def _value(record: Record, base: Mapping[str, Any]) -> Any:
    """Return the value of a record, with the base value; None if it has none."""
    readers: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("v", lambda value: _sum(base.get("bv"), value, "v")),
        ("vb", lambda value: value),
        ("vs", lambda value: value),
        ("vd", lambda value: value),
        ("s", lambda value: _sum(base.get("bs"), value, "s")),
    )
    return next((read(record[key]) for key, read in readers if key in record), base.get("bv"))


def _sum(base: Any, value: Any, label: str) -> Any:
    given = [each for each in (base, value) if each is not None]
    if not {type(each) for each in given} <= {int, float}:
        raise invalid(f"{label} and b{label} of a SenML record must be numbers, not {base!r:.32} and {value!r:.32}")
    try:
        return sum(given) if given else None
    except OverflowError:
        raise invalid(f"{label} and b{label} of a SenML record are too large") from None
