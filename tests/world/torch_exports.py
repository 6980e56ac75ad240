"""Export small networks from PyTorch: `PYTHON tests/world/torch_exports.py FOLDER`, with a Python that has torch.

A program of its own: PyTorch is no requirement of the tests, and Debian's package brings it for Debian's Python only.
Random weights from a fixed seed; each file is FOLDER/NAME.onnx.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from torch import nn


class Centred(nn.Module):
    """Points less their mean: the open first dimension counts points of one cloud."""

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return points - points.mean(dim=0, keepdim=True)


class Running(nn.Module):
    """Running sum over time: the open first dimension is time."""

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(samples, dim=0)


class Recurrent(nn.Module):
    """LSTM over [time, 1, features], PyTorch's default layout."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 8), nn.Linear(8, 2)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(samples)[0])


class Attention(nn.Module):
    """One layer of a transformer over token ids [batch, length]."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.layer(self.embedding(tokens))


def main(folder: Path) -> None:
    """Write every network."""
    torch.manual_seed(20)
    convolution = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 5),
    )
    perceptron = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3), nn.Softmax(dim=-1))
    table = {
        "perceptron": (perceptron, torch.rand(2, 4), {0: "batch"}),
        "perceptron-fixed": (perceptron, torch.rand(1, 4), {}),
        "convolution": (convolution, torch.rand(2, 3, 16, 16), {0: "batch", 2: "height", 3: "width"}),
        "centred": (Centred(), torch.rand(5, 3), {0: "points"}),
        "running": (Running(), torch.rand(5, 3), {0: "time"}),
        "recurrent": (Recurrent(), torch.rand(5, 1, 4), {0: "time"}),
        "attention": (Attention(), torch.randint(0, 50, (2, 7)), {0: "batch", 1: "length"}),
    }
    for name, (network, example, axes) in table.items():
        kept = {key: value for key, value in axes.items() if key < 1 or name == "attention"}
        torch.onnx.export(
            network.eval(),
            example,
            str(folder / f"{name}.onnx"),
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": axes, "y": kept} if axes else None,
        )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
