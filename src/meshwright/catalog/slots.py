"""Slots: which names fill a field of a plan, a recipe or a command, and what stands behind each, looked up once.

A name is the core's own, a published system's (its card says ``FILLS``, read without importing it), an installed package's
(entry points of the group ``meshwright.shardings``, and so on), or code of the user's: ``./mine.py:thing``. Options are
fields of a frozen dataclass: ``NAME(option=value)``.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from meshwright import systems
from meshwright.catalog.user_file import Guarded, guarded, many_of, of_file, one_of
from meshwright.ir.program import Program
from meshwright.planner.search.proposal import Proposal
from meshwright.schedules.order import Schedule, registered
from meshwright.serving.decoder.decoder import ONE_TOKEN, OneToken
from meshwright.serving.decoder.draft import DraftModel
from meshwright.serving.decoder.ngram import NGram
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.simulated.parted.serving_step import STEPS
from meshwright.serving.weight.weight_place import RESIDENT, Resident
from meshwright.specs.cluster.cluster import LEVELS, ClusterSpec
from meshwright.specs.cluster.device import Link
from meshwright.specs.error import PlanError, SpecError, UnknownNameError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.optimizer import OPTIMIZERS
from meshwright.specs.plan.option import described_options, with_options
from meshwright.specs.plan.sharding import ZERO
from meshwright.specs.routing.balanced_experts import BalancedExperts
from meshwright.specs.routing.expert_placement import ContiguousExperts, ExpertPlacement, RoundRobinExperts
from meshwright.specs.sequence.sequence_group import GroupedBatch
from meshwright.specs.sequence.static_groups import STATIC, StaticGroups
from meshwright.specs.slot import Reference
from meshwright.specs.training.job_report import JobRunner

ENTRY_POINTS = (
    "meshwright."  # with the slot's plural behind it: the group in which installed packages offer fillers
)
OURS = "meshwright."  # modules of the package: what goes wrong in them is no mistake of the user's
OF_ARGUMENTS = ("costs",)  # slots whose fillers are classes of what the slot is about, not of options
FILLS = "FILLS"  # of a card: slot -> "FILE:NAME" in its folder


@dataclass(frozen=True)
class Slot:
    """A field that names an implementation: where it stands, what its protocol is, and what the core has for it.

    `gives`: where it is called, what takes the result of the user's code, or raises TypeError; None: it is not called.
    """

    name: str
    field: str
    protocol: str
    own: Callable[[], Mapping[str, Any]] = dict
    gives: Callable[[Any], Any] | None = None

    @property
    def plural(self) -> str:
        """What `list` and groups of entry points call it."""
        return self.name if self.name.endswith("s") else f"{self.name}s"


def _passes() -> Mapping[str, Any]:
    from meshwright.lowering.lower import NAMED  # the core's passes: nothing else asks for lowering here

    return NAMED


@cache
def own_schedules() -> Mapping[str, Schedule]:
    """The schedules of the package (what a user's file registers later is found through its file)."""
    import meshwright.schedules

    root = meshwright.schedules.__name__
    return {name: made for name, made in registered().items() if made.function.__module__.startswith(root)}


def _costs() -> Mapping[str, Any]:
    from meshwright.costs.kernel.curve import nearest_kernels
    from meshwright.costs.roofline import Roofline

    return {"roofline": Roofline, "nearest_kernels": nearest_kernels}


SLOTS: Mapping[str, Slot] = {
    slot.name: slot
    for slot in (
        Slot(
            "schedule",
            "plan.schedule",
            "(devices, microbatches[, chunks]) -> orders of computes",
            own_schedules,
        ),
        Slot(
            "passes",
            "plan.passes[]",
            "Program -> Program; may declare after, before, needs, excludes",
            _passes,
            one_of(Program),
        ),
        Slot(
            "sharding",
            "plan.sharding",
            "Sharding: devices that share values, gradients, state",
            lambda: ZERO,
        ),
        Slot(
            "optimizer", "plan.optimizer, recipe.optimizer", "UpdateRule: what STEP does", lambda: OPTIMIZERS
        ),
        Slot(
            "variant",
            "plan.variant",
            "ModelSpec -> ModelSpec: another model, trained and exported so",
            gives=one_of(ModelSpec),
        ),
        Slot(
            "tensor_rules",
            "train --tensor-rules",
            "(parameters of a module tree, devices) -> TensorRule of each",
            gives=one_of(Mapping),
        ),
        Slot(
            "placement",
            "plan.placement",
            "(Plan, ClusterSpec) -> device numbers in mesh order",
            gives=many_of(numbers.Integral),
        ),
        Slot(
            "costs",
            "cluster.costs",
            "ClusterSpec -> seconds of works and of messages",
            _costs,
            one_of(object),
        ),
        Slot(
            "routing",
            "cluster.routing",
            "(ClusterSpec, source, target) -> links, in order",
            lambda: {LEVELS: ClusterSpec.by_levels},
            many_of(Link),
        ),
        Slot(
            "job",
            "meshwright run",
            "options; `runs`: FILE:FUNCTION beside it, (options, seed, said) -> JobReport",
        ),
        Slot(
            "step",
            "plan --requests --fix step",
            "(ForwardProgram, Limits) -> seconds of a replica's steps",
            lambda: STEPS,
        ),
        Slot(
            "sequence_groups",
            "train, plan, simulate --sequence-groups",
            "SequenceGrouping: (lengths of a step's sequences, ranks, SequenceCosts) -> GroupedBatch",
            lambda: {STATIC: StaticGroups},
            one_of(GroupedBatch),
        ),
        Slot(
            "expert_placement",
            "place --by",
            "PlacesExperts: (RoutingTrace, GroupShape) -> ExpertPlacement",
            lambda: {
                "contiguous": ContiguousExperts,
                "round_robin": RoundRobinExperts,
                "eplb": BalancedExperts,
            },
            one_of(ExpertPlacement),
        ),
        Slot(
            "planner",
            "plan --planner",
            "(model, cluster, workload, fix) -> plans, best first",
            gives=Proposal.of,
        ),
        Slot(
            "weights",
            "serve --weights, plan --requests --fix weights",
            "WeightPlace: which blocks of a stage's weights are fetched, whence, how many are here at once",
            lambda: {RESIDENT: Resident},
        ),
        Slot(
            "decoder",
            "serve --decoder, plan --requests --fix decoder",
            "TokenDecoder: tokens proposed to a sequence in a step, and who proposes them",
            lambda: {ONE_TOKEN: OneToken, "ngram": NGram, "draft": DraftModel},
        ),
        Slot(
            "serving_planner",
            "plan --requests FILE --planner",
            "ServingSearch: the job, and what prices plans -> serving plans, best first",
            gives=many_of(ServingPlan),
        ),
    )
}


@cache
def cards() -> Mapping[str, Path]:
    """Published systems: name -> its card; nothing of theirs is imported."""
    return {
        path.parent.name: path for root in systems.__path__ for path in sorted(Path(root).glob("*/*/card.py"))
    }


@cache
def filled_by_systems() -> Mapping[str, Mapping[str, str]]:
    """Slot -> name of a system -> "module:attribute", from the cards."""
    found: dict[str, dict[str, str]] = {name: {} for name in SLOTS}
    for name, card in cards().items():
        for slot, place in fills_of(card).items():
            file, _, attribute = place.partition(":")
            package = ".".join(card.parent.parts[-2:])
            found.setdefault(slot, {})[name] = f"meshwright.systems.{package}.{file}:{attribute}"
    return found


def fills_of(card: Path) -> Mapping[str, str]:
    """What a card says of the slots that its system fills: slot -> "FILE:NAME". Raises SpecError where it is no literal."""
    text = card.read_text(encoding="utf-8")
    if FILLS not in text:
        return {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == FILLS for t in node.targets
        ):
            try:
                return dict(ast.literal_eval(node.value))
            except ValueError as error:
                raise SpecError(
                    f"{card}: FILLS is no literal ({error})", allowed="texts written out"
                ) from error
    return {}


def slot_names(slot: str) -> tuple[str, ...]:
    """Every name that fills a slot, the core's first. Raises UnknownNameError."""
    one = _slot(slot)
    others = {*filled_by_systems()[slot], *offered(slot)} - set(one.own())
    return (*one.own(), *sorted(others))


def filler(slot: str, reference: str) -> Any:
    """What stands behind a name in a slot, made with the options of the reference.

    Raises:
        PlanError: nobody knows the name, or it has no such option.
        SpecError: a file of the user's cannot be imported.
    """
    named = Reference.of(reference)
    if not named.names_code:
        return _named(slot, reference)
    path = Path(named.name.partition(":")[0]).expanduser()
    return _code(slot, reference, path.stat().st_mtime_ns if path.is_file() else 0)


@cache
def _named(slot: str, text: str) -> Any:
    reference = Reference.of(text)
    found = _behind(slot, reference.name)
    return _made(slot, found, reference, f"{slot} {reference.name}")


@cache
def _code(slot: str, text: str, written: int) -> Any:
    """From a file of the user's: read again once it has changed."""
    reference = Reference.of(text)
    found, label = of_file(reference.name)
    return _made(slot, found, reference, f"{slot} {label}", Path(reference.file).expanduser())


def _behind(slot: str, name: str) -> Any:
    one = _slot(slot)
    if name in one.own():
        return one.own()[name]
    place = filled_by_systems()[slot].get(name)
    if place is not None:
        module, _, attribute = place.partition(":")
        return getattr(importlib.import_module(module), attribute)
    others = offered(slot)
    if name in others:
        return guarded(others[name].load, f"entry point {name}")
    unknown = UnknownNameError(slot, name, slot_names(slot), next="code of your own is ./mine.py:NAME")
    raise PlanError(unknown.given, allowed=", ".join(slot_names(slot)), next=unknown.next)


def _made(slot: str, found: Any, reference: Reference, what: str, path: Path | None = None) -> Any:
    """A dataclass with its options; what is no dataclass takes none. What is not of the package is guarded."""
    options, gives = dict(reference.options), _slot(slot).gives
    takes_options = inspect.isclass(found) and is_dataclass(found) and slot not in OF_ARGUMENTS
    if options and not takes_options:
        raise PlanError(f"{what} is given {', '.join(options)}", allowed="no options")

    def make() -> Any:
        return with_options(found, options, what) if takes_options else found

    if str(getattr(found, "__module__", "")).startswith(OURS):
        return make()
    made = guarded(make, what, path)
    return made if gives is None else Guarded(made, gives, what, path)


def job_runner(job: Any) -> JobRunner:
    """The function that a job's ``runs`` names: FILE:FUNCTION beside the file of its options, which knows no torch."""
    folder = type(job).__module__.rpartition(".")[0]
    file, _, function = job.runs.partition(":")
    found: JobRunner = getattr(importlib.import_module(f"{folder}.{file}"), function)
    return found


def described(slot: str, name: str) -> dict[str, Any]:
    """What `list` shows of a name in a slot: what it does, and its options."""
    found = _behind(slot, name)
    text = getattr(found, "summary", "") or inspect.getdoc(found) or repr(found)
    options = described_options(found) if isinstance(found, type) and is_dataclass(found) else ()
    return {"name": name, "summary": " ".join(text.partition("\n\n")[0].split()), "options": list(options)}


def _slot(name: str) -> Slot:
    if name not in SLOTS:
        raise UnknownNameError("slot", name, SLOTS)
    return SLOTS[name]


@cache
def offered(slot: str) -> Mapping[str, Any]:
    """Entry points by name, not yet loaded."""
    from importlib.metadata import entry_points  # reads the metadata of every installed package

    return {point.name: point for point in entry_points(group=ENTRY_POINTS + _slot(slot).plural)}


Reference.finder = staticmethod(filler)
