"""A predicted step beside the steps of a log: ratio, what binds, what a difference may be, what calibration would move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from meshwright.interop.training_log import MeasuredRun
from meshwright.prediction.own_runs.own_stack import STEP_FACTOR
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.prediction import Prediction
from meshwright.specs.plan.utilisation import StepFlops, Utilisation

NUM_PARTS_TOLD = 5


class PartKind(NamedTuple):
    """A part of a step in words, and the fields of `costs.step_costs.StepConstants` that scale it.

    `is_beside`: it runs on a stream of its own; what computes wait for it is another part, "waiting".
    """

    meaning: str
    constants: tuple[str, ...] = ()
    is_beside: bool = False


PRODUCTS = ("matmul", "attention")  # parts that nothing makes shorter: kernels were measured
EXCHANGES = ("node_exchange", "network_exchange", "jitter")
# By the names of `prediction.predicted.Predicted.parts`.
KINDS: Mapping[str, PartKind] = {
    "matmul": PartKind("matrix products", ("matmul",)),
    "attention": PartKind("attention", ("attention",)),
    "stream": PartKind("norms, activations, loss, optimizer", ("stream",)),
    "gap": PartKind("gaps between kernels", ("gap_s",)),
    "exchanges inside, host": PartKind("exchanges inside a layer, host", EXCHANGES),
    "step overhead": PartKind("data, clipping, synchronisation", ("step_s",)),
    "waiting": PartKind("waiting for other stages and messages", EXCHANGES),
    "host memory": PartKind("waiting for the memory of the host", ("stream",)),
    "LOAD_STATE": PartKind("loading the optimizer's state from the host", ("stream",), is_beside=True),
    "STORE_STATE": PartKind("storing the optimizer's state on the host", ("stream",), is_beside=True),
    "SCATTER_GRAD": PartKind("scattering gradients", EXCHANGES, is_beside=True),
    "REDUCE_GRAD": PartKind("reducing gradients", EXCHANGES, is_beside=True),
    "SUM_GRAD": PartKind("summing gradients of tensor-parallel devices", EXCHANGES, is_beside=True),
    "GATHER_PARAM": PartKind("gathering stepped parameters", EXCHANGES, is_beside=True),
    "UNSHARD": PartKind("gathering sharded parameters", EXCHANGES, is_beside=True),
    "SEND_F": PartKind("messages between stages", EXCHANGES, is_beside=True),
    "RECV_F": PartKind("messages between stages", EXCHANGES, is_beside=True),
    "SEND_B": PartKind("messages between stages", EXCHANGES, is_beside=True),
    "RECV_B": PartKind("messages between stages", EXCHANGES, is_beside=True),
    "ALL_GATHER": PartKind("gathers inside a layer", EXCHANGES, is_beside=True),
    "REDUCE_SCATTER": PartKind("scattered sums inside a layer", EXCHANGES, is_beside=True),
    "ALL_REDUCE": PartKind("sums inside a layer", EXCHANGES, is_beside=True),
    "MAXIMUM": PartKind("sums inside a layer", EXCHANGES, is_beside=True),
}


@dataclass(frozen=True)
class Part:
    """One part of a predicted step: `needed` is how many times as long it would have to take to explain the
    whole difference by itself; None where no time of its own would do, or it runs beside computes."""

    name: str
    seconds: float
    needed: float | None

    @property
    def kind(self) -> PartKind:
        """What it is; a name that nobody explains stands for itself and runs beside."""
        return KINDS.get(self.name, PartKind(self.name, is_beside=True))


@dataclass(frozen=True)
class LogComparison:
    """A plan's predicted step beside the measured ones.

    Attributes:
        predicted: seconds of a step with interval and basis; what a profile says is in it.
        run: what the log says.
        plan: what was predicted.
        parts: parts of the prediction, the largest first.
        factor: by which a profile of one's own runs corrected the prediction (1: none).
        predicted_peak_bytes: estimated peak of what the log prints (allocated or reserved), if it prints one.
        flops: model FLOPs of a step on a device.
    """

    predicted: Prediction
    run: MeasuredRun
    plan: Plan
    parts: tuple[Part, ...]
    factor: float = 1.0
    predicted_peak_bytes: float | None = None
    flops: StepFlops | None = None

    @property
    def used(self) -> tuple[Utilisation, Utilisation] | None:
        """How much of its devices a step uses, predicted and measured."""
        if self.flops is None:
            return None
        return self.flops.used(self.predicted.value), self.flops.used(self.run.median_s)

    @property
    def ratio(self) -> float:
        """Measured median / predicted."""
        return self.run.median_s / self.predicted.value

    @property
    def is_inside(self) -> bool:
        """Is the measured median inside the interval of the prediction?"""
        return self.predicted.contains(self.run.median_s)

    @property
    def binding(self) -> tuple[Part, ...]:
        """Parts that add up to the step, the largest first: the first one binds it."""
        return tuple(part for part in self.parts if not part.kind.is_beside)

    @property
    def beside(self) -> dict[str, float]:
        """Seconds of what runs beside computes, by what it is."""
        found: dict[str, float] = {}
        for part in self.parts:
            if part.kind.is_beside:
                found[part.kind.meaning] = found.get(part.kind.meaning, 0.0) + part.seconds
        return found

    @property
    def mistaken(self) -> str:
        """Why the log is not of this plan; empty where it may be."""
        said, planned = self.run.global_batch, self.plan.workload.global_batch
        if said is not None and said != planned:
            return f"the log's global batch is {said}, the plan's {planned}: this is not the run of this plan"
        mfu = None if self.used is None else self.used[1].mfu
        return (
            ""
            if mfu is None or mfu <= 1
            else f"its steps would use {mfu:.0%} of what the devices can compute"
        )

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the log may not be of this plan, or says little."""
        found = []
        if len(self.run.step_s) == 1:
            found += ["one value is no median, and a first step is slow: give the log of several steps"]
        if self.mistaken:
            found += [self.mistaken]
        products_s = sum(part.seconds for part in self.parts if part.name in PRODUCTS)
        if self.run.median_s < products_s * self.predicted.low / self.predicted.value:
            told = (
                "" if self.used is None or self.used[1].mfu is None else f", an MFU of {self.used[1].mfu:.1%}"
            )
            found += [
                f"a step of the log{told}, is shorter than the products of matrices in it are predicted to take: look "
                "whether it is of this model, batch and number of devices"
            ]
        return tuple(found)

    @property
    def movable(self) -> tuple[str, ...]:
        """The fitted constants of the largest parts, those of the largest first."""
        told = self.binding[:NUM_PARTS_TOLD]
        return tuple(dict.fromkeys(name for part in told for name in self._constants(part)))

    def _constants(self, part: Part) -> Iterable[str]:
        yield from part.kind.constants
        if part.name == "matmul" and self.plan.float8:
            yield "float8"
        if part.name == "attention" and not self.plan.software_class.has_native_attention:
            yield "attention_portable"
        if part.name == "exchanges inside, host" and self.plan.model.num_experts:
            yield "expert_s"

    def differences(self) -> tuple[str, ...]:
        """What the difference may be: of every large part, what it alone would have to be."""
        lines = []
        for part in self.binding[:NUM_PARTS_TOLD]:
            told = (
                "cannot be it alone"
                if part.needed is None
                else f"it alone, if it took {part.needed:.2f} x as long"
            )
            lines.append(f"{part.kind.meaning}: {told}")
        return tuple(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain data in SI units, for --json."""
        used = self.used
        return {
            "predicted_s": self.predicted.value,
            "low_s": self.predicted.low,
            "high_s": self.predicted.high,
            "basis": self.predicted.basis,
            "measured": {**self.run.to_dict(), **({} if used is None else used[1].to_dict())},
            "predicted": {} if used is None else used[0].to_dict(),
            "ratio": self.ratio,
            "is_inside": self.is_inside,
            "predicted_peak_bytes": self.predicted_peak_bytes,
            "profile_factor": self.factor,
            "binding": self.binding[0].name if self.binding else None,
            "parts": [
                {
                    "name": part.name,
                    "meaning": part.kind.meaning,
                    "seconds": part.seconds,
                    "is_beside": part.kind.is_beside,
                    "needed": part.needed,
                }
                for part in self.parts
            ],
            "doubts": list(self.doubts),
            "differences": list(self.differences()),
            "movable_constants": list(self.movable),
            STEP_FACTOR: self.factor * self.ratio,
        }


def compare_log(
    predicted: Prediction,
    parts: Mapping[str, float],
    run: MeasuredRun,
    plan: Plan,
    *,
    factor: float = 1.0,
    predicted_peak_bytes: float | None = None,
    flops: StepFlops | None = None,
) -> LogComparison:
    """The comparison.

    Args:
        predicted: a step as `predict` gives it.
        parts: its seconds by kind.
        run: what was measured.
        plan: of the prediction.
        factor: by which a profile corrected the prediction; it is in it.
        predicted_peak_bytes: of the kind of peak that the log prints.
        flops: of a step on a device.
    """
    difference = run.median_s - predicted.value
    found = []
    for name, seconds in sorted(parts.items(), key=lambda part: -part[1]):
        wanted = seconds + difference
        if seconds > 0:
            is_beside = Part(name, seconds, None).kind.is_beside
            found.append(Part(name, seconds, wanted / seconds if wanted > 0 and not is_beside else None))
    return LogComparison(predicted, run, plan, tuple(found), factor, predicted_peak_bytes, flops)
