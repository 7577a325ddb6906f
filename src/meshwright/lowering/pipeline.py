"""The pipeline of passes, as data: what stands in it, in the order that passes declare, and the facts they are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, Protocol

from meshwright.ir.program import Program
from meshwright.ir.table import Work
from meshwright.schedules.order import Schedule
from meshwright.specs.error import PlanError
from meshwright.specs.model.layers import StageLayers
from meshwright.specs.plan.option import with_options
from meshwright.specs.plan.plan import PassOption, Plan
from meshwright.specs.sequence.sequence_group import GroupedBatch
from meshwright.specs.slot import resolve
from meshwright.stage.group.parameter_group import HeldGroup

Pass = Callable[[Program], Program]
Works = Mapping[tuple[str, int], Work]


@dataclass(frozen=True)
class Lowering:
    """Facts of one lowering, found once: the plan, its schedule, stages and groups of the program.

    ``counts``: stages of the program for each stage of the pipeline. ``has_step``: is there a step behind the computes?
    ``in_segments``: what is sent inside a stage is rows; else it is priced in its computes. ``groups``: which ranks share
    which sequences, where this differs from sequence to sequence; the plan is then that of one rank alone.
    """

    plan: Plan
    schedule: Schedule
    counts: tuple[int, ...]
    stages: tuple[StageLayers, ...]
    held: tuple[HeldGroup, ...]
    has_step: bool = True
    in_segments: bool = False
    groups: GroupedBatch | None = None


class PlanPass(Protocol):
    """A pass as a plan has it: implied by its fields, or named in `Plan.passes` with options, which are its fields.

    ``after``, ``before``: names of passes behind and before which it stands, where these are there. It may also have
    ``needs`` (names without which it is refused), ``excludes`` (names it contradicts, with the reason), ``check(plan)``
    (raises PlanError) and ``works(lowering, program)`` (of the names that it adds, by name and stage).
    """

    name: str
    after: tuple[str, ...]
    before: tuple[str, ...]

    def made(self, lowering: Lowering) -> Pass | None:
        """The pass for a plan; None where the plan does not ask for it."""


@dataclass(frozen=True)
class Implied:
    """A pass that fields of the plan imply, ``when`` they do: ``of`` makes it, or says that there is nothing to do."""

    name: str
    of: Callable[[Lowering], Pass | None]
    when: Callable[[Lowering], bool] = lambda _: True
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    is_of_step: bool = False
    of_works: Callable[[Lowering, Program], Works] | None = None

    def made(self, lowering: Lowering) -> Pass | None:
        """The pass, or None where nothing asks for it, or it belongs to a step that is not there."""
        is_there = (lowering.has_step or not self.is_of_step) and self.when(lowering)
        return self.of(lowering) if is_there else None

    def works(self, lowering: Lowering, program: Program) -> Works:
        """Of the names that it adds."""
        return self.of_works(lowering, program) if self.of_works and self.when(lowering) else {}


@dataclass(frozen=True)
class Foreign:
    """A pass that somebody else wrote, a frozen dataclass that takes a program and gives one: where it stands.

    It says ``after`` and ``before`` itself; if it does not, it stands behind everything that is there.
    """

    name: str
    function: Any

    @property
    def after(self) -> tuple[str, ...]:
        """Names of passes that it stands behind."""
        return tuple(getattr(self.function, "after", ("transfers", "optimizer_step")))

    @property
    def before(self) -> tuple[str, ...]:
        """Names of passes that it stands before."""
        return tuple(getattr(self.function, "before", ()))

    def made(self, lowering: Lowering) -> Pass:
        """The pass itself."""
        made: Pass = self.function
        return made

    def works(self, lowering: Lowering, program: Program) -> Works:
        """Of the names that it adds, if it says any."""
        found: Works = getattr(self.function, "works", lambda *_: {})(lowering, program)
        return found


def named_passes(plan: Plan, known: Mapping[str, type]) -> list[Any]:
    """The passes that a plan names, made with their options, and checked. Raises PlanError."""
    names = [each.name for each in plan.passes]
    if len(set(names)) < len(names):
        raise PlanError(f"the plan names passes {names}", allowed="each once")
    found = [_named(plan, each, known) for each in plan.passes]
    for one in found:
        _check_beside(one, names)
        getattr(one, "check", lambda _: None)(plan)
    return found


def _named(plan: Plan, given: PassOption, known: Mapping[str, type]) -> Any:
    """A pass of ours, or what fills the slot. Raises PlanError."""
    if given.name in known:
        return with_options(known[given.name], given.options, f"pass {given.name}")
    try:
        made = resolve("passes", given.reference)
    except PlanError as error:
        allowed = f"{', '.join(known)}, each once; others are fields"
        raise PlanError(
            f"the plan names passes {[each.name for each in plan.passes]}: {error.given}", allowed=allowed
        ) from None
    return made if hasattr(made, "made") else Foreign(given.name, made)


def _check_beside(one: Any, names: Sequence[str]) -> None:
    """Raise PlanError where a pass needs another, or contradicts one that is there."""
    for other in getattr(one, "needs", ()):
        if other not in names:
            raise PlanError(f"the plan names {one.name} without {other}", allowed="both, or the latter alone")
    for other, why in getattr(one, "excludes", {}).items():
        if other in names:
            raise PlanError(f"pass {one.name} {why}", allowed="one of the two")


def ordered(passes: Iterable[Any]) -> list[Any]:
    """The passes in an order that all of them allow, as they were given where that is free.

    Raises PlanError where two contradict each other.
    """
    given = {each.name: each for each in passes}
    place = {name: number for number, name in enumerate(given)}
    behind: dict[str, set[str]] = {name: set() for name in given}
    for name, one in given.items():
        behind[name] |= {other for other in one.after if other in given}
        for other in (other for other in one.before if other in given):
            behind[other].add(name)
    sorter, found = TopologicalSorter(behind), []
    try:
        sorter.prepare()
    except CycleError as error:
        circle = error.args[1]
        raise PlanError(
            f"passes {' and '.join(dict.fromkeys(circle))} each ask to stand before the other",
            allowed="one of them",
        ) from None
    ready: list[str] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()], key=place.__getitem__)
        first = ready.pop(0)
        found.append(given[first])
        sorter.done(first)
    return found
