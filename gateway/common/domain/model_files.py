"""Names in a model directory: files that are models, files that belong to them, and files that are never served."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from gateway.common.domain.runtimes import BY_SUFFIX

MODEL_STEM = "model"
"""Name, without suffix, of the served file if several are in one folder."""
NO_MODEL = f"holds no model; put a {', '.join(BY_SUFFIX)} file there, or a version's folder with manifest.toml"

HEAD_BYTES = 64
"""Bytes of a model file that `damage` reads."""
COPY_AGAIN = "compare its size with the original's, and copy it here again"
"""Remedy for a model file that its runtime cannot parse."""

SAVED_MODEL = "saved_model.pb"
"""File that makes a folder a SavedModel of TensorFlow."""
_TORCH = "call torch.onnx.export(model, example_inputs, '{stem}.onnx') in the program that makes it"
_KERAS = "python -c \"import keras; keras.models.load_model('{name}').export('{stem}.onnx', format='onnx')\""
_PICKLE = "call skl2onnx.to_onnx(model, example_rows) in the program that makes it"
_EXPORTS: Mapping[str, str] = {
    ".pt": f"yolo export model={{name}} format=onnx (Ultralytics), or {_TORCH}",
    ".pth": _TORCH,
    ".h5": _KERAS,
    ".keras": _KERAS,
    ".safetensors": "optimum-cli export onnx --model FOLDER OUTPUT, with the folder that holds it and its config.json",
    ".pkl": _PICKLE,
    ".pickle": _PICKLE,
    ".joblib": _PICKLE,
    SAVED_MODEL: "python -m tf2onnx.convert --saved-model FOLDER --output model.onnx, with the folder that holds it",
}
"""Command or call that exports a file of a training framework, by suffix or name."""

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_DOCUMENTS = ("README", "LICENSE", "LICENCE", "NOTICE", "COPYING", "CHANGELOG", "AUTHORS")
_HIDDEN = (".", "__")
_FOLDERS = frozenset({"recipes", "lost+found"})


def is_model(name: str) -> bool:
    """Return True if a file is a model by its suffix."""
    return PurePosixPath(name).suffix in BY_SUFFIX


def damage(head: bytes) -> str:
    """Return why a file that begins with `head` (its first HEAD_BYTES) is no model, with the remedy, or ""."""
    if not head:
        return f"is empty; {COPY_AGAIN}"
    if head.startswith(_LFS_POINTER):
        return "is a Git LFS pointer, not the model; run `git lfs pull` where it came from, and copy it here again"
    return ""


def near_model(name: str) -> str:
    """Return why a file is not served that is nearly a model: it must be renamed or exported; "" for all others."""
    path = PurePosixPath(name)
    suffix = path.suffix.lower()
    if export := _EXPORTS.get(path.name, _EXPORTS.get(suffix)):
        reason = f"no runtime opens {path.name}, a file of a training framework"
        return f"is not served: {reason}; export it: {export.format(name=path.name, stem=path.stem)}"
    if suffix == path.suffix or suffix not in BY_SUFFIX:
        return ""
    return f"is not served: the suffix of {name} has capital letters; rename it to {path.stem}{suffix}"


def is_hidden(name: str) -> bool:
    """Return True if a file or folder is skipped and not reported: its name begins with "." or "__"."""
    return name.startswith(_HIDDEN)


def is_document(name: str) -> bool:
    """Return True if a file only documents models: README, LICENSE and the like, and every .md."""
    return name.upper().startswith(_DOCUMENTS) or name.lower().endswith(".md")


def may_hold_nothing(name: str) -> bool:
    """Return True if a folder of the model directory may be without a model."""
    return name in _FOLDERS


def choose_model(names: Iterable[str], wanted: str = "") -> str:
    """Return the model file among a folder's files: `wanted`, else the only one, else the only one called `model`.

    Raises ValueError with the problem and its remedy.
    """
    names = sorted(names)
    models = list(filter(is_model, names))
    if wanted:
        if wanted in models:
            return wanted
        if wanted in names:
            problem = (
                near_model(wanted) or f"has no suffix of a model; rename it and the field ({', '.join(BY_SUFFIX)})"
            )
            raise ValueError(f"default_model_filename {wanted!r} {problem}")
        raise ValueError(f"holds no {wanted}, which default_model_filename names; add it")
    if not models:
        raise ValueError(next(filter(None, map(near_model, names)), NO_MODEL))
    usual = [name for name in models if PurePosixPath(name).stem == MODEL_STEM]
    if 1 not in {len(models), len(usual)}:
        raise ValueError(
            f"holds several models: {', '.join(models[:3])}{' and others' if len(models) > 3 else ''}; keep one, "
            "or give each a folder of its own (EG-311)"
        )
    return models[0] if len(models) == 1 else usual[0]


def inner_path(file: str, location: str) -> str:
    """Return the path to which the model `file` refers as `location`, relative to the same folder as `file` itself.

    Raises ValueError if it is absolute or leads out of the folder of `file`.
    """
    path = PurePosixPath(location)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in location or not location.isprintable():
        raise ValueError(
            f"refers to {location!r:.150}, which is no path inside its folder; save model and data in one folder"
        )
    return str(PurePosixPath(file).parent / path)
