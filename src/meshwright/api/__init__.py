"""The verbs, for Python and for the command line: simulate, check, plan, train, compare, validate, calibrate, load, find."""

from meshwright.api.calibrating import calibrate, compare
from meshwright.api.checking import Check, check
from meshwright.api.checkpointing import convert_checkpoint, inspect_checkpoint, verify_checkpoint
from meshwright.api.diagnosing import Finding, doctor
from meshwright.api.exporting import export_plan
from meshwright.api.importing import calibrate_log, compare_log, import_plan
from meshwright.api.loading import find, load
from meshwright.api.plan_solving import pareto, solve
from meshwright.api.planning import plan
from meshwright.api.schedule_comparison import compare_schedules
from meshwright.api.schedule_execution import execute_schedule
from meshwright.api.simulating import lower, simulate
from meshwright.api.subject import Subject, subject
from meshwright.api.training import Training, run_training, train
from meshwright.api.training_recipe import Checkpoints, Recipe, Source
from meshwright.api.validating import validate_training

__all__ = [
    "Check",
    "Checkpoints",
    "Finding",
    "Recipe",
    "Source",
    "Subject",
    "Training",
    "calibrate",
    "calibrate_log",
    "check",
    "compare",
    "compare_log",
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
    "run_training",
    "simulate",
    "solve",
    "subject",
    "train",
    "validate_training",
    "verify_checkpoint",
]
