"""Folders of versions, as Triton and OpenVINO Model Server number them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gateway.common.domain.errors import ConfigurationError, VariantError
from gateway.common.domain.model_files import choose_model
from gateway.common.domain.routing import version_order
from gateway.workshop.importing.imported import ImportedModel, ImportedPipeline, SkippedModel
from gateway.workshop.importing.source import Documents, SourceModel, joined

_NUMBER = re.compile(r"[1-9][0-9]{0,18}")
Build = Callable[[str, SourceModel], ImportedModel]
"""Function of version and model file. Raises ConfigurationError or VariantError if they cannot be served."""


@dataclass(frozen=True, slots=True)
class NumberedVersions:
    """Versions of a model by their folders, ascending; `refused` are numbered folders that no server reads."""

    served: tuple[str, ...]
    refused: tuple[str, ...]


def numbered_versions(documents: Documents, folder: str) -> NumberedVersions:
    """Return the versions in a model's folder. Folders with other names are no versions."""
    numbers = [name for name in documents.folders(folder) if name.isdecimal()]
    served = sorted((name for name in numbers if _NUMBER.fullmatch(name)), key=version_order)
    return NumberedVersions(tuple(served), tuple(name for name in numbers if name not in served))


def build_versions(
    documents: Documents, name: str, folder: str, versions: Sequence[str], build: Build, *, wanted: str = ""
) -> Iterator[ImportedModel | SkippedModel]:
    """Yield each version of a model, or why it is skipped. `wanted` names the model file ("": the only one)."""
    for version in versions:
        inner = joined(folder, version)
        try:
            file = choose_model(documents.within(inner), wanted)
            yield build(version, documents.model(joined(inner, file)))
        except (ConfigurationError, VariantError) as error:
            yield SkippedModel(name, version, str(error))
        except ValueError as error:
            yield SkippedModel(name, version, f"{inner}: {error}")


def refused_versions(name: str, versions: NumberedVersions) -> Iterator[SkippedModel]:
    """Yield the numbered folders that no server reads."""
    for version in versions.refused:
        yield SkippedModel(name, version, "a version is a number from 1 without leading zeros; rename the folder")


def sorted_out(
    found: Sequence[ImportedModel | ImportedPipeline | SkippedModel],
) -> tuple[tuple[ImportedModel, ...], tuple[SkippedModel, ...], tuple[ImportedPipeline, ...]]:
    """Return the models, those that are skipped, and the pipelines."""
    return (
        tuple(each for each in found if isinstance(each, ImportedModel)),
        tuple(each for each in found if isinstance(each, SkippedModel)),
        tuple(each for each in found if isinstance(each, ImportedPipeline)),
    )
