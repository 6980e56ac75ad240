"""Verb `edge-gateway infer MODEL`: one request, answered in this process or by a running daemon; or a video."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import DATATYPES, Datatype
from gateway.common.domain.text_model import RESPONSE, is_generative
from gateway.common.terminal.tables import print_table
from gateway.serving import assembly
from gateway.serving.cli.common import configured, warn
from gateway.serving.cli.draw import draw_file
from gateway.serving.cli.explain import find_release
from gateway.serving.cli.files import chat, images, read_file, tensors, texts
from gateway.serving.cli.pipelines import with_models
from gateway.serving.cli.remote import WHOLE, Say, ask, new_text
from gateway.serving.cli.result_view import documents_of, print_documents
from gateway.serving.cli.running import disk_meant, find_running
from gateway.serving.cli.waiting import ModelWait
from gateway.serving.config import Config, state_folder
from gateway.serving.domain.infer import InferRequest, InferResponse
from gateway.serving.frontends.oip_json import decode_request
from gateway.serving.frontends.oip_json_answers import encode_response
from gateway.serving.model_sources import releases_here
from gateway.workshop.cli import infer_video

ROWS_SHOWN = 20


def command(arguments: argparse.Namespace) -> int:
    """Print the answer, or feed a video or camera."""
    if arguments.video or arguments.camera:
        return infer_video.command(arguments)
    for option in ("rate", "frames", "seconds"):
        if getattr(arguments, option) is not None:
            raise ConfigurationError("goes with --video or --camera", key=f"--{option}")
    labels: tuple[str, ...] = ()
    say: Say = (lambda _: None) if arguments.output == "json" else partial(print, end="", flush=True)
    wait, find = ModelWait(arguments.model, arguments.wait, arguments.config), partial(find_running, arguments)
    found = find() if disk_meant(arguments) else wait.gateway(find)
    if not isinstance(found, str):
        answer, upright = wait.answer(*found, partial(ask, arguments, *found, say))
    else:
        if not disk_meant(arguments):
            print(f"answered in this process, from the disk: {found}", file=sys.stderr)
        response, manifest = asyncio.run(_infer_here(configured(arguments), arguments, say))
        labels, upright = manifest.labels, manifest.orientation == "upright"
        answer = json.loads(encode_response(response, literals=True).header)
        if arguments.text and is_generative(manifest):
            answer |= {line["name"]: line["data"][0] for line in answer.pop("outputs") if line["name"] != RESPONSE}
    documents = [] if WHOLE in answer else documents_of(answer)
    if arguments.draw:
        _draw(documents, arguments, upright=upright)
    if (arguments.output or ("json" if arguments.json else "table")) == "json":
        print(json.dumps(answer))
    else:
        _print(answer, documents, labels)
    return 0


def _draw(documents: Sequence[Mapping[str, Any]], arguments: argparse.Namespace, *, upright: bool) -> None:
    """Draw the result of each image; of several, their number is added to the file's name."""
    if not arguments.image:
        raise ConfigurationError("goes with --image, --video or --camera: there is nothing to draw into", key="--draw")
    if not documents:
        problem = f"model '{arguments.model}' has no task, so that nothing can be drawn"
        raise ConfigurationError(f"{problem}; declare [task] in its manifest (EG-703)", key="--draw")
    target = Path(arguments.draw)
    for place, (document, source) in enumerate(zip(documents, arguments.image, strict=True)):
        name = target.name if len(documents) == 1 else f"{target.stem}-{place}{target.suffix}"
        draw_file(document, Path(source), target.with_name(name), turned=upright)
        print(f"{target.with_name(name)} written", file=sys.stderr)


async def _infer_here(config: Config, arguments: argparse.Namespace, say: Say) -> tuple[InferResponse, ModelManifest]:
    release = await find_release(config, arguments.model, arguments.model_version)
    surveyed = await assembly.survey(config)
    with assembly.opened(config, surveyed, state_folder(arguments.state), warn) as loader:
        engine, repository = assembly.serving(config, loader)
        try:
            await repository.synchronise(with_models(release, await releases_here(config)))
            manifest = engine.describe(release.name, release.version)
            request = read_request(arguments, manifest)
            if not (arguments.text and is_generative(manifest)):
                return await engine.infer(request), manifest
            async for response, _ in engine.infer_in_parts(request):
                if RESPONSE in response.outputs:
                    say(new_text(response.outputs[RESPONSE].array[0].decode()))
            return response, manifest
        finally:
            await repository.close()


def read_request(arguments: argparse.Namespace, manifest: ModelManifest) -> InferRequest:
    """Return the request that the options describe.

    Raises ConfigurationError for a file, RequestError for its content.
    """
    name, version = manifest.name, manifest.version
    if arguments.json:
        try:
            return decode_request(read_file(arguments.json), name, version, now_ns=time.monotonic_ns()).request
        except RequestError as error:
            raise RequestError(error.fault, f"{arguments.json}: {error.message}") from error
    if arguments.npz:
        needed = [spec.name for spec in manifest.inputs if spec.default is None]
        optional = [spec.name for spec in manifest.inputs if spec.default is not None]
        return InferRequest(name, tensors(arguments.npz, needed, optional), version)
    if arguments.text and is_generative(manifest):
        return InferRequest(name, chat(arguments.text, arguments.max_tokens), version)
    if arguments.text:
        spec = next((spec for spec in manifest.inputs if spec.datatype is Datatype.BYTES), None)
        if spec is None:
            raise RequestError(Fault.INVALID, f"model '{name}' takes no text")
        return InferRequest(name, {spec.name: texts(arguments.text, spec.shape)}, version)
    spec = next((spec for spec in manifest.inputs if spec.preprocess), manifest.inputs[0])
    return InferRequest(name, {spec.name: images(arguments.image)}, version)


def _print(answer: dict[str, Any], documents: Sequence[Mapping[str, Any]], labels: tuple[str, ...]) -> None:
    if WHOLE in answer:  # it was printed as it came
        print()
        return
    print(f"{answer['model_name']} version {answer['model_version']}\n")
    if documents:
        print_documents(documents)
        return
    for output in answer["outputs"]:
        values = np.asarray(output["data"], dtype=object).reshape(output["shape"])
        if DATATYPES[output["datatype"]] in {Datatype.FP16, Datatype.FP32, Datatype.FP64} and values.ndim == 2:
            _print_classes(output["name"], values.astype(float), labels)
        else:
            print(f"{output['name']} {output['datatype']} {output['shape']}: {values.tolist()!s:.2000}")


def _print_classes(name: str, scores: Any, labels: tuple[str, ...]) -> None:
    best = scores.argmax(axis=1)
    rows = [
        (str(row), labels[index] if index < len(labels) else str(index), f"{scores[row, index]:.4f}")
        for row, index in enumerate(best[:ROWS_SHOWN])
    ]
    print_table(("row", f"best of {name}", "score"), rows)
    if len(best) > ROWS_SHOWN:
        print(f"… and {len(best) - ROWS_SHOWN} more rows; --output json prints all")
