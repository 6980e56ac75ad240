"""Write `card.md`: the recipe's story and every figure as measured in this run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gateway.workshop.making.measures import Quality
from models.recipes.manifest import golden_tolerances
from models.recipes.recipe import Recipe
from models.recipes.variants import KINDS

CARD = """# {name} {version}

{purpose}

| | |
| --- | --- |
| task | {task} |
| input | `{input}` FP32 {input_shape} ({layout}) |
| output | `{output}` FP32 {output_shape}; variants answer logits, the manifest declares softmax |
| labels | {labels} |

## Data
{data}

## Training
{training}

## Measured
On the {rows} held-out rows of `golden.npz`, on one x86-64 processor, each variant with its own runtime on the CPU
(OpenVINO told to compute in f32). *Agreement* is the share of rows with the reference variant's class, *mean error*
the mean absolute difference of probabilities from it.

| variant | accuracy | misses | agreement | mean error | bytes |
| --- | --- | --- | --- | --- | --- |
{variants}

| reference variant, held-out rows changed | accuracy |
| --- | --- |
{trials}

A device accepts a variant when it reaches these on `golden.npz`; int8 differs between processors, so they leave room
for one row in a hundred (at least one) and five times the mean error measured here (at least 0.005).

| runtime | agreement at least | mean error at most |
| --- | --- | --- |
{tolerances}

## Limits
{limits}

## Rebuild
In the environment of `models/recipes/README.md`:

    python -m models.recipes {name}
"""


def write_card(
    recipe: Recipe, verdicts: Mapping[str, Quality], trials: Mapping[str, float], rows: int, folder: Path
) -> None:
    """Write the card from this run's figures."""
    text = CARD.format(
        name=recipe.name,
        version=recipe.version,
        task=recipe.task,
        input=recipe.input,
        input_shape=[-1, *recipe.shape],
        layout=recipe.layout,
        output=recipe.output,
        output_shape=[-1, len(recipe.labels)],
        labels=", ".join(recipe.labels),
        purpose=recipe.story.purpose,
        data=recipe.story.data,
        training=recipe.story.training,
        limits=recipe.story.limits,
        rows=rows,
        variants="\n".join(_lines(verdicts, rows, folder)),
        trials="\n".join(f"| {title} | {accuracy:.4f} |" for title, accuracy in trials.items()),
        tolerances="\n".join(
            f"| {runtime} | {limit.agreement:g} | {limit.mean_abs:g} |"
            for runtime, limit in golden_tolerances(verdicts, rows).items()
        ),
    )
    (folder / "card.md").write_text(text)


def _lines(verdicts: Mapping[str, Quality], rows: int, folder: Path) -> list[str]:
    lines = []
    for kind in KINDS:
        verdict = verdicts[kind.name]
        size = sum((folder / path).stat().st_size for path in kind.artifacts())
        misses = round((1 - verdict.accuracy) * rows)
        lines.append(
            f"| {kind.name} | {verdict.accuracy:.4f} | {misses} | {verdict.agreement:.4f} "
            f"| {verdict.mean_abs:.6f} | {size:,} |"
        )
    return lines
