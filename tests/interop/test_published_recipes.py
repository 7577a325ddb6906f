"""Six public recipes: the imported plan is the published layout, no option is dropped, and its step is predicted."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from meshwright.interop import Given, Imported, import_plan
from meshwright.prediction.predicted import predict
from meshwright.specs import Cluster
from tests.interop.recipe import RECIPES, Recipe

# Of the issue: the imported plan predicts within 15 % of a published time that was not fitted.
TOLERANCE = 0.15
# Where it does not: between which ratios predicted / published lies, and why. Both are facts of the model of a step,
# not of the import; a recipe whose ratio leaves its band is no longer known, and one within the tolerance leaves here.
KNOWN_MISSES: dict[str, tuple[float, float]] = {
    # Tokens are priced as routed evenly; the log is of the first 40 steps, where they are not. What an eager MoE layer
    # waits for on its host beyond the fitted floor is not known either.
    "deepseek-v3-16b": (0.75, 0.85),
}

# What the sources' own tables say of each layout: parameters (1e9), pp, dp, cp, tp, ep, chunks, microbatches.
LAYOUTS: dict[str, tuple[float, int, int, int, int, int, int, int]] = {
    "llama-3.1-8b": (8.03, 1, 4, 2, 1, 1, 1, 32),
    "llama-3.1-70b": (70.6, 4, 2, 2, 4, 1, 5, 64),
    "gpt3-175b": (175.0, 8, 4, 1, 4, 1, 12, 64),
    "grok-1-314b": (316.5, 8, 8, 2, 4, 8, 8, 128),
    "llama-3.1-8b float8": (8.03, 1, 32, 1, 1, 1, 1, 1),
    "deepseek-v3-16b": (15.7, 1, 8, 1, 1, 8, 1, 1),
}


def imported(recipe: Recipe, folder: Path) -> Imported:
    path = folder / f"recipe{recipe.suffix}"
    path.write_text(recipe.text)
    return import_plan(path, recipe.form, Given(cluster=recipe.cluster))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_plan_has_the_published_layout(recipe: Recipe, tmp_path: Path) -> None:
    plan = imported(recipe, tmp_path).plan
    billions, *layout = LAYOUTS[recipe.name]
    assert plan.model.num_parameters / 1e9 == pytest.approx(billions, rel=5e-3)
    assert [plan.pp, plan.dp, plan.cp, plan.tp, plan.ep, plan.num_chunks, plan.num_microbatches] == layout
    assert plan.dtype == "bfloat16" and plan.master_dtype == "float32"
    assert plan.sharding == ("zero1" if recipe.form == "megatron" else "zero3")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_every_option_is_in_one_list(recipe: Recipe, tmp_path: Path) -> None:
    found = imported(recipe, tmp_path)
    assert tuple(sorted(option.name for option in found.unknown)) == tuple(sorted(recipe.unknown))
    listed = [option.name.lstrip("-") for option in (*found.understood, *found.irrelevant, *found.unknown)]
    assert len(listed) == len(set(listed))
    written = {
        word[2:].split("=")[0].rstrip('"').replace("_", "-")
        for word in recipe.text.split()
        if word.startswith("--")
    }
    assert written <= set(listed)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_published_step_is_predicted(recipe: Recipe, tmp_path: Path) -> None:
    plan = imported(recipe, tmp_path).plan
    low, high = KNOWN_MISSES.get(recipe.name, (1 - TOLERANCE, 1 + TOLERANCE))
    ratio = predict(plan, Cluster(plan.cluster)).step.value / recipe.published_s
    assert low <= ratio <= high, f"{ratio:.3f} of {recipe.source}"


def test_no_published_number_is_a_row_of_the_calibration_tables(shared_data: Path) -> None:
    measured = []
    for table in sorted((shared_data / "calibration" / "training").glob("*.csv")):
        with table.open(newline="") as file:
            measured += [float(row["step_time_s"]) for row in csv.DictReader(file) if row.get("step_time_s")]
    assert measured
    for recipe in RECIPES:
        assert all(abs(recipe.published_s / seconds - 1) > 1e-4 for seconds in measured), recipe.name
