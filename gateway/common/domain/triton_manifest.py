"""Manifest of a bare model from Triton's configuration, compared with what the runtime reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import INDEPENDENT, ROWS, Binding, ModelManifest, TensorSpec
from gateway.common.domain.manifest_toml import sequence_problem
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.triton_config import ConfigTensor, TritonConfig


def described(
    manifest: ModelManifest, config: TritonConfig, labels: tuple[str, ...], optional: tuple[TensorSpec, ...] = ()
) -> ModelManifest:
    """Return the manifest of a bare model as its configuration describes it; only the outputs named there are served.

    `optional` are inputs for which the file has a value. They are served if the configuration names them as optional.

    Raises VariantError with the tensor, the file's description of it and what to change.
    """
    hidden_inputs, hidden_outputs = config.hidden
    named = {each.name for each in (*config.inputs, *hidden_inputs)}
    if config.inputs and (unnamed := {spec.name for spec in manifest.inputs} - named):
        raise VariantError(f"{config.file} does not describe the input {min(unnamed)!r} of the model", remedy="add it")
    (variant,) = manifest.variants
    config = replace(config, runtime=variant.runtime)
    named = {tensor.name for tensor in config.inputs if tensor.optional}
    if named and config.batched:
        what = f"{config.file}: {min(named)!r} is optional, but the model file's value for it has no rows"
        raise VariantError(what, remedy="set max_batch_size: 0, or remove that input")
    if unknown := named - {spec.name for spec in optional}:
        what = f"{config.file}: {min(unknown)!r} is optional, but the model file has no single value for its elements"
        raise VariantError(what, remedy="remove optional and send it always")
    offered = (*manifest.inputs, *(spec for spec in optional if spec.name in named))
    inputs = tuple(_specs(config, config.inputs, hidden_inputs, offered, "input"))
    outputs = tuple(_specs(config, config.outputs, hidden_outputs, manifest.outputs, "output"))
    made = replace(
        manifest,
        inputs=inputs,
        outputs=outputs,
        labels=labels,
        batch=config.batched,
        max_batch_rows=config.max_batch_size or 0,
        rows=INDEPENDENT if config.joins and config.batched else "",
        variants=(replace(variant, bind=dict(_reshapes(config))),),
        parameters=config.parameters,
        runs=config.runs,
        sequence=config.sequence,
    )
    if problem := sequence_problem(made):
        raise VariantError(f"{config.file}: sequence_batching {problem}", remedy="name tensors as the model file does")
    return made


def _specs(
    config: TritonConfig,
    tensors: Sequence[ConfigTensor],
    hidden: Sequence[ConfigTensor],
    specs: tuple[TensorSpec, ...],
    role: str,
) -> Iterator[TensorSpec]:
    """Yield the tensors of one side: as configured, else as in the file, with rows if these are stated."""
    by_name, own = {spec.name: spec for spec in specs}, {tensor.name for tensor in hidden}
    if not tensors:
        yield from (_with_rows(config, spec) for spec in specs if spec.name not in own)
    for tensor in (*tensors, *hidden):
        if tensor.name not in by_name:
            offered = ", ".join(map(repr, by_name))
            raise VariantError(f"{config.file} describes {role} {tensor.name!r}, but the model has {offered}")
        yield _spec(config, tensor, by_name[tensor.name])


def _with_rows(config: TritonConfig, spec: TensorSpec) -> TensorSpec:
    if not config.batched:
        return spec
    if spec.shape[:1] not in {(ROWS,), (1,)}:
        raise _contradicts(config, spec, "its first dimension counts no rows: set max_batch_size: 0")
    return replace(spec, shape=(ROWS, *spec.shape[1:]))


def _spec(config: TritonConfig, tensor: ConfigTensor, spec: TensorSpec) -> TensorSpec:
    rows = (ROWS,) if config.batched else ()
    own = (*rows, *(tensor.dims if tensor.reshape is None else tensor.reshape))
    if not _agree(own, spec.shape, batched=bool(rows)):
        raise _contradicts(config, spec, f"the configuration says {list(own)}: correct dims or max_batch_size")
    if tensor.datatype is not spec.datatype and not _is_quantised(config, tensor, spec):
        raise _contradicts(config, spec, f"the configuration says TYPE_{tensor.datatype.label}: correct data_type")
    shape = (*rows, *tensor.dims)
    return replace(
        spec, shape=shape, datatype=tensor.datatype, layout=tensor.layout if len(shape) == 4 else spec.layout
    )


def _agree(own: tuple[int, ...], actual: tuple[int, ...], *, batched: bool) -> bool:
    """Return True if the file accepts the configured shape; one row counts as any number of them."""
    if len(own) != len(actual):
        return False
    pairs = list(zip(own, actual, strict=True))
    if batched and pairs[0][1] == 1:
        pairs = pairs[1:]
    return all(size in {mine, ROWS} for mine, size in pairs)


def _is_quantised(config: TritonConfig, tensor: ConfigTensor, spec: TensorSpec) -> bool:
    """Return True if integers may pass unchanged: LiteRT offers its quantised tensors as FP32, too."""
    return config.runtime == "litert" and spec.datatype is Datatype.FP32 and tensor.datatype.dtype.kind in "iu"


def _reshapes(config: TritonConfig) -> Iterator[tuple[str, Binding]]:
    rows = (ROWS,) if config.batched else ()
    for tensor in (*config.inputs, *config.outputs):
        if tensor.reshape is not None:
            yield tensor.name, Binding(tensor.name, shape=(*rows, *tensor.reshape))


def _contradicts(config: TritonConfig, spec: TensorSpec, remedy: str) -> VariantError:
    what = f"{config.file}: the model has {spec.name!r} as {spec.datatype.label} {list(spec.shape)}"
    return VariantError(what, remedy=remedy)
