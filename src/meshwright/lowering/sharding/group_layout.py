"""How parameters, gradients and norms lie along the axes that a plan divides them along, for `verify` to prove the exchanges.

microbatch_gradient partial along the axes of the group's copies: each has its own data
weight_gradient     the same, summed; split along axes along which those of microbatches are scattered
reduced_gradient    split along those of the state where the reduction scatters, else copied
both                partial along axes of which a device has terms of some of it, until they are summed: then copied. (Of a
                    group that has both, the rest is divided along these, and of no one's sum.)
parameter           behind a step split along the axes of the state; what is gathered is copied, and computes need that
gathered_parameter  shared along the axes of the values
squared_norm        partial along the axes of its reduction, and copied behind it; so are tokens of experts

What goes between the devices of a pipeline whose vocabulary is split lies along that, in the same words: what one device has
of all is split, and what it gives to all is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.ir.core_vocabulary import (
    ALL_EXPERT_TOKENS,
    EXPERT_TOKENS,
    GATHERED_PARAMETER,
    GLOBAL_NORM,
    MICROBATCH_GRADIENT,
    REDUCE_GRAD,
    REDUCE_NORM,
    REDUCE_TOKENS,
    SQUARED_NORM,
    SUM_GRAD,
)
from meshwright.ir.judge.operation_check import reduction_axes, scattered_axes, sum_axes
from meshwright.ir.layout import COPIED, PARTIAL, SHARED, SPLIT, layout_text, operation_of
from meshwright.ir.program import Program
from meshwright.ir.table import Effect, Kind, Pattern
from meshwright.lowering.order import with_effects
from meshwright.lowering.pipeline import Lowering
from meshwright.stage.group.parameter_group import HeldGroup

GRADIENT, REDUCED, PARAMETER = "weight_gradient", "reduced_gradient", "parameter"
OF_GROUPS = (GRADIENT, REDUCED, PARAMETER, GATHERED_PARAMETER.name, MICROBATCH_GRADIENT.name)
# Of a vocabulary split over the pipeline: terms of sums, what one device has of a sum or shares, and what all have.
OF_PIPELINE = {
    "input_part": PARTIAL, "input": SPLIT, "softmax": PARTIAL, "normalizer": COPIED, "output_part": PARTIAL,
    "output_gradient": SPLIT,
}  # fmt: skip
SHARED_FROM_ONE = ("output", "input_gradient")
# What a step reads beside gradients: the sum of it, a device's term, and the whole.
OF_STEP = (
    (REDUCE_NORM.name, SQUARED_NORM.name, GLOBAL_NORM.name),
    (REDUCE_TOKENS.name, EXPERT_TOKENS.name, ALL_EXPERT_TOKENS.name),
)
SCATTERING = ("reduce_scatter", "all_reduce.two_level")
Layouts = dict[str, str]


@dataclass(frozen=True)
class LayOutGroups:
    """Say of every pattern of a group's values how they lie, and of the norm. It stands behind all that replaces effects."""

    held: tuple[HeldGroup, ...]
    name = "lay_out_groups"

    def __call__(self, program: Program) -> Program:
        """The program with its layouts."""
        return _Layouts(program, self.held).program()


class _Layouts:
    """What is said of each group's values in one program."""

    def __init__(self, source: Program, held: Sequence[HeldGroup]) -> None:
        self.source = source
        scattered = {g for g, operation in _reductions(source).items() if operation in SCATTERING}
        sizes = {axis.name: axis.size for axis in source.axes}
        copies = [_copies(source, g) for g in range(len(held))]
        self.values = [each.value_shards for each in held]
        self.stepped = [tuple(a for a in each.shards if a not in each.value_shards) for each in held]
        self.shards = [dict.fromkeys(scattered_axes(source, g), SPLIT) for g in range(len(held))]
        self.gradient = [
            {**own, **dict.fromkeys(axes, PARTIAL)} for own, axes in zip(self.shards, copies, strict=True)
        ]
        self.reduced = [
            {
                **self.shards[g],
                **{a: SPLIT if g in scattered and a in held[g].shards else COPIED for a in axes},
            }
            for g, axes in enumerate(copies)
        ]
        self.partial = [sum_axes(source, g) for g in range(len(held))]
        first = source.axes[0]
        self.pipeline = (first.name,) if first.size > 1 else ()
        self.sums = {
            kind: dict.fromkeys((a for a in _axes_of(source, name) if sizes[a] > 1), how)
            for name, *kinds in OF_STEP
            for kind, how in zip(kinds, (PARTIAL, COPIED), strict=True)
        }
        said = zip(
            self.values, self.stepped, self.shards, self.gradient, self.reduced, self.partial, strict=True
        )
        numbers: dict[str, int] = {}
        self.alike = [numbers.setdefault(repr(each), len(numbers)) for each in said]

    def program(self) -> Program:
        """The program with an effect for each effect and stage, and for each group where a row names one."""
        program, c = self.source, self.source.columns
        by_part = [any(p.index == "group" for p in (*e.reads, *e.writes)) for e in program.tables.effects]
        part = np.where(np.array(by_part)[c.effect], c.part, 0)
        stages, parts = int(c.stage.max(initial=0)) + 1, int(part.max(initial=0)) + 1
        key = (c.effect.astype(np.int64) * stages + c.stage) * parts + part
        used = np.flatnonzero(np.bincount(key))
        t, known, chosen = program.tables, dict[tuple[object, ...], int](), []
        laid: list[Effect] = []
        for k in used.tolist():
            number, stage, at = k // parts // stages, k // parts % stages, k % parts
            groups = t.groups_of_stage[stage] if stage < t.num_stages else ()
            alike = number, at, tuple(self.alike[g] for g in groups)
            if alike not in known:
                known[alike] = len(laid)
                laid.append(self._laid(t.effects[number], groups, at))
            chosen.append(known[alike])
        program, numbers = with_effects(program, *laid)
        return program.with_columns(effect=np.array(numbers)[chosen][np.searchsorted(used, key)])

    def _laid(self, effect: Effect, groups: tuple[int, ...], part: int) -> Effect:
        """An effect of the source as rows of a stage with these groups, and of a part, have it."""

        def side(patterns: tuple[Pattern, ...], is_write: bool) -> tuple[Pattern, ...]:
            role = _role(effect, is_write)
            return tuple(self._pattern(p, groups, part, role) for p in patterns)

        return effect._replace(reads=side(effect.reads, False), writes=side(effect.writes, True))

    def _pattern(self, p: Pattern, groups: tuple[int, ...], part: int, role: str) -> Pattern:
        """A pattern with its layout; of all groups of a stage with one for each, where they lie differently."""
        if p.kind in self.sums:
            return p._replace(layout=layout_text(self.sums[p.kind]))
        if p.kind in OF_PIPELINE:
            return p._replace(layout=layout_text(dict.fromkeys(self.pipeline, OF_PIPELINE[p.kind])))
        if p.kind in SHARED_FROM_ONE:
            how = SPLIT if role in ("makes", "shares") else SHARED
            return p._replace(layout=layout_text(dict.fromkeys(self.pipeline, how)))
        if p.kind not in OF_GROUPS:
            return p
        texts = [layout_text(self._layouts(p.kind, g, role)) for g in groups]
        if p.index == "groups" and len(set(texts)) > 1:
            return p._replace(layout=" | ".join(texts))
        place = {"group": part, "place": p.offset}.get(p.index, 0)
        return p._replace(layout=texts[place]) if place < len(texts) else p

    def _layouts(self, kind: str, g: int, role: str) -> Layouts:
        """How a group's values lie where a row reads or writes them: its role with parameters says which."""
        partial = dict.fromkeys(self.partial[g], PARTIAL)
        if kind == MICROBATCH_GRADIENT.name:
            return dict.fromkeys(self.gradient[g], PARTIAL) | partial
        if kind == GRADIENT:  # a step reads what is reduced beside it, in the same memory
            return self.shards[g] if role == "steps" else self.gradient[g] | partial
        if kind == REDUCED:
            how = PARTIAL if role in ("reduces", "sums") else COPIED
            return self.reduced[g] | dict.fromkeys(self.partial[g], how)
        if kind == GATHERED_PARAMETER.name:
            return dict.fromkeys(self.values[g], SHARED)
        if role == "steps":
            return dict.fromkeys(
                self.values[g], SPLIT
            )  # along others it reads what it has, its shard or all of it
        how = SPLIT if role in ("stepped", "gathers") else COPIED
        return dict.fromkeys(self.values[g], SPLIT) | dict.fromkeys(self.stepped[g], how)


def _copies(program: Program, group: int) -> tuple[str, ...]:
    """Axes along which a group's gradients are summed: of a tied table, or a stage on several devices, the first, too."""
    axes, devices = reduction_axes(program, group)
    return (program.axes[0].name, *axes) if len(devices) > 1 else axes


def _role(effect: Effect, is_write: bool) -> str:
    """What a row does with parameters: it steps them, leaves them stepped, gathers what was stepped, or uses them. Of rows
    that leave them alone, computes that write make what they write, and exchanges share what they read; of gradients they
    reduce what they write, and sum what they read."""
    if effect.name in (REDUCE_GRAD.name, SUM_GRAD.name):
        return "reduces" if effect.name == REDUCE_GRAD.name else "summed" if is_write else "sums"
    if any(p.kind == PARAMETER for p in effect.writes):
        if effect.kind == Kind.COLLECTIVE:
            return "uses" if is_write else "gathers"
        return "stepped" if is_write else "steps"
    if effect.kind == Kind.COLLECTIVE:
        return "uses" if is_write else "shares"
    return "makes" if is_write else "uses"


def _reductions(program: Program) -> dict[int, str]:
    """Operation of the reduction of every group that has one."""
    t, c = program.tables, program.columns
    names = np.array([effect.name == REDUCE_GRAD.name for effect in t.effects])
    rows = np.flatnonzero(names[c.effect] & (c.exchange >= 0))
    return {
        t.groups_of_stage[stage][part]: operation_of(t.exchanges[exchange].algorithm)
        for stage, part, exchange in np.stack(
            [c.stage[rows], c.part[rows], c.exchange[rows]], axis=1
        ).tolist()
    }


def _axes_of(program: Program, name: str) -> tuple[str, ...]:
    """Axes along which rows of this name sum what a step reads."""
    numbers = {
        int(program.columns.exchange[row])
        for e, effect in enumerate(program.tables.effects)
        if effect.name == name
        for row in np.flatnonzero(program.columns.effect == e)[:1].tolist()
    }
    return tuple(axis for number in numbers for axis in program.tables.exchanges[number].axes)


def laid_out(lowering: Lowering) -> LayOutGroups:
    """The pass of every plan that steps parameters."""
    return LayOutGroups(lowering.held)
