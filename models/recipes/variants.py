"""The variants of a model as a table: what each is called, where its files lie, and how it is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.common.domain.tensor import Tensors
from gateway.workshop.making.quantize_onnx import quantize_onnx
from gateway.workshop.making.quantize_openvino import write_openvino_fp16, write_openvino_int8
from models.recipes import litert_export, reference_export
from models.recipes.recipe import Floats, Recipe


@dataclass(frozen=True, slots=True)
class Kind:
    """One variant. `write` gets the recipe, the fp32 ONNX file, calibration rows and the path to write."""

    runtime: str
    precision: str
    file: str
    write: Callable[[Recipe, Path, Floats, Path], None]

    @property
    def name(self) -> str:
        """The variant's name, which is also its folder."""
        return "reference" if self.runtime == "reference" else f"{self.runtime}-{self.precision}"

    def artifacts(self) -> tuple[str, ...]:
        """Paths relative to the version's folder, the one to open first."""
        files = (self.file, "model.bin") if self.runtime == "openvino" else (self.file,)
        return tuple(f"{self.name}/{file}" for file in files)


def _runs(recipe: Recipe, rows: Floats) -> list[Tensors]:
    """Return calibration rows as runs of one row."""
    return [{recipe.input: row[None]} for row in rows]


def _write_onnx_int8(recipe: Recipe, fp32: Path, calibration: Floats, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    quantize_onnx(fp32, _runs(recipe, calibration), path, activations="QInt8")


def _write_openvino(write: Callable[[Path, list[Tensors], Path], None]) -> Callable[[Recipe, Path, Floats, Path], None]:
    def written(recipe: Recipe, fp32: Path, calibration: Floats, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(fp32, _runs(recipe, calibration), path)

    return written


FP32 = "onnx-fp32/model.onnx"  # written first, by training; every other variant comes from it

KINDS = (
    Kind("onnx", "fp32", "model.onnx", lambda recipe, fp32, rows, path: None),
    Kind("onnx", "int8", "model.onnx", _write_onnx_int8),
    Kind("openvino", "fp16", "model.xml", _write_openvino(write_openvino_fp16)),
    Kind("openvino", "int8", "model.xml", _write_openvino(write_openvino_int8)),
    Kind("litert", "fp32", "model.tflite", litert_export.write_fp32),
    Kind("litert", "int8", "model.tflite", litert_export.write_int8),
    Kind("reference", "fp32", "model.npz", reference_export.write_reference),
)


def layout(recipe: Recipe, kind: Kind) -> str:
    """Return the layout of the variant's own input tensor."""
    return recipe.litert_layout if kind.runtime == "litert" else recipe.layout
