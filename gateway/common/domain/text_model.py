"""Tensors of language models: every model with these is one, whatever runs it."""

from __future__ import annotations

from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype

TEXT, PARAMETERS, STREAM, REQUEST = "text_input", "sampling_parameters", "stream", "request"
RESPONSE = "response"
FINAL = "triton_final_response"
"""Parameter of answers in parts, as Triton's: False for a part, True for the last one."""
ADAPTER = "lora_name"
"""Field of a request that names an adapter, as in Triton's requests to vLLM."""
TOKENS_LIMIT = 1_048_576
"""Longest context, and longest text, that may be asked for, in tokens."""
TOO_LONG = "tokens are more than the context"
"""Words in the refusal of a text that is too long, by which a frontend knows it."""
COUNTS = GIVEN, WRITTEN = "num_input_tokens", "num_output_tokens"
"""Outputs with the numbers of tokens of the prompt and of the text."""
TEXT_INPUTS = (
    TensorSpec(TEXT, Datatype.BYTES, (1,), default=b""),
    TensorSpec(PARAMETERS, Datatype.BYTES, (1,), default=b"{}"),
    TensorSpec(STREAM, Datatype.BOOL, (1,), default=0.0),
    TensorSpec("exclude_input_in_output", Datatype.BOOL, (1,), default=1.0),
    TensorSpec(REQUEST, Datatype.BYTES, (1,), default=b""),
)
TEXT_OUTPUTS = (
    TensorSpec("text_output", Datatype.BYTES, (1,)),
    TensorSpec("finish_reason", Datatype.BYTES, (1,)),
    *(TensorSpec(name, Datatype.UINT32, (1,)) for name in COUNTS),
    TensorSpec(RESPONSE, Datatype.BYTES, (1,)),
)


def is_generative(manifest: ModelManifest) -> bool:
    """Return True if a model is a language model: its tensors have the names and types of one."""
    pairs = ((manifest.inputs, TEXT_INPUTS), (manifest.outputs, TEXT_OUTPUTS))
    return all(
        [(each.name, each.datatype) for each in has] == [(t.name, t.datatype) for t in text] for has, text in pairs
    )
