"""Parts of readers whose source is one model: its file, and a name made of that of the folder."""

from __future__ import annotations

import re

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.model_files import MODEL_STEM, NO_MODEL
from gateway.workshop.importing.imported import ImportFinding, taken
from gateway.workshop.importing.source import Documents, SourceModel

NAME_LIMIT = 128


def only_model(documents: Documents) -> SourceModel:
    """Return the only model file of a source. Raises ConfigurationError if there is none, or several."""
    paths = sorted(documents.models)
    if not paths:
        raise ConfigurationError(NO_MODEL, file=documents.name)
    if len(paths) > 1:
        problem = f"holds several models: {', '.join(paths[:3])}; import each file alone"
        raise ConfigurationError(problem, file=documents.name)
    return documents.models[paths[0]]


def plain_name(text: str) -> tuple[str, tuple[ImportFinding, ...]]:
    """Return a name of a model made of any text, and the remark that it was changed."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text)
    name = re.sub(r"^[^A-Za-z0-9]+", "", name)[:NAME_LIMIT] or MODEL_STEM
    return name, () if name == text else (taken("name", f"{text:.80} becomes {name}; --name sets another"),)
