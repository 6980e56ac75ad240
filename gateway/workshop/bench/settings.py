"""Limits of `edge-gateway bench`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """Times and sizes of one measurement."""

    warm_up_s: float = 0.5  # load before the clock starts, over the same connections
    silence_s: float = 30.0  # an answer that takes longer ends the measurement
    broker_s: float = 1.0  # for the first answers over MQTT: the gateway connects to its broker after it is ready ...
    broker_attempts: int = 15  # ... and requests before that are lost
    ready_s: float = 600.0  # for the gateway to start; the trials of a new model take minutes
    stop_s: float = 30.0  # for the gateway to stop; then it is killed
    samples_limit: int = 16  # generated inputs that are tried until the model accepts one
    buckets: int = 32  # of a histogram
    answer_limit_bytes: int = 268_435_455  # 256 MiB: one answer, and the largest packet of MQTT
    laps_limit: int = 20_000_000  # requests of one measurement whose times are kept: 8 bytes each
