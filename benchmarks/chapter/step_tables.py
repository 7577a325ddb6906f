"""Tables of the chapter that need no measured rows: constants, widths, software classes, the worked example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshwright.catalog import find_schedule
from meshwright.costs.step.profile import packaged_step_profile
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.prediction.predicted import Predicted, predict
from meshwright.prediction.step_part import is_beside
from meshwright.prediction.step_trait import UNCERTAIN
from meshwright.reports.chart.bars import bars_svg
from meshwright.specs.plan.software import CLASSES
from meshwright.specs.units import format_bytes

from ..fit.fit_steps import FAMILIES, NAMES, PRIORS
from ..training_example import EXAMPLE, JOBS, example

UNITS: Mapping[str, tuple[float, str]] = {
    "gap_s": (1e6, "us"),
    "step_s": (1e3, "ms"),
    "expert_s": (1e3, "ms"),
    "jitter": (1.0, "share"),
}


def step_blocks() -> dict[str, str]:
    """What stands between the marks of each name."""
    tables = {
        "constants": constants_table(),
        "width": width_table(),
        "software": software_table(),
        "example": example_table(),
    }
    return {name: "\n".join(lines) for name, lines in tables.items()}


def step_parts_svg() -> str:
    """Where the time of the four example plans goes."""
    bars = {label: along(predict(*example(label))) for label in JOBS}
    return bars_svg(bars, title="where the time of a step goes")


def constants_table() -> Iterator[str]:
    """Every constant with its prior and its value for each family."""
    fit = packaged_step_profile().fit
    yield "| constant | unit | expected (range) | A100 | H100, H200 | B200 |"
    yield "|---|---|---|---:|---:|---:|"
    for name in NAMES:
        prior = PRIORS[name]
        scale, unit = UNITS.get(name, (1.0, "factor"))
        own = [f"{family.upper()} {scale * value:.3g}" for family, value in prior.of_family.items()]
        expected = ", ".join([f"{scale * prior.centre:.3g}", *own])
        span = f"{scale * prior.low:.3g} to {scale * prior.high:.3g}"
        values = " | ".join(f"{scale * getattr(fit.of(family), name):.3g}" for family in FAMILIES)
        yield f"| `{name}` | {unit} | {expected} ({span}) | {values} |"


def width_table() -> Iterator[str]:
    """Spreads of kinds of work, in per cent, and the ends of the interval in deviations."""
    width = packaged_step_profile().fit.width
    yield "| | " + " | ".join(f"`{name}`" for name in UNCERTAIN) + " | ends |"
    yield "|---|" + "---:|" * len(UNCERTAIN) + "---:|"
    spreads = " | ".join(f"{100 * width.spreads[name]:.0f}" for name in UNCERTAIN)
    yield f"| spread, % | {spreads} | {width.low:.2f} to {width.high:.2f} |"


def software_table() -> Iterator[str]:
    """Every software class with what decides its kernels."""
    yield "| class | what it is | traffic of activation, residual, loss | gaps | attention of the chip's generation |"
    yield "|---|---|---|---:|---|"
    for name, each in CLASSES.items():
        traffic = ", ".join(
            f"{each.traffic.get(kind, 1.0):g}" for kind in ("activation", "elementwise", "loss")
        )
        native = "yes" if each.has_native_attention else "no"
        yield f"| `{name}` | {each.meaning} | {traffic} | {each.gap_share:g} | {native} |"


def example_table() -> Iterator[str]:
    """The worked example: parts of the step, and of memory."""
    plan, cluster = example(EXAMPLE)
    found = predict(plan, cluster)
    memory = estimate_memory(plan, cluster, find_schedule(plan.schedule))
    tokens = plan.workload.tokens_per_step / found.step.value / plan.num_devices
    flops = plan.model.train_flops_per_token(plan.workload.sequence_length) * tokens
    share = flops / cluster.devices[0].peak_flops_per_s(plan.dtype)
    step = found.step
    yield "| part of the busiest device | seconds | share % |"
    yield "|---|---:|---:|"
    for name, value in along(found).items():
        yield f"| {name} | {value:.3f} | {100 * value / step.value:.1f} |"
    yield f"| **step** ({step.low:.2f} to {step.high:.2f} s, {step.basis}) | **{step.value:.3f}** | 100 |"
    for name, value in found.parts.items():
        if is_beside(name):
            yield f"| beside: `{name}` | {value:.3f} | |"
    yield ""
    yield f"{found.num_rows:,} instructions were simulated; {tokens:,.0f} tokens/s a GPU, model FLOPs at {share:.1%} of"
    yield f"the peak. The fullest device holds {format_bytes(memory.allocated_bytes)} of tensors."


def along(found: Predicted) -> dict[str, float]:
    """The parts that add up to the step: those on the compute stream."""
    return {name: value for name, value in found.parts.items() if not is_beside(name)}
