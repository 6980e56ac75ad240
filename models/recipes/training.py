"""Train a recipe's network, and judge it by cross-validation on the training part alone."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold
from torch import nn

from models.recipes.recipe import Classes, Floats, Recipe


class Transpose(nn.Module):
    """Swap rows and channels: clients send one sample per row, convolutions want channels first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2)


def fit(recipe: Recipe, inputs: Floats, classes: Classes) -> nn.Sequential:
    """Return the trained network in evaluation mode; it takes raw inputs and answers logits."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(recipe.schedule.seed)
    net = recipe.network()
    mean, deviation = _standards(recipe, inputs)
    _descend(recipe, net, (torch.from_numpy(inputs), torch.from_numpy(classes)), (mean, deviation))
    if recipe.channel_axis is not None:
        _fold(net, mean.flatten(), deviation.flatten())
    return net.eval()


def cross_validate(recipe: Recipe, inputs: Floats, classes: Classes, folds: int = 5) -> float:
    """Return the mean accuracy over stratified folds of the training part; held-out rows are never seen."""
    splits = StratifiedKFold(folds, shuffle=True, random_state=recipe.schedule.seed).split(inputs, classes)
    scores = []
    for number, (learn, judge) in enumerate(splits, start=1):
        net = fit(recipe, inputs[learn], classes[learn])
        scores.append(float(np.mean(logits(net, inputs[judge]).argmax(1) == classes[judge])))
        print(f"  fold {number} of {folds}: {scores[-1]:.4f}", flush=True)
    return float(np.mean(scores))


def logits(net: nn.Sequential, inputs: Floats) -> Floats:
    """Return the network's raw scores, [rows, classes]."""
    with torch.no_grad():
        return net(torch.from_numpy(inputs)).numpy()


def _standards(recipe: Recipe, inputs: Floats) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and deviation per channel, shaped to broadcast over a batch; 0 and 1 where unused."""
    if recipe.channel_axis is None:
        return torch.zeros(1), torch.ones(1)
    axes = tuple(axis for axis in range(inputs.ndim) if axis != recipe.channel_axis)
    mean = inputs.mean(axis=axes, keepdims=True)
    return torch.from_numpy(mean[0]), torch.from_numpy(inputs.std(axis=axes, keepdims=True)[0])


def _descend(
    recipe: Recipe,
    net: nn.Sequential,
    data: tuple[torch.Tensor, torch.Tensor],
    standards: tuple[torch.Tensor, torch.Tensor],
) -> None:
    plan = recipe.schedule
    generator = torch.Generator().manual_seed(plan.seed)
    optimiser = torch.optim.AdamW(net.parameters(), lr=plan.learning_rate, weight_decay=plan.weight_decay)
    batches = -(-len(data[1]) // plan.batch_rows)
    decay = torch.optim.lr_scheduler.OneCycleLR(optimiser, plan.learning_rate, total_steps=plan.epochs * batches)
    measure = nn.CrossEntropyLoss(label_smoothing=plan.label_smoothing)
    for epoch in range(1, plan.epochs + 1):
        total = 0.0
        for chosen in torch.randperm(len(data[1]), generator=generator).split(plan.batch_rows):
            varied = recipe.augment(data[0][chosen], data[1][chosen], generator)
            loss = measure(net((varied - standards[0]) / standards[1]), data[1][chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            decay.step()
            total += loss.item() * len(chosen)
        if epoch % max(1, plan.epochs // 5) == 0:
            print(f"  epoch {epoch} of {plan.epochs}: loss {total / len(data[1]):.4f}", flush=True)


def _fold(net: nn.Sequential, mean: torch.Tensor, deviation: torch.Tensor) -> None:
    """Move (x - mean) / deviation into the first convolution; exact only because it pads nothing."""
    first = next(layer for layer in net if isinstance(layer, nn.Conv1d))
    if first.padding != (0,):
        raise ValueError("the first convolution must not pad, or the folded constants would be wrong at the edges")
    with torch.no_grad():
        first.weight /= deviation[None, :, None]
        first.bias -= (first.weight * mean[None, :, None]).sum(dim=(1, 2))
