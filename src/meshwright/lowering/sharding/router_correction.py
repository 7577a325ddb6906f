"""Loss-free balance of experts: tokens of every expert are counted over all devices before a step, which corrects routers."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.ir.core_vocabulary import ALL_TOKENS, COUNT_TOKENS, OWN_TOKENS, REDUCE_TOKENS
from meshwright.ir.program import Program
from meshwright.ir.table import ValueBytes
from meshwright.lowering.order import due_with_step, with_effects
from meshwright.lowering.pipeline import Lowering, Pass
from meshwright.lowering.sharding.gradient_norm import (
    SUMMED_GRADIENTS,
    ClipGradients,
    rows_named,
    with_computes,
    with_steps,
    with_sum,
)
from meshwright.specs.error import PlanError, ProgramError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.option import option
from meshwright.specs.plan.plan import Plan

DEFAULT_RATE = (
    0.001  # of DeepSeek-V3 but for its last 0.5 of 14.8 trillion tokens (arXiv 2412.19437, section 4.2)
)
COUNT_BYTES = 8.0  # a number of tokens is one float64, exact to 2^53
STREAM = "tokens"


@dataclass(frozen=True)
class CorrectRouters:
    """Before the first STEP of a device, a COUNT_TOKENS a stage (tokens of every expert, of the microbatches whose gradients
    it reads) and one REDUCE_TOKENS over all devices; every STEP reads the result and corrects its stage's routers by it.

    ``num_counts``: experts of all layers. Devices that route the same tokens count each of them equally often, so
    sums say who has more than the mean, whatever axes there are. Counting is not priced. Raises ProgramError where there is
    no STEP.
    """

    num_counts: int = 1
    name = "correct_routers"

    def __call__(self, program: Program) -> Program:
        """The program with its counts."""
        steps = rows_named(program, "STEP")
        if not len(steps):
            raise ProgramError("nothing steps here; put OptimizerStep before CorrectRouters")
        along = tuple(axis.name for axis in program.axes if axis.size > 1)
        effects = [program.tables.effects[e] for e in program.columns.effect[steps].tolist()]
        numbers = []
        for effect in effects:
            reads = tuple(p for p in effect.reads if p.kind in SUMMED_GRADIENTS)
            program, (number,) = with_effects(program, COUNT_TOKENS._replace(reads=reads))
            numbers.append(number)
        known = ALL_TOKENS if along else OWN_TOKENS
        program, chosen = with_steps(program, steps, lambda e: e._replace(reads=(*e.reads, known)))
        size, t = (COUNT_BYTES * self.num_counts,), program.tables
        program = program.with_columns(effect=chosen).with_tables(
            duties=(*t.duties, due_with_step(program, COUNT_TOKENS.name)),
            value_bytes=(*t.value_bytes, *(ValueBytes(p.kind, size) for p in (OWN_TOKENS, ALL_TOKENS))),
        )
        program = with_computes(program, steps, numbers)
        return with_sum(program, REDUCE_TOKENS, along, STREAM) if along else program


@dataclass(frozen=True)
class RouterCorrection:
    """Every step adds `rate` to the correction of experts that had fewer tokens than the mean, and takes it from those that
    had more (DeepSeek-V3, arXiv 2412.19437, section 2.1.2), in all layouts as one process would."""

    rate: float = option(DEFAULT_RATE, above=0.0, help="what a step adds to a correction or takes from it")
    name = CorrectRouters.name
    after = ("optimizer_step", ClipGradients.name)
    before = ("post_validation", "offload_optimizer", "gather_parameters", "unshard", "lay_out_groups")

    def check(self, plan: Plan) -> None:
        """Raise PlanError where the model's routers have no correction, or not all of it trains."""
        model = plan.model
        if not model.has_router_corrections or model.num_encoder_layers or model.is_adapted:
            raise PlanError(
                f"routers are corrected at rate {self.rate}, and {model.name} {_lacking(model)}",
                allowed="decoders whose routers have a correction (DeepSeek-V3), all of which train",
                next="leave the rate out; `train --balance-loss` balances routers of any family",
            )

    def made(self, lowering: Lowering) -> Pass | None:
        """Of the model's experts. Raises PlanError for groups of ranks, which pad with tokens."""
        if lowering.groups is not None:
            raise PlanError(
                "routers are corrected by all tokens of a step, and sequences in groups of ranks are padded with some",
                allowed="steps without groups of ranks",
                next="leave the rate out, or the groups",
            )
        experts = [block.experts for block in lowering.plan.model.layers if block.experts]
        most = max((each.num_experts for each in experts), default=0)
        return CorrectRouters(len(experts) * most) if lowering.has_step else None


def correction_rate(plan: Plan) -> float:
    """What a step adds to a router's correction or takes from it; 0: they are constants."""
    given = plan.options_of(RouterCorrection.name)
    return 0.0 if given is None else float(given.get("rate", DEFAULT_RATE))


def _lacking(model: ModelSpec) -> str:
    if not model.has_router_corrections:
        return "has none that are corrected"
    return "has an encoder" if model.num_encoder_layers else "has frozen parameters"
