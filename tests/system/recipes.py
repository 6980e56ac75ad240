"""Recipes of examples/pipelines, step by step: a request for each model, and what is between them by the caller."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import tritonclient.http as web
from PIL import Image
from tritonclient.utils import np_to_triton_dtype

from gateway.common.domain.tensor import Array
from gateway.serving.tasks.views import View, turn, warp, whole
from tests.simulators.similarity import FACE, umeyama

Document = dict[str, Any]
TILES = {"crowd": (640, 0.15), "read-large-page": (736, 0.2)}
"""Side and overlap."""
IMAGES = tuple(
    (name, file)
    for name, files in {
        "crowd": ("crowd.png",),
        "face-vectors": ("known.png", "group.png"),
        "read-large-page": ("part.png",),
        "read-page": ("page.png", "turned.png"),
        "upright": ("page.png", "turned.png"),
        "who": ("known.png", "group.png"),
    }.items()
    for file in files
)
"""Recipes that take an image, and what they are asked."""


def image_of(folder: Path, recipe: str, file: str) -> dict[str, Array]:
    """Return the inputs of a recipe for an image."""
    name = re.findall(r'^(\w+) = "image"$', (folder / recipe / "pipeline.toml").read_text(), re.MULTILINE)
    return {name[0]: np.array([(folder / file).read_bytes()], object)}


def documents(module: Any, client: Any, model: str, inputs: Mapping[str, Array]) -> list[Document]:
    """Return what a model or pipeline answers to each row, by a client of Triton's for HTTP or gRPC."""
    return [json.loads(text) for text in client.infer(model, asked_of(module, inputs)).as_numpy("result")]


def asked_of(module: Any, inputs: Mapping[str, Array]) -> list[Any]:
    """Return inputs as a client of Triton's takes them."""
    asked = [module.InferInput(name, [*array.shape], np_to_triton_dtype(array.dtype)) for name, array in inputs.items()]
    for each, array in zip(asked, inputs.values(), strict=True):
        each.set_data_from_numpy(array)
    return asked


def png(image: Image.Image) -> bytes:
    """Return an image as a file."""
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()


@dataclass
class Steps:
    """Steps of recipes in a folder, where the README was pasted, by a client of the daemon."""

    folder: Path
    client: web.InferenceServerClient

    def model(self, name: str, image: Image.Image) -> Document:
        """Return what a model says about an image."""
        (answer,) = documents(web, self.client, name, self._given(name, image))
        return answer

    def objects(self, name: str, image: Image.Image) -> list[Document]:
        """Return what a detector finds in an image, not rounded as its document is."""
        (inputs,) = asked_of(web, self._given(name, image))
        place = "corners" if name == "text-lines" else "keypoints"
        names = {"box": "boxes", "score": "scores", place: place}
        answer = self.client.infer(name, [inputs], outputs=[web.InferRequestedOutput(each) for each in names.values()])
        columns = [answer.as_numpy(each)[0] for each in names.values()]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _given(self, name: str, image: Image.Image) -> dict[str, Array]:
        (given,) = self.client.get_model_metadata(name)["inputs"]
        return {given["name"]: np.array([png(image)], object)}

    def answer(self, recipe: str, file: str) -> Document:
        """Return what the steps of a recipe give for an image."""
        image = Image.open(self.folder / file).convert("RGB")
        steps: Callable[..., Document] = getattr(self, recipe.replace("-", "_"))
        return steps(image)

    # ---- faces ------------------------------------------------------------------------------------------------------
    def face_vectors(self, photo: Image.Image) -> Document:
        faces = list[Document]()
        for face in self.objects("faces", photo):
            matrix = umeyama(face["keypoints"].astype(float), FACE)
            aligned = Image.fromarray(cv2.warpAffine(np.asarray(photo), matrix, (112, 112)))
            faces.append({"box": face["box"], "vector": self.model("face-embedding", aligned)["embedding"]})
        return {"faces": faces}

    def who(self, photo: Image.Image) -> Document:
        with np.load(self.folder / "people/who/1/faces.npz") as gallery:
            (known,), (name,) = gallery["vectors"], gallery["labels"]
        faces = self.face_vectors(photo)["faces"]
        scores = [cosine(face["vector"], known) for face in faces]
        return {
            "faces": [
                {"box": face["box"], "name": str(name) if score >= 0.4 else "stranger", "alike": score}
                for face, score in zip(faces, scores, strict=True)
            ]
        }

    def crowd(self, photo: Image.Image) -> Document:
        found = self._in_tiles("faces", photo, *TILES["crowd"])
        return {"people": len(found), "faces": [{"box": face["box"], "score": face["score"]} for face in found]}

    # ---- text -------------------------------------------------------------------------------------------------------
    def upright(self, page: Image.Image) -> Document:
        lines = list[tuple[Array, Document]]()
        for line in self.objects("text-lines", page):
            lines.append((line["corners"], self.model("text-direction", shown(_part(page, line)))))
        turned = sum(each["label"] == "180" and each["score"] > 0.9 for _, each in lines)
        listed = [{"corners": place, "direction": each["label"], "score": each["score"]} for place, each in lines]
        return {"upside_down": turned * 2 > len(lines), "lines": listed}

    def read_page(self, page: Image.Image) -> Document:
        lines = list[Document]()
        for line in self.objects("text-lines", page):
            part = _part(page, line)
            direction = self.model("text-direction", shown(part))
            is_turned = direction["label"] == "180" and direction["score"] > 0.9
            lines.append(self._read(turn(part, 180) if is_turned else part, line))
        return {"lines": [line for line in lines if line["score"] > 0.5]}

    def read_large_page(self, page: Image.Image) -> Document:
        found = self._in_tiles("text-lines", page, *TILES["read-large-page"])
        return {"lines": [self._read(_part(page, line), line) for line in found]}

    def _read(self, part: View, line: Document) -> Document:
        words = self.model("text-reader", shown(part))
        return {"text": words["text"], "score": words["score"], "corners": line["corners"]}

    def _in_tiles(self, model: str, image: Image.Image, side: int, overlap: float) -> list[Document]:
        """Return what a model finds in all tiles, in the pixels of the image; of what overlaps the best."""
        found = list[Document]()
        for left, top in places_of_tiles(image, side, overlap):
            for each in self.objects(model, image.crop((left, top, left + side, top + side))):
                moved = {"box": each["box"] + np.float32([left, top, left, top])}
                if "corners" in each:
                    moved["corners"] = each["corners"] + np.float32([left, top])
                found.append({**each, **moved})
        kept = list[Document]()
        for each in sorted(found, key=lambda one: -one["score"]):
            if all(overlap_of(each["box"], other["box"]) <= 0.3 for other in kept):
                kept.append(each)
        return kept


def places_of_tiles(image: Image.Image, side: int, overlap: float) -> Iterator[tuple[int, int]]:
    """Yield the left and top of each tile."""
    counts = [int(np.ceil(max(0, length - side) / (side * (1 - overlap)))) + 1 for length in image.size]
    across, down = (
        [int((length - side) * place / max(1, count - 1)) for place in range(count)]
        for length, count in zip(image.size, counts, strict=True)
    )
    yield from ((left, top) for top in down for left in across)


def overlap_of(one: list[float] | Array, other: list[float] | Array) -> float:
    """Return the intersection of two boxes over their union."""
    a, b = np.reshape(one, (2, 2)), np.reshape(other, (2, 2))
    both = np.prod(np.clip(np.minimum(a[1], b[1]) - np.maximum(a[0], b[0]), 0, None))
    return float(both / (np.prod(a[1] - a[0]) + np.prod(b[1] - b[0]) - both))


def cosine(one: list[float] | Array, other: list[float] | Array) -> float:
    """Return the cosine similarity of two vectors."""
    return float(np.dot(one, other) / np.linalg.norm(one) / np.linalg.norm(other))


def _part(page: Image.Image, line: Document) -> View:
    return warp(whole(page), line["corners"])


def shown(part: View) -> Image.Image:
    """Return the pixels of a part between corners."""
    assert part.corners is not None
    size = (max(1, round(part.size[0])), max(1, round(part.size[1])))
    corners = part.corners[[0, 3, 2, 1]].ravel().tolist()
    image: Image.Image = part.image.transform(size, Image.Transform.QUAD, corners, Image.Resampling.BILINEAR)
    return image


def tabular(folder: Path) -> dict[str, tuple[dict[str, Array], list[Document]]]:
    """Return the inputs of the recipes with tables, and what the steps give for each row, by ONNX Runtime."""

    def probabilities(model: str, rows: Array) -> Array:
        session = onnxruntime.InferenceSession(folder / "models" / model / "1" / "model.onnx")
        found: Array = session.run(None, {session.get_inputs()[0].name: rows})[1]
        return found

    with np.load(folder / "payments.npz") as arrays:
        payments = {name: arrays[name] for name in ("features", "amount")}
    with np.load(folder / "digits.npz") as arrays:
        digits = {"pixels": arrays["pixels"]}
    quick, deep = (probabilities(f"fraud-{name}", payments["features"]) for name in ("quick", "deep"))
    unsure = (quick.max(axis=1) < 0.97) | (payments["amount"] > 2000)
    risks = np.where(unsure, deep[:, 1], quick[:, 1])
    actions = np.where(risks * payments["amount"] > 500, "block", "allow")
    voters = np.stack(
        [probabilities(f"digits-{name}", digits["pixels"]) for name in ("linear", "network", "neighbours")]
    )
    votes = [max(texts, key=texts.count) for texts in voters.argmax(axis=2).T.astype(str).tolist()]
    found = voters.mean(axis=0).argmax(axis=1).tolist()
    return {
        "fraud": (payments, [{"risk": a, "action": b} for a, b in zip(risks.tolist(), actions.tolist(), strict=True)]),
        "digits": (digits, [{"digit": a, "vote": b} for a, b in zip(found, votes, strict=True)]),
    }


def difference(answer: Any, wanted: Any, key: str = "") -> str:
    """Return where an answer differs from what is wanted, or ""."""
    if isinstance(wanted, Mapping):
        if answer.keys() != wanted.keys():
            return f"{key}: {sorted(answer)} in place of {sorted(wanted)}"
        return "".join(difference(answer[name], wanted[name], f"{key}/{name}") for name in wanted)
    if key.endswith("/vector"):
        return "" if cosine(answer, wanted) > 0.999 else f"{key}: similarity {cosine(answer, wanted)}"
    if isinstance(wanted, list) and len(wanted) == len(answer) and wanted and isinstance(wanted[0], Mapping):
        pairs = zip(*(sorted(each, key=_place) for each in (answer, wanted)), strict=True)
        return "".join(difference(one, other, f"{key}/{row}") for row, (one, other) in enumerate(pairs))
    if isinstance(wanted, float | np.floating | np.ndarray):
        same = np.shape(answer) == np.shape(wanted) and np.allclose(answer, wanted, rtol=1e-4, atol=0.005)
    else:
        same = answer == wanted
    return "" if same else f"{key}: {answer!r} in place of {wanted!r}; "


def _place(entry: Mapping[str, Any]) -> list[float]:
    """Return what orders found objects: their first corner."""
    place: list[float] = np.ravel(entry.get("box", entry.get("corners")))[:2].tolist()
    return place
