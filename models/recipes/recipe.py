"""Values of one model's recipe; everything else in this package works from these values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gateway.common.domain.manifest import Preprocess, Window

if TYPE_CHECKING:
    import torch

Floats = NDArray[np.float32]
Classes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Dataset:
    """Inputs in the manifest's layout and raw units (rows first), and the true class of every row."""

    train: Floats
    train_classes: Classes
    heldout: Floats
    heldout_classes: Classes


@dataclass(frozen=True, slots=True)
class Schedule:
    """How long and how hard to train; the seed also draws the augmentation."""

    epochs: int
    batch_rows: int
    learning_rate: float
    weight_decay: float
    label_smoothing: float
    seed: int


@dataclass(frozen=True, slots=True)
class Trial:
    """Rows derived from the held-out ones, harder in a way that the field will be; measured for the card."""

    title: str
    make: Callable[[Dataset], tuple[Floats, Classes]]


@dataclass(frozen=True, slots=True)
class Story:
    """The parts of the card that no measurement can write."""

    purpose: str
    data: str
    training: str
    limits: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """One model: its contract with clients, its data, its network and how it is trained."""

    name: str
    version: str
    task: str
    labels: tuple[str, ...]
    input: str
    shape: tuple[int, ...]  # without the batch dimension
    layout: str  # of the manifest and of the ONNX and OpenVINO variants
    litert_layout: str  # channels last, as LiteRT's convolutions want it
    preprocess: Preprocess | None  # of the manifest's input
    window: Window | None  # of the manifest
    channel_axis: int | None  # standardise along this axis and fold the constants into the first convolution
    load: Callable[[], Dataset]
    network: Callable[[], torch.nn.Sequential]
    augment: Callable[[torch.Tensor, torch.Tensor, torch.Generator], torch.Tensor]
    schedule: Schedule
    trials: tuple[Trial, ...]
    story: Story
    output: str = "scores"
