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


class Distilled(nn.Module):
    """Token ids and their mask through two layers as of DistilBERT; the answer is of the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(100, 32), nn.Embedding(64, 32)
        self.heads = nn.ModuleList(nn.ModuleList(nn.Linear(32, 32) for _ in range(4)) for _ in range(2))
        self.wide = nn.ModuleList(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(2))
        self.norms, self.head = nn.ModuleList(nn.LayerNorm(32) for _ in range(5)), nn.Linear(32, 3)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length = tokens.shape
        states = self.norms[4](self.words(tokens) + self.places(torch.arange(length).unsqueeze(0)))
        hidden = (mask == 0).view(batch, 1, 1, length).expand(batch, 4, length, length)
        for number, (query, key, value, out) in enumerate(self.heads):
            q, k, v = (part(states).view(batch, -1, 4, 8).transpose(1, 2) for part in (query, key, value))
            scores = (q / 8**0.5 @ k.transpose(2, 3)).masked_fill(hidden, torch.finfo(torch.float32).min)
            mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, -1, 32)
            states = self.norms[2 * number](out(mixed) + states)
            states = self.norms[2 * number + 1](self.wide[number](states) + states)
        return self.head(states[:, 0])


class Patches(nn.Module):
    """Two layers of a vision transformer: patches of 8 pixels, a token of the class, learnt places."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.token = nn.Conv2d(3, 32, 8, 8), nn.Parameter(torch.rand(1, 1, 32))
        self.places, self.head = nn.Parameter(torch.rand(1, 17, 32)), nn.Linear(32, 5)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.cut(images).flatten(2).transpose(1, 2)
        states = torch.cat([self.token.expand(patches.shape[0], -1, -1), patches], dim=1) + self.places
        for layer in self.layers:
            states = layer(states)
        return self.head(states[:, 0])


class Inverted(nn.Module):
    """A block of MobileNetV2: wider, over the plane, narrower, and added to its input."""

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()
        self.steps = nn.Sequential(
            *(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()),
            *(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels)),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images + self.steps(images)


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
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    blocks = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU6(), Inverted(16, 32), Inverted(16, 32), *pool)
    table |= {
        "vision-transformer": (Patches(), torch.rand(2, 3, 32, 32), {0: "batch"}),
        "mobilenet": (blocks, torch.rand(2, 3, 32, 32), {0: "batch"}),
    }
    both = {0: "batch", 1: "length"}
    torch.onnx.export(
        Distilled().eval(),
        (torch.randint(0, 100, (2, 7)), torch.ones(2, 7, dtype=torch.long)),
        str(folder / "distilbert.onnx"),
        input_names=["input_ids", "attention_mask"],
        output_names=["logits"],
        dynamic_axes={"input_ids": both, "attention_mask": both, "logits": {0: "batch"}},
    )
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
