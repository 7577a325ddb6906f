"""The jobs that the planner is compared on: the file parses, every recipe is a plan, every source is named."""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from meshwright.costs.step.profile import packaged_step_profile
from meshwright.specs.error import PlanError, SpecError

FOLDER = Path(__file__).resolve().parent.parent.parent / "benchmarks"
NUM_JOBS = 40
# What a stack decides: software and number formats, never the layout.
FORMATS = {"dtype", "reduction_dtype", "master_dtype", "float8", "attention", "software", "overlap"}
WITH_TIMES = 20  # of the recipes at least: fewer would say little about a share of three quarters
NAMED_MODEL = re.compile(r"\[models\.\"(.+?)\"\]")


@cache
def jobs_module() -> ModuleType:
    """benchmarks/jobs.py; the folder is no package."""
    spec = importlib.util.spec_from_file_location("benchmark_jobs", FOLDER / "jobs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_jobs_span_what_they_should() -> None:
    jobs = jobs_module().load_jobs()
    assert len(jobs) == NUM_JOBS
    devices, sizes = [j.cluster.num_devices for j in jobs], [j.model.num_parameters for j in jobs]
    assert (min(devices), max(devices)) == (8, 16_384)
    assert min(sizes) < 2e9 and max(sizes) > 1e12
    assert {True, False} == {j.model.num_experts > 0 for j in jobs}
    assert len({j.cluster.devices[0].name for j in jobs}) >= 5
    said = [(j.name, j.stack) for j in jobs]
    assert len(said) == len(set(said))


def test_every_recipe_is_a_plan_of_its_job_with_a_source() -> None:
    recipes = 0
    for job in jobs_module().load_jobs():
        assert set(job.fixed) <= FORMATS, job.name
        for recipe in job.recipes:
            recipes += 1
            assert recipe.by and len(recipe.source) > 2
            assert recipe.plan.model == job.model and recipe.plan.workload == job.workload
            assert recipe.plan.world_size == job.cluster.num_devices
            assert all(getattr(recipe.plan, name) == value for name, value in job.fixed.items())
    assert recipes >= NUM_JOBS - 2


def test_published_times_are_checked_by_constants_that_do_not_know_them() -> None:
    known = packaged_step_profile()
    recipes = [r for j in jobs_module().load_jobs() for r in j.recipes if r.published_s is not None]
    assert len(recipes) >= WITH_TIMES
    for recipe in recipes:
        if recipe.left_out:
            assert known.without(recipe.left_out) != known.fit, recipe.by
        else:
            assert recipe.source.startswith(("dgxc ", "titan ", "pytorch/torchtitan")), recipe.source


def test_every_model_of_the_file_is_used() -> None:
    named = set(NAMED_MODEL.findall((FOLDER / "jobs.toml").read_text(encoding="utf-8")))
    assert named <= {job.model.name for job in jobs_module().load_jobs()}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (("tp = 8, pp = 2,", "tp = 8, pp = 3,"), PlanError, "pp"),
        (('stack = "megatron-2021-ddp"', 'stack = "nobody"'), SpecError, "nobody"),
        (("published_s = 12.78", "published_s = 12.78\npublished_tflops = 1.0"), SpecError, "one published number"),
        (('by = "Meta"', 'by = "Meta"\nspeed = 1'), SpecError, "unknown key 'speed'"),
        (("num_chunks = 8, sharding = \"zero2\"", "num_chunks = 7, sharding = \"zero2\""), SpecError, "two ends"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    tmp_path: Path, change: tuple[str, str], error: type[Exception], words: str
) -> None:
    text = (FOLDER / "jobs.toml").read_text(encoding="utf-8")
    assert change[0] in text
    path = tmp_path / "jobs.toml"
    path.write_text(text.replace(*change), encoding="utf-8")
    with pytest.raises(error, match=words):
        jobs_module().load_jobs(path)


def test_seconds_from_a_published_rate() -> None:
    jobs = {job.name: job for job in jobs_module().load_jobs()}
    (megatron,) = jobs["gpt-1.7b, 4x8xA100-80, 512 x 2048"].recipes
    assert megatron.published_s == pytest.approx(3.528, abs=5e-4)  # F / (n TF/s) of Table 1, 137 TF/s
    (titan,) = jobs["llama-3.1-8b, 4x8xH200, 64 x 8192"].recipes
    assert titan.published_s == pytest.approx(2 * 8192 / 10_938)  # two sequences a GPU
