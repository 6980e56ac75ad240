"""Manifests, placements, counters and index lines → the messages that describe them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gateway import __version__
from gateway.domain.manifest import ModelManifest, TensorSpec
from gateway.domain.ports import IndexEntry
from gateway.domain.statistics import BatchStatistics, Duration, Placement, ServableStatistics
from gateway.domain.tensor import Datatype
from gateway.frontends.grpc_v2.protocol import message

SERVER_NAME = "edge-inference-gateway"
EXTENSIONS = ("classification", "model_configuration", "model_repository", "parameters", "statistics")
"""Triton's names of what works here; `schedule_policy`, `sequence` and shared memory do not."""

_IMAGE_FORMATS = {"NCHW": "FORMAT_NCHW", "NHWC": "FORMAT_NHWC"}


def server_metadata() -> Any:
    """ServerMetadataResponse."""
    return message("inference.ServerMetadataResponse")(name=SERVER_NAME, version=__version__, extensions=EXTENSIONS)


def model_metadata(manifest: ModelManifest, placement: Placement, versions: Sequence[str]) -> Any:
    """ModelMetadataResponse; shapes include the batch dimension."""
    reply = message("inference.ModelMetadataResponse")(
        name=manifest.name, versions=versions, platform=placement.runtime
    )
    for field, specs in ((reply.inputs, manifest.inputs), (reply.outputs, manifest.outputs)):
        for spec in specs:
            field.add(name=spec.name, datatype=spec.datatype.label, shape=spec.shape)
    return reply


def model_config(manifest: ModelManifest, placement: Placement, versions: Sequence[str]) -> Any:
    """ModelConfigResponse; dims exclude the batch dimension where max_batch_size > 0."""
    reply = message("inference.ModelConfigResponse")()
    config = reply.config
    config.name, config.platform, config.backend = manifest.name, placement.runtime, placement.runtime
    config.version_policy.latest.num_versions = len(versions)
    config.max_batch_size = placement.max_batch_rows if manifest.batched else 0
    leading = 1 if config.max_batch_size else 0
    for spec in manifest.inputs:
        config.input.add(**_tensor(spec, leading), format=_IMAGE_FORMATS.get(spec.layout, "FORMAT_NONE"))
    for spec in manifest.outputs:
        config.output.add(**_tensor(spec, leading))
    if config.max_batch_size > 1:
        config.dynamic_batching.SetInParent()
    kind = "KIND_CPU" if placement.accelerator == "cpu" else "KIND_MODEL"
    config.instance_group.add(name=manifest.name, count=1, kind=kind)
    for name in ("variant", "precision", "accelerator", "reason"):
        config.parameters[name].string_value = getattr(placement, name)
    return reply


def model_statistics(counted: Iterable[ServableStatistics]) -> Any:
    """ModelStatisticsResponse."""
    reply = message("inference.ModelStatisticsResponse")()
    for servable in counted:
        line = reply.model_stats.add(
            name=servable.model,
            version=servable.version,
            last_inference=servable.last_inference_ms,
            inference_count=servable.inferences,
            execution_count=servable.executions,
        )
        for name in ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output"):
            _count(getattr(line.inference_stats, name), getattr(servable, name))
        for _, batch in sorted(servable.batches.items()):
            _batch(line.batch_stats.add(), batch)
    return reply


def repository_index(entries: Iterable[IndexEntry], *, only_ready: bool) -> Any:
    """RepositoryIndexResponse."""
    reply = message("inference.RepositoryIndexResponse")()
    for entry in entries:
        if entry.state == "READY" or not only_ready:
            reply.models.add(name=entry.name, version=entry.version, state=entry.state, reason=entry.reason)
    return reply


def _tensor(spec: TensorSpec, leading: int) -> dict[str, Any]:
    label = "STRING" if spec.datatype is Datatype.BYTES else spec.datatype.label
    return {"name": spec.name, "data_type": f"TYPE_{label}", "dims": spec.shape[leading:]}


def _batch(line: Any, batch: BatchStatistics) -> None:
    line.batch_size = batch.size_rows
    for name in ("compute_input", "compute_infer", "compute_output"):
        _count(getattr(line, name), getattr(batch, name))


def _count(field: Any, duration: Duration) -> None:
    field.count, field.ns = duration.count, duration.ns
