"""Changes of a manifest's text that keep the author's comments. Pure functions."""

from __future__ import annotations

import re
from itertools import pairwise

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import Golden, ModelManifest
from gateway.common.domain.manifest_toml import read_manifest
from gateway.workshop.making.evaluation import Basis
from gateway.workshop.making.manifest_text import Notes, golden_blocks, variant_text
from gateway.workshop.making.toml_text import toml_value

_HEADER = re.compile(r"^(?:#.*\n)*\[", re.MULTILINE)
"""Header of a table, with the comments on the lines before it."""
_COMMENTS = re.compile(r"(?:#.*\n)*")
_GOLDEN = re.compile(r"\[golden[\].]")
_VARIANT = "[[variant]]"
_ACCURACY = re.compile(r"^(?:# measured:.*\n)?accuracy\s*=.*\n", re.MULTILINE)
_PRECISION = re.compile(r"^precision\s*=.*\n", re.MULTILINE)


def edited(text: str, manifest: ModelManifest, notes: Notes, file: str) -> str:
    """Return the text of a manifest with the golden set and the variants of `manifest`.

    Variants that differ in their accuracy only keep their text otherwise. Raises ConfigurationError with `file` if the
    text is in an order that cannot be edited.
    """
    before = {variant.name: variant for variant in read_manifest(text, file).variants}
    head, groups = _divided(text)
    by_name = dict(zip(before, groups, strict=False))
    variants = []
    for variant in manifest.variants:
        old = before.get(variant.name)
        is_same = old is not None and (old.artifacts, old.bind, old.adapters) == (
            variant.artifacts,
            variant.bind,
            variant.adapters,
        )
        note = notes.get(f"variant.{variant.name}.accuracy", "")
        own = by_name.get(variant.name, "") if is_same else ""
        changed = own and (own if old == variant and not note else _with_accuracy(own, variant.accuracy, note))
        variants.append(changed or variant_text(variant, notes))
    golden = golden_blocks(manifest.golden) if manifest.golden else []
    found = "\n".join(part.rstrip("\n") + "\n" for part in (head, *golden, *variants))
    if read_manifest(found, file) != manifest:
        raise ConfigurationError("its tables cannot be edited; put every [[variant]] behind all others", file=file)
    return found


def with_golden(text: str, golden: Golden) -> str:
    """Return the text of a pipeline with a golden set, in place of an earlier one."""
    head, _ = _divided(text)
    return "\n".join(part.rstrip("\n") + "\n" for part in (head, *golden_blocks(golden)))


def _divided(text: str) -> tuple[str, list[str]]:
    """Return the text without the golden set and without variants, and the text of each variant."""
    starts = [0, *(found.start() for found in _HEADER.finditer(text)), len(text)]
    sections = [text[start:end] for start, end in pairwise(starts)]
    head, groups = list[str](), list[list[str]]()
    for section in sections:
        table = _COMMENTS.sub("", section, count=1)
        if table.startswith(_VARIANT):
            groups.append([section])
        elif table.startswith("[variant.") and groups:
            groups[-1].append(section)
        elif not _GOLDEN.match(table):
            head.append(section)
    return "".join(head), ["".join(group) for group in groups]


def _with_accuracy(text: str, accuracy: float | None, note: str) -> str:
    text = _ACCURACY.sub("", text, count=1)
    if accuracy is None:
        return text
    comment = f"# {note}\n" if note else ""
    line = f"{comment}accuracy = {toml_value(accuracy)}\n"
    return _PRECISION.sub(lambda found: found[0] + line, text, count=1)


def accuracy_note(basis: Basis) -> str:
    """Return the comment of an accuracy: what it is, and on how many samples it was measured."""
    return f"measured: {basis.described}"
