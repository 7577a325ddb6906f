"""Jobs: the training jobs of jobs.toml as models, clusters, batches, and published recipes as plans. Its comments say how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.evidence.tables.words import with_vocabulary_as_layers
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.config.source import load_model
from meshwright.specs.error import SpecError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.toml_table import TomlTable

FILE = Path(__file__).with_name("jobs.toml")
SCHEMA = 1
JOB_KEYS = ("model", "cluster", "nic", "global_batch", "sequence_length", "stack", "recipes")
RECIPE_KEYS = (
    *("by", "source", "plan", "left_out", "megatron_flops"),
    *("published_s", "published_tokens_per_s", "published_tflops"),
)  # fmt: skip
ENDS_ARE_LAYERS = "ends_are_layers"  # the one key of a recipe's plan that is no field of Plan
TERA = 1e12


@dataclass(frozen=True)
class Recipe:
    """A published configuration of a job.

    Attributes:
        published_s: seconds of a step; None where nobody published them.
        left_out: the source of measured runs that constants must not know, empty where none has the number.
    """

    by: str
    source: str
    plan: Plan
    published_s: float | None
    left_out: str


@dataclass(frozen=True)
class Job:
    """What is to be trained on what. `fixed` are fields of a plan that every plan of the job shares."""

    name: str
    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    stack: str
    fixed: Mapping[str, Any]
    recipes: tuple[Recipe, ...]


def load_jobs(path: Path = FILE) -> tuple[Job, ...]:
    """All jobs, in the order of the file. Raises SpecError naming the place, or PlanError where a recipe is no plan."""
    table = TomlTable.read(path, SpecError)
    table.check_schema(SCHEMA)
    table.check_keys(("schema", "stacks", "models", "jobs"))
    stacks, models = table.table("stacks"), table.table("models")
    return tuple(_job(entry, stacks, models) for entry in table.tables("jobs"))


def _job(table: TomlTable, stacks: TomlTable, models: TomlTable) -> Job:
    table.check_keys(JOB_KEYS)
    model = _model(table.text("model"), models)
    cluster = Cluster(table.text("cluster"), nic=table.text("nic", "") or None)
    workload = Workload(table.integer("global_batch"), table.integer("sequence_length"))
    stack = table.text("stack")
    fixed = dict(stacks.table(stack).values)
    fixed["overlap"] = tuple(fixed["overlap"])
    recipes = tuple(_recipe(entry, model, cluster, workload, fixed) for entry in table.tables("recipes"))
    name = f"{model.name}, {table.text('cluster')}, {workload.global_batch} x {workload.sequence_length}"
    return Job(name, model, cluster, workload, stack, fixed, recipes)


def _model(name: str, models: TomlTable) -> ModelSpec:
    """A model of the file, else a preset."""
    if name not in models.values:
        return load_model(name)
    table = models.table(name)
    table.check_keys(("gpt", "fields", "source"))
    said: dict[str, Any] = {"name": name, "source": table.text("source")}
    if "gpt" in table.values:
        return ModelSpec.gpt(**table.table("gpt").values, **said)
    return ModelSpec.of_dimensions(**table.table("fields").values, **said)


def _recipe(
    table: TomlTable, model: ModelSpec, cluster: ClusterSpec, workload: Workload, fixed: Mapping[str, Any]
) -> Recipe:
    table.check_keys(RECIPE_KEYS)
    chosen = {**fixed, **table.table("plan").values}
    if chosen.pop(ENDS_ARE_LAYERS, False):
        num_stages = chosen.get("pp", 1) * chosen.get("num_chunks", 1)
        counts = with_vocabulary_as_layers(model.num_layers, num_stages)
        if counts is None:
            raise SpecError(
                f"{table.where}: {model.num_layers} layers and two ends on {num_stages} stages",
                allowed="stages that divide layers + 2",
            )
        chosen["layers_per_stage"] = counts
    plan = Plan.of(model, cluster, workload, **chosen)
    return Recipe(
        table.text("by"), table.text("source"), plan, _published_s(table, plan), table.text("left_out", "")
    )


def _published_s(table: TomlTable, plan: Plan) -> float | None:
    """Seconds of a step, from whichever number the source gives."""
    given = [key for key in RECIPE_KEYS if key.startswith("published_") and key in table.values]
    if not given:
        return None
    if len(given) > 1:
        raise SpecError(f"{table.where}: {' and '.join(given)}", allowed="one published number")
    value = float(table.values[given[0]])
    tokens = plan.workload.tokens_per_step / plan.num_devices
    return {
        "published_s": lambda: value,
        "published_tokens_per_s": lambda: tokens / value,
        "published_tflops": lambda: (
            iteration_flops(plan, table.integer("megatron_flops")) / (plan.num_devices * value * TERA)
        ),
    }[given[0]]()


def iteration_flops(plan: Plan, factor: int) -> float:
    """F of arXiv 2104.04473, equation 3: its factor is 96 with full recompute and 72 without."""
    l, h, s = plan.model.num_layers, plan.model.hidden_size, plan.workload.sequence_length  # noqa: E741 (the paper's letters)
    share = 1 + s / (6 * h) + plan.model.vocabulary_size / (16 * l * h)
    return factor * plan.workload.global_batch * s * l * h**2 * share
