"""Recipe of a tiny language model in a GGUF file: llama's architecture, fixed random weights, a token for each byte.

It writes nonsense in printable ASCII, the same for the same prompt. `PYTHONPATH` of processes that serve it: `given()`.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gateway.common.domain.manifest import Artifact, ModelManifest, Variant
from gateway.common.domain.text_model import TEXT_INPUTS, TEXT_OUTPUTS
from tests.simulators.daemon import ROOT

PACKAGES = ROOT / ".venv" / "language" / "site-packages"
sys.path.append(str(PACKAGES))  # behind all packages of the tests

WIDTH, LAYERS, HEADS, INNER, CONTEXT = 64, 2, 2, 128, 512
SPECIAL = ("<unk>", "<s>", "</s>")
TOKENS = (*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)))
FIRST_BYTE = len(SPECIAL)
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_KINDS: Mapping[type, tuple[int, str]] = {bool: (_BOOL, "<?"), int: (_UINT32, "<I"), float: (_FLOAT32, "<f")}
ALIGNMENT = 32


def given() -> Mapping[str, str]:
    """Return the environment of a process that finds llama.cpp."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(PACKAGES), os.environ.get("PYTHONPATH", ""))))}


def metadata(**changes: Any) -> dict[str, Any]:
    """Return the metadata of the file. An entry that changes to None is left out."""
    kinds = [2, 3, 3, *[6] * 256]  # unknown, control, control, bytes
    changed = {name.replace("__", "."): value for name, value in changes.items()}
    entries = {
        **changed,  # before the vocabulary, where readers of headers stop
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.rope.dimension_count": WIDTH // HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(TOKENS),
        "tokenizer.ggml.scores": [0.0] * len(TOKENS),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": TEMPLATE,
        **changed,
    }
    return {name: value for name, value in entries.items() if value is not None}


def weights(seed: int = 7) -> dict[str, np.ndarray[Any, Any]]:
    """Return the weights. Dimension 0 is the same for all tokens and layers: by it the last matrix chooses letters."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, scale: float, *, adds: bool = False) -> np.ndarray[Any, Any]:
        made = random.normal(0, scale, (rows, columns)).astype(np.float32)
        if adds:
            made[0] = 0
        return made

    embeddings, last = matrix(len(TOKENS), WIDTH, 1.0), matrix(len(TOKENS), WIDTH, 0.6)
    embeddings[:, 0] = 4.0
    last[:, 0] = -30.0
    last[FIRST_BYTE + 32 : FIRST_BYTE + 127, 0] = 0.0
    made = {"token_embd.weight": embeddings, "output_norm.weight": np.ones(WIDTH, np.float32), "output.weight": last}
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        made |= {prefix + f"{name}_norm.weight": np.ones(WIDTH, np.float32) for name in ("attn", "ffn")}
        made |= {prefix + f"attn_{name}.weight": matrix(WIDTH, WIDTH, 0.3) for name in "qkv"}
        made[prefix + "attn_output.weight"] = matrix(WIDTH, WIDTH, 0.3, adds=True)
        made |= {prefix + f"ffn_{name}.weight": matrix(INNER, WIDTH, 0.2) for name in ("gate", "up")}
        made[prefix + "ffn_down.weight"] = matrix(WIDTH, INNER, 0.2, adds=True)
    return made


def content(**changes: Any) -> bytes:
    """Return the file, with other metadata than usual (`llama__context_length=128`)."""
    return _file(metadata(**changes), weights())


def adapter(seed: int, rank: int = 4, **changes: Any) -> bytes:
    """Return the file of an adapter (LoRA) for the model, with which it writes other texts for each seed."""
    random, tensors = np.random.default_rng(seed), {}
    for layer in range(LAYERS):
        for name, rows in (("attn_q", WIDTH), ("attn_v", WIDTH), ("ffn_up", INNER)):
            prefix = f"blk.{layer}.{name}.weight.lora_"
            tensors[prefix + "a"] = random.normal(0, 1, (rank, WIDTH)).astype(np.float32)
            tensors[prefix + "b"] = random.normal(0, 0.3, (rows, rank)).astype(np.float32)
    kinds = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    return _file({**kinds, "adapter.lora.alpha": float(rank), **changes}, tensors)


def _file(entries: Mapping[str, Any], tensors: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    parts = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(entries))]
    parts += [_text(name) + _entry(value) for name, value in entries.items()]
    offset, data = 0, []
    for name, array in tensors.items():
        sizes = array.shape[::-1]
        parts.append(_text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, offset))
        data.append(_padded(array.tobytes()))
        offset += len(data[-1])
    return _padded(b"".join(parts)) + b"".join(data)


def write(file: Path, **changes: Any) -> Path:
    """Write the file, and return its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content(**changes))
    return file


def manifest() -> ModelManifest:
    """Return the manifest of a file `tiny.gguf`."""
    variant = Variant("llamacpp", "llamacpp", "fp32", (Artifact("tiny.gguf", "", 0),))
    return ModelManifest("tiny", "1", TEXT_INPUTS, TEXT_OUTPUTS, (variant,), batch=False)


def inputs(prompt: str | bytes = "", request: Any = None, **parameters: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return the inputs of a run: a prompt with parameters, or a request in OpenAI's form."""
    asked = b"" if request is None else request if isinstance(request, bytes) else json.dumps(request).encode()
    texts = {
        "text_input": prompt if isinstance(prompt, bytes) else prompt.encode(),
        "sampling_parameters": json.dumps(parameters).encode(),
        "request": asked,
    }
    made: dict[str, Any] = {name: np.array([value, None], object)[:1] for name, value in texts.items()}
    return made | {"stream": np.array([False]), "exclude_input_in_output": np.array([True])}


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _entry(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, list):
        if isinstance(value[0], str):
            return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_text, value))
        kind, form = (_INT32, "i") if isinstance(value[0], int) else (_FLOAT32, "f")
        return struct.pack(f"<IIQ{len(value)}{form}", _ARRAY, kind, len(value), *value)
    kind, form = _KINDS[type(value)]
    return struct.pack("<I", kind) + struct.pack(form, value)


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % ALIGNMENT)
