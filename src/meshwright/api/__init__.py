"""The verbs, for Python and for the command line: simulate, check, plan, train, compare, validate, calibrate, load, find."""

from meshwright.api.exchange.calibrating import calibrate, compare
from meshwright.api.exchange.exporting import export_plan
from meshwright.api.exchange.importing import compare_log, compare_profile, import_plan
from meshwright.api.exchange.learning import calibrate_runs
from meshwright.api.exchange.plan_verbs import Plan
from meshwright.api.exchange.validating import validate_training, validate_unseen
from meshwright.api.groupings.grouping import plan_groups, simulate_groups
from meshwright.api.loads.comparing_load import compare_load
from meshwright.api.loads.planning_load import plan_load
from meshwright.api.plans.checking import Check, check
from meshwright.api.plans.planning import plan
from meshwright.api.plans.solving import pareto, solve
from meshwright.api.servings.language_model import LLM, GeneratedText
from meshwright.api.servings.loading_server import bench_serve
from meshwright.api.servings.serving import serve
from meshwright.api.subjects.diagnosing import Finding, doctor
from meshwright.api.subjects.loading import find, load
from meshwright.api.subjects.placing import place_experts, place_over_steps
from meshwright.api.subjects.schedule_comparison import compare_schedules
from meshwright.api.subjects.schedule_execution import execute_schedule
from meshwright.api.subjects.simulating import lower, simulate
from meshwright.api.subjects.subject import Subject, subject
from meshwright.api.trainings.checkpointing import convert_checkpoint, inspect_checkpoint, verify_checkpoint
from meshwright.api.trainings.own_job import run_job
from meshwright.api.trainings.training import Training, run_training, train
from meshwright.specs.training.checkpoints import Checkpoints
from meshwright.specs.training.recipe import Recipe
from meshwright.specs.training.source import Source

__all__ = [
    "GeneratedText",
    "LLM",
    "Check",
    "Checkpoints",
    "Finding",
    "Plan",
    "Recipe",
    "Source",
    "Subject",
    "Training",
    "bench_serve",
    "calibrate",
    "calibrate_runs",
    "check",
    "compare",
    "compare_load",
    "compare_log",
    "compare_profile",
    "compare_schedules",
    "convert_checkpoint",
    "doctor",
    "execute_schedule",
    "export_plan",
    "find",
    "import_plan",
    "inspect_checkpoint",
    "load",
    "lower",
    "pareto",
    "plan",
    "place_experts",
    "place_over_steps",
    "plan_groups",
    "plan_load",
    "run_job",
    "run_training",
    "serve",
    "simulate",
    "simulate_groups",
    "solve",
    "subject",
    "train",
    "validate_training",
    "validate_unseen",
    "verify_checkpoint",
]
