"""A small Llama trained by its plan on the device: step and peak, predicted beside measured."""

from __future__ import annotations

import statistics

import meshwright as mw
from meshwright.api.subjects.subject import plan_subject
from meshwright.api.trainings.place import Wanted
from meshwright.api.trainings.training import run_training
from meshwright.prediction.description import describe
from meshwright.specs.plan.plan import Plan
from meshwright.specs.units import format_bytes

from .part import Part

NUM_STEPS, NUM_WARM_UPS = 12, 3


def plan_for(kind: str, model: str = "llama-3.2-1b", global_batch: int = 8, sequence: int = 4096) -> Plan:
    """The best plan for one device of this kind."""
    return mw.plan(model, f"1x{kind}", global_batch=global_batch, seq=sequence)[0].plan


def step(plan: Plan, device: Wanted = "cuda") -> Part:
    """Train a few steps, and compare."""
    done = run_training(plan, iterations=NUM_STEPS, device=device, measures_memory=False)
    said, losses = done.predicted.metadata["step"], done.result.losses
    seconds = [each.seconds for each in done.iterations[NUM_WARM_UPS:]]
    measured = statistics.median(seconds)
    figures = {
        "plan": describe(done.plan), "predicted_s": said["value"], "low_s": said["low"], "high_s": said["high"],
        "measured_s": measured, "steps_s": seconds, "losses": losses,
        "tokens_per_s": plan.workload.tokens_per_step / measured,
    }  # fmt: skip
    lines = [
        describe(done.plan), "",
        "| | predicted | measured | measured / predicted |", "|---|---|---|---|",
        f"| step | {said['value']:.3f} s ({said['low']:.3f} to {said['high']:.3f}) | {measured:.3f} s "
        f"| {measured / said['value']:.2f} |",
    ]  # fmt: skip
    memory, allocated = plan_subject(done.plan).memory, max(done.result.allocated_bytes, default=0)
    if allocated and memory is not None:
        figures |= {"predicted_bytes": memory.allocated_bytes, "measured_bytes": allocated}
        lines.append(
            f"| peak of tensors | {format_bytes(memory.allocated_bytes)} | {format_bytes(allocated)} "
            f"| {allocated / memory.allocated_bytes:.2f} |"
        )
    lines += ["", f"Loss from {losses[0]:.3f} to {losses[-1]:.3f} in {NUM_STEPS} steps."]
    return Part("training", "passed" if losses[-1] < losses[0] else "failed", NUM_STEPS, lines, figures)
