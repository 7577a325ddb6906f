"""The norm of all gradients: clipping by it, and the optimizer step taken before it is known (post-validation)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.ir.axis import owns
from meshwright.ir.core_vocabulary import NORM, PARTIAL_SUM, REDUCE_NORM, WHOLE_SUM
from meshwright.ir.program import Columns, Program
from meshwright.ir.table import Duty, Effect, Exchange, Kind, Pattern, ValueBytes
from meshwright.lowering.order import due_with_step, with_effects
from meshwright.lowering.pipeline import Lowering, Pass
from meshwright.specs.error import PlanError, ProgramError
from meshwright.specs.option import option
from meshwright.specs.plan.plan import Plan
from meshwright.stage.mesh import EXPERT, EXPERT_TENSOR, TENSOR, mesh_axes, names_of, shard_axes

DEFAULT_NORM = 1.0  # of GPT-3 and Llama (arXiv 2005.14165, 2302.13971)
NORM_BYTES = 8.0  # a sum of squares is one float64
STREAM = "norm"
SUMMED_GRADIENTS = ("weight_gradient", "reduced_gradient")


@dataclass(frozen=True)
class ClipGradients:
    """Before the first STEP of a device, a NORM a stage (sum of squares of its gradients) and one REDUCE_NORM over all
    devices of the pipeline; every STEP reads the result and clips by it, or leaves the step out where it is no number.

    A group that several devices use (tied tables) is counted by the first of them only, and once by each copy along other
    axes, so that every copy finds the norm of one whole model. Reading gradients is not priced. The program has to be whole
    (STEP is there); which norm is the largest allowed is the executor's affair (`OptimizerConfig.clip_norm`).

    ``axes``: those along which devices count different parts of the parameters (tp, sharded state, experts); a part that
    several of them have is counted by the first. Raises ProgramError where there is no STEP, or another axis divides
    parameters.
    """

    axes: tuple[str, ...] = ()
    name = "clip_gradients"

    def __call__(self, program: Program) -> Program:
        """The program with its norm."""
        steps = rows_named(program, "STEP")
        _check(program, steps, self.axes)
        is_alone = program.axes[0].size == 1 and not self.axes
        known = PARTIAL_SUM if is_alone else WHOLE_SUM  # on one device its own sum is all of it
        program, chosen = with_steps(
            program, steps, lambda effect: effect._replace(reads=(*effect.reads, known))
        )
        program = program.with_columns(effect=chosen)
        program = _with_norms(program, steps, is_divided=program.axes[0].name in self.axes)
        if not is_alone:
            first = (program.axes[0].name,) if program.axes[0].size > 1 else ()
            along = tuple(dict.fromkeys((*first, *self.axes)))
            program = with_sum(program, REDUCE_NORM, along, STREAM)
        return program


@dataclass(frozen=True)
class PostValidate:
    """Every STEP is taken at once, without waiting for the norm, and keeps a copy of what it changes; a VALIDATE a stage at
    the end of the list reads the norm, and where it exceeds the limit or is no number puts the copy back and, in the first
    case, steps again with clipped gradients. The result is that of the ordinary clipped step, to the last bit.

    It is undone from the copy, not by inverting the optimizer's algebra (which Qi et al., "Zero Bubble Pipeline
    Parallelism", arXiv 2401.10241, do, and which is exact only to rounding). The copy costs the memory of parameters and
    optimizer state once more (AdamW: three times the parameters) from STEP to VALIDATE, when all activations are gone,
    and gradients live until then. VALIDATE comes before anything of the next iteration, so no forward sees parameters that
    are taken back: what is gained is the step, which runs beside the wait for the slowest device and the norm's way. The
    paper starts the next iteration's forwards before it, too, and repeats them after a rollback.

    It needs `ClipGradients` before it. Simulated: nothing is undone, VALIDATE costs nothing but the wait.
    """

    name = "post_validation"

    def __call__(self, program: Program) -> Program:
        """The program with its steps ahead of the norm. Raises ProgramError where no STEP waits for one."""
        steps = rows_named(program, "STEP")
        t, c = program.tables, program.columns
        if not all(set(t.effects[c.effect[row]].reads) & {PARTIAL_SUM, WHOLE_SUM} for row in steps):
            raise ProgramError("no norm is known to the steps; put ClipGradients before PostValidate")
        early, chosen = with_steps(program, steps, _early)
        validates = []
        for row in steps.tolist():
            early, (number,) = with_effects(early, _validate(t.effects[c.effect[row]]))
            validates.append(number)
        early = early.with_columns(effect=chosen)
        lists = program.list_of_row[steps]
        rows = c.take(steps).with_column("effect", validates).with_column("work", np.full(len(steps), -1))
        early = early.inserted(program.offsets[lists + 1], lists, rows)
        return early.with_tables(
            duties=(*t.duties, due_with_step(program, "VALIDATE")),
            value_bytes=(*t.value_bytes, *_copy_bytes(program)),
        )


@dataclass(frozen=True)
class Clipping:
    """Gradients are clipped by the norm of all of them, in all layouts that of one whole model."""

    max_norm: float = option(DEFAULT_NORM, above=0.0, help="the largest norm allowed")
    name = ClipGradients.name
    after = ("optimizer_step",)
    before = ()

    def made(self, lowering: Lowering) -> Pass | None:
        """Over the axes along which devices count different parts of the parameters."""
        plan = lowering.plan
        mesh = [axis for axis in mesh_axes(plan) if axis.size > 1]
        folded = names_of(mesh, TENSOR, EXPERT_TENSOR, EXPERT)
        divided = tuple(axis.name for axis in mesh if axis.name in (*shard_axes(plan), *folded))
        return ClipGradients(divided) if lowering.has_step else None


@dataclass(frozen=True)
class PostValidation:
    """Steps are taken before the norm is known, and taken back where it exceeds what is allowed."""

    name = PostValidate.name
    after = (ClipGradients.name,)
    before = ()
    needs = (ClipGradients.name,)
    excludes = {
        "offload_optimizer": "may take a step back, and offload_optimizer has stored its state on the host by then"
    }

    def check(self, plan: Plan) -> None:
        """Raise PlanError where a step that is taken back was gathered by others."""
        if plan.sharding != "none":
            raise PlanError(
                f"pass {self.name} may take a step back, and sharding={plan.sharding} has gathered it by then",
                allowed="sharding none",
            )

    def made(self, lowering: Lowering) -> Pass | None:
        """The same for every plan."""
        return PostValidate() if lowering.has_step else None


def clip_norm(plan: Plan) -> float | None:
    """The largest norm of all gradients that the plan allows; None: any."""
    given = plan.options_of(Clipping.name)
    return None if given is None else float(given.get("max_norm", DEFAULT_NORM))


def _early(effect: Effect) -> Effect:
    """A STEP that waits for no norm, and keeps a copy of what it writes."""
    places = tuple(p._replace(kind="step_copy") for p in effect.writes if p.kind == "parameter")
    reads = tuple(p for p in effect.reads if p not in (PARTIAL_SUM, WHOLE_SUM))
    return effect._replace(reads=reads, writes=(*effect.writes, *places))


def _validate(effect: Effect) -> Effect:
    """The VALIDATE of a STEP that clips: what it read and wrote, and the copy."""
    places = tuple(p._replace(kind="step_copy") for p in effect.writes if p.kind == "parameter")
    return Effect(Kind.COMPUTE, "VALIDATE", (*effect.reads, *places), effect.writes)


def _copy_bytes(program: Program) -> tuple[ValueBytes, ...]:
    """Bytes of a copy: parameters and optimizer state of a group."""
    sizes = {row.kind: row for row in program.tables.value_bytes}
    found = [sizes[kind].by_index for kind in ("parameter", "optimizer_state") if kind in sizes]
    num = len(program.tables.groups)
    whole = [each * num if len(each) == 1 else each for each in found if each]
    return (ValueBytes("step_copy", tuple(sum(row) for row in zip(*whole, strict=True))),) if whole else ()


def rows_named(program: Program, name: str) -> np.ndarray:
    """Numbers of all rows of this name."""
    named = [e for e, effect in enumerate(program.tables.effects) if effect.name == name]
    return np.flatnonzero(np.isin(program.columns.effect, named))


def _check(program: Program, steps: np.ndarray, axes: tuple[str, ...]) -> None:
    groups = program.tables.groups
    if not len(steps):
        raise ProgramError("nothing steps here; put OptimizerStep before ClipGradients")
    divided = [
        axis.name
        for axis in program.axes[1:]
        if axis.size > 1 and axis.name not in axes and not all(axis.name in g.replicated for g in groups)
    ]
    if divided:
        raise ProgramError(
            f"parameters are divided along {', '.join(divided)}; name these axes for ClipGradients to sum over them"
        )


def with_steps(
    program: Program, steps: np.ndarray, change: Callable[[Effect], Effect]
) -> tuple[Program, np.ndarray]:
    """The program with changed effects of its steps in the table, and the column that uses them."""
    chosen = program.columns.effect.astype(np.int64)
    effects = program.tables.effects
    for row in steps.tolist():
        program, (number,) = with_effects(program, change(effects[int(program.columns.effect[row])]))
        chosen[row] = number
    return program, chosen


def _with_norms(program: Program, steps: np.ndarray, *, is_divided: bool) -> Program:
    """A NORM for the stage of every STEP, before the first STEP of its list. `is_divided`: what several devices along the
    first axis hold they divide."""
    numbers = []
    for row in steps.tolist():
        program, (number,) = with_effects(program, _norm(program, row, is_divided=is_divided))
        numbers.append(number)
    sizes = (ValueBytes("squared_norm", (NORM_BYTES,)), ValueBytes("global_norm", (NORM_BYTES,)))
    t = program.tables
    program = program.with_tables(
        duties=(*t.duties, due_with_step(program, "NORM")), value_bytes=(*t.value_bytes, *sizes)
    )
    return with_computes(program, steps, numbers)


def _norm(program: Program, row: int, *, is_divided: bool) -> Effect:
    """NORM of a stage: it reads the gradients that its STEP reads, of the groups that are counted here."""
    t, stage = program.tables, int(program.columns.stage[row])
    device = int(program.list_of_row[row])
    counted = tuple(
        place
        for place, g in enumerate(t.groups_of_stage[stage] if stage < t.num_stages else ())
        if owns(program, stage, g, device)
        and (is_divided or t.devices_of_stage[min(t.groups[g].stages)][0] == device)
    )
    reads = tuple(p for p in t.effects[int(program.columns.effect[row])].reads if p.kind in SUMMED_GRADIENTS)
    kinds = {place: {p.kind for p in reads if p.index == "groups" or p.offset == place} for place in counted}
    return NORM._replace(
        reads=tuple(
            Pattern(kind, index="place", offset=place)
            for kind in reversed(SUMMED_GRADIENTS)
            for place in counted
            if kind in kinds[place]
        )
    )


def with_sum(program: Program, effect: Effect, along: tuple[str, ...], stream: str) -> Program:
    """One exchange along these axes on every list, before its first STEP. Raises ProgramError where a list has no STEP."""
    program, (number,) = with_effects(program, effect)
    t = program.tables
    exchange = Exchange(along, algorithm="ring")
    exchanges = (*t.exchanges, exchange) if exchange not in t.exchanges else t.exchanges
    streams = (*t.streams, stream)
    steps = rows_named(program, "STEP")
    lists, places = np.unique(program.list_of_row[steps], return_index=True)
    if len(lists) < program.num_lists:
        raise ProgramError(
            f"a device without a stage has no part in {effect.name}; give every device a stage"
        )
    rows = Columns.of(
        len(lists), effect=number, stage=program.columns.stage[steps[places]], hop=program.columns.hop[steps[places]],
        exchange=exchanges.index(exchange), stream=len(streams) - 1,
    )  # fmt: skip
    duties = (*t.duties, Duty(effect.name, "device"))
    program = program.with_tables(exchanges=exchanges, streams=streams, duties=duties)
    return program.inserted(steps[places], lists, rows)


def with_computes(program: Program, steps: np.ndarray, effects: list[int]) -> Program:
    """A row of each of these effects for the stage of every STEP, before the first STEP of its list."""
    lists = program.list_of_row[steps]
    first = np.array([int(steps[lists == one].min()) for one in lists.tolist()])
    rows = program.columns.take(steps).with_column("effect", effects)
    return program.inserted(first, lists, rows.with_column("work", np.full(len(steps), -1)))
