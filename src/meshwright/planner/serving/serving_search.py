"""Search for plans that serve a load: all layouts in its busiest time, the best varied, then the best on all of it; or what
another planner names, on all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from meshwright.planner.serving.replica_steps import SIZES, ExpertLoad, ReplicaSteps, of_chance
from meshwright.planner.serving.served_plan import ServedPlan, by_front, fewest_devices
from meshwright.planner.serving.serving_space import (
    check_fixed,
    is_decided,
    layouts,
    replica_counts,
    variants,
)
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.loop.report import LatencyObjective
from meshwright.serving.request.request import Request
from meshwright.serving.simulated.forward_program import ForwardProgram
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.step_model import StepModel
from meshwright.serving.simulated.step_table import StepTable, TableError
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import MeshwrightError, OutOfMemoryError, PlanError, SpecError
from meshwright.specs.model.model import ModelSpec

NUM_SAMPLED = 1000  # requests by which plans are ranked before some of them serve the whole load
OF_STEP = ("max_batch_tokens", "max_sequences")
NUM_VARIED, NUM_FINAL = 2, 4  # plans of the ranking that are varied; that serve the whole load
Progress = Callable[[str, float], None]
ServingPlanner = Callable[["ServingSearch"], Iterable[ServingPlan]]


@dataclass(frozen=True)
class ServingPlans(Sequence[ServedPlan]):
    """What was found, best first.

    Attributes:
        model, cluster: their names.
        found: plans that served the whole load.
        ranked: plans that served its busiest time.
        rejected: names of layouts that do not fit, and why.
        table_errors: of the step tables of what was found, by layout.
        assumptions: what all rests on, for people.
    """

    model: str
    cluster: str
    found: tuple[ServedPlan, ...]
    ranked: tuple[ServedPlan, ...]
    rejected: Mapping[str, str]
    table_errors: Mapping[str, TableError]
    assumptions: tuple[str, ...]

    def __getitem__(self, place: Any) -> Any:
        return self.found[place]

    def __len__(self) -> int:
        return len(self.found)

    @property
    def num_ranked(self) -> int:
        """Plans that served the busiest time."""
        return len(self.ranked)

    @property
    def simulate_s(self) -> float:
        """That the loops of the whole load took."""
        return sum(each.simulate_s for each in self.found)


def busiest(requests: Sequence[Request], number: int) -> Sequence[Request]:
    """So many requests in a row that came in the least time, of those by arrival."""
    starts = range(max(1, len(requests) - number + 1))
    last = min(number, len(requests)) - 1
    first = min(starts, key=lambda i: requests[i + last].arrival_s - requests[i].arrival_s)
    return requests[first : first + number]


def ideas(ranked: Iterable[ServedPlan]) -> list[ServingPlan]:
    """The best of those that differ in no more than the limits of a step."""
    best: dict[tuple[ReplicaLayout, int, int], ServingPlan] = {}
    for each in ranked:
        best.setdefault((each.plan.layout, each.plan.replicas, each.plan.num_prefill), each.plan)
    return list(best.values())


def finalists(ranked: Sequence[ServedPlan]) -> list[ServingPlan]:
    """The best ideas, and beside them what is enough on fewer devices than any of them."""
    final = ideas(by_front(ranked))[:NUM_FINAL]
    shown, fewest = fewest_devices([each for each in ranked if each.plan in final]), fewest_devices(ranked)
    if fewest is None or (shown is not None and shown.plan.num_devices <= fewest.plan.num_devices):
        return final
    return [*final, fewest.plan]


@dataclass
class ServingSearch:
    """One search, and what prices plans for any planner.

    Attributes:
        model, cluster, requests, objective, fix, dtype: the job.
        num_clients: each sends its next request when its last has ended (0: requests come when they say).
        think_s: that each waits before it does.
        expert_load: of so many devices with whole experts, rows of the busiest over the mean.
        has_table: do steps come from a table?
        planner: names plans in place of our own search, the best first; it may ask `served` for some.
        progress: is told.
        rejected: names of layouts that do not fit, and why.
        ranked: plans that served the busiest time.
    """

    model: ModelSpec
    cluster: ClusterSpec
    requests: Sequence[Request]
    objective: LatencyObjective
    fix: Mapping[str, Any] = field(default_factory=dict)
    has_table: bool = True
    dtype: str = "bfloat16"
    num_clients: int = 0
    planner: ServingPlanner | None = None
    think_s: float = 0.0
    expert_load: ExpertLoad = of_chance
    progress: Progress = lambda _, __: None
    rejected: dict[str, str] = field(default_factory=dict)
    ranked: list[ServedPlan] = field(default_factory=list)

    def run(self) -> ServingPlans:
        """The plans. Raises PlanError where the model cannot be divided so, OutOfMemoryError where none fits."""
        check_fixed(self.fix)
        if self.num_clients and self.fix.get("num_prefill"):
            raise PlanError(
                "num_prefill with clients who wait", next="let requests come at times of their own"
            )
        plans = self._searched() if self.planner is None else list(self.planner(self))
        if not plans:
            raise PlanError(
                f"the planner finds no plan of {self.model.name} on {self.cluster.name}", next="fix less"
            )
        whole = by_front(self.served(plans, self.requests))
        steps = {each.plan.layout.name: self.steps_of(each.plan)[1] for each in whole}
        errors = {name: own.error() for name, own in steps.items() if isinstance(own, StepTable)}
        rejected = {name: why for name, why in self.rejected.items() if name not in steps}
        return ServingPlans(
            self.model.name,
            self.cluster.name,
            tuple(whole),
            tuple(self.ranked),
            rejected,
            errors,
            self.steps.assumptions(whole[0].plan),
        )

    def _searched(self) -> list[ServingPlan]:
        """The best of all ideas, by the busiest time; what is decided as it is."""
        found = layouts(self.model, self.cluster, self.fix)
        plans = [each for layout in found for each in replica_counts(layout, self.cluster, self.fix)]
        if is_decided(self.fix):
            return plans if len(plans) == 1 else ideas(by_front(self.rank(plans)))[:NUM_FINAL]
        best = by_front(self.rank(plans))[:NUM_VARIED]
        varied = dict.fromkeys(each for one in best for each in variants(one.plan, self.fix))
        seen = {each.plan for each in self.ranked}
        self.rank(
            [each for each in varied if each not in seen and not (each.num_prefill and self.num_clients)]
        )
        return finalists(self.ranked)

    @property
    def busiest_time(self) -> Sequence[Request]:
        """The requests by which plans are ranked."""
        return self.requests[:NUM_SAMPLED] if self.num_clients else busiest(self.requests, NUM_SAMPLED)

    def rank(self, plans: Iterable[ServingPlan]) -> list[ServedPlan]:
        """Each plan in the busiest time; they are told beside those that are found. Raises as `served`."""
        found = self.served(plans, self.busiest_time)
        self.ranked += found
        return found

    def served(self, plans: Iterable[ServingPlan], requests: Sequence[Request]) -> list[ServedPlan]:
        """Each plan under a load; those that do not fit, or cannot be lowered, are kept as rejected. Where all are, raises
        what was said of the last."""
        found, every = [], list(plans)
        misfit: MeshwrightError | None = None
        for number, plan in enumerate(every):
            self.progress(plan.name, number / len(every))
            try:
                found.append(self._served(plan, requests))
            except (OutOfMemoryError, PlanError, SpecError) as error:
                misfit, self.rejected[plan.layout.name] = error, error.given
        if every and not found:
            assert misfit is not None
            raise misfit
        return found

    def _served(self, plan: ServingPlan, requests: Sequence[Request]) -> ServedPlan:
        served = self.steps.serve(plan, requests, self.num_clients, self.think_s)
        return ServedPlan.of(plan, served, self.objective, self.cluster.devices[0])

    @cached_property
    def steps(self) -> ReplicaSteps:
        """Of all plans: where limits are tried the tables are for all of them."""
        longest = max(each.num_prompt_tokens + each.max_output_tokens for each in self.requests)
        is_tried = not is_decided(self.fix) and not {*OF_STEP} <= {*self.fix}
        sizes = SIZES if is_tried else ()
        return ReplicaSteps(
            self.model, self.cluster, self.dtype, longest, self.has_table, sizes, self.expert_load
        )

    def steps_of(self, plan: ServingPlan) -> tuple[ForwardProgram, StepModel]:
        """A layout's program, and its steps."""
        return self.steps.of(plan)
