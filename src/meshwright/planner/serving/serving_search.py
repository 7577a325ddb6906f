"""Search for plans that serve a load: all layouts in its busiest time, the best varied, then the best on all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.planner.advice.running_cost import cost_assumptions
from meshwright.planner.serving.served_plan import ServedPlan, by_front
from meshwright.planner.serving.serving_space import (
    BATCH_TOKENS,
    SEQUENCES,
    check_fixed,
    is_decided,
    layouts,
    replica_counts,
    variants,
)
from meshwright.serving.fleet.fleet import serve
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.loop.report import LatencyObjective, LoadReport
from meshwright.serving.policy.limits import Limits
from meshwright.serving.request.request import Request
from meshwright.serving.simulated.forward_program import ForwardProgram
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.step_model import EveryStep, StepModel
from meshwright.serving.simulated.step_table import StepTable, TableError
from meshwright.serving.weight.weight_place import RESIDENT
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import MeshwrightError, OutOfMemoryError, PlanError
from meshwright.specs.model.model import ModelSpec

NUM_SAMPLED = 1000  # requests by which plans are ranked before some of them serve the whole load
USUAL = (Limits.max_batch_tokens, Limits.max_sequences)
NUM_VARIED, NUM_FINAL = 2, 4  # plans of the ranking that are varied; that serve the whole load
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class ServingPlans(Sequence[ServedPlan]):
    """What was found, best first.

    Attributes:
        found: plans that served the whole load.
        num_ranked: plans that served its busiest time.
        rejected: names of layouts that do not fit, and why.
        table_errors: of the step tables of what was found, by layout.
        assumptions: what all rests on, for people.
    """

    found: tuple[ServedPlan, ...]
    num_ranked: int
    rejected: Mapping[str, str]
    table_errors: Mapping[str, TableError]
    assumptions: tuple[str, ...]

    def __getitem__(self, place: Any) -> Any:
        return self.found[place]

    def __len__(self) -> int:
        return len(self.found)

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


@dataclass
class ServingSearch:
    """One search. Attributes: the job, whether steps come from tables, and what was worked out."""

    model: ModelSpec
    cluster: ClusterSpec
    requests: Sequence[Request]
    objective: LatencyObjective
    fix: Mapping[str, Any] = field(default_factory=dict)
    has_table: bool = True
    dtype: str = "bfloat16"
    progress: Progress = lambda _, __: None
    rejected: dict[str, str] = field(default_factory=dict)
    _programs: dict[tuple[ReplicaLayout, str], ForwardProgram] = field(default_factory=dict)
    _tables: dict[tuple[ReplicaLayout, int, int], StepTable] = field(default_factory=dict)

    def run(self) -> ServingPlans:
        """The plans. Raises PlanError where the model cannot be divided so, OutOfMemoryError where none fits."""
        check_fixed(self.fix)
        found = layouts(self.model, self.cluster, self.fix)
        plans = [each for layout in found for each in replica_counts(layout, self.cluster, self.fix)]
        num_ranked = 0
        if len(plans) > 1 or not is_decided(self.fix):
            ranked = self._served(plans, self._sample)
            if not is_decided(self.fix):
                varied = [
                    each for one in by_front(ranked)[:NUM_VARIED] for each in variants(one.plan, self.fix)
                ]
                seen = {each.plan for each in ranked}
                ranked += self._served(
                    [each for each in dict.fromkeys(varied) if each not in seen], self._sample
                )
            num_ranked = len(ranked)
            plans = ideas(by_front(ranked))[:NUM_FINAL]
        whole = by_front(self._served(plans, self.requests))
        steps = {each.plan.layout.name: self._steps_of(each.plan)[1] for each in whole}
        errors = {name: own.error() for name, own in steps.items() if isinstance(own, StepTable)}
        rejected = {name: why for name, why in self.rejected.items() if name not in steps}
        return ServingPlans(tuple(whole), num_ranked, rejected, errors, self._assumptions(whole[0].plan))

    @property
    def _sample(self) -> Sequence[Request]:
        return busiest(self.requests, NUM_SAMPLED)

    def _served(self, plans: Iterable[ServingPlan], requests: Sequence[Request]) -> list[ServedPlan]:
        """Each plan under a load; those that do not fit, or cannot be lowered, are kept as rejected. Where all are, raises
        what was said of the last."""
        found, every = [], list(plans)
        misfit: MeshwrightError | None = None
        for number, plan in enumerate(every):
            self.progress(plan.name, number / len(every))
            program, steps = self._steps_of(plan)
            try:
                served = serve(plan, program, steps, requests, self.model.max_sequence_length)
            except (OutOfMemoryError, PlanError) as error:
                misfit, self.rejected[plan.layout.name] = error, error.given
                continue
            report = LoadReport.of(served.logs, self.objective)
            found.append(
                ServedPlan(plan, report, served.num_blocks, self.cluster.devices[0], served.simulate_s)
            )
        if every and not found:
            assert misfit is not None
            raise misfit
        return found

    def _steps_of(self, plan: ServingPlan) -> tuple[ForwardProgram, StepModel]:
        """A layout's program, and its steps for batches of the usual size, or of the largest that are tried."""
        named = (plan.layout, plan.weights)
        if named not in self._programs:
            self._programs[named] = ForwardProgram(
                self.model, self.cluster, plan.layout, self.dtype, weights=plan.weights
            )
        program = self._programs[named]
        if not self.has_table or plan.weights != RESIDENT:  # what is waited for is no sum of surfaces
            return program, EveryStep(program)
        usual = (plan.max_batch_tokens, plan.max_sequences)
        if not is_decided(self.fix):
            sizes = (USUAL, (max(BATCH_TOKENS), max(SEQUENCES)))
            usual = next((each for each in sizes if usual[0] <= each[0] and usual[1] <= each[1]), usual)
        longest = max(each.num_prompt_tokens + each.max_output_tokens for each in self.requests)
        table = StepTable(program, *usual, min(longest, self.model.max_sequence_length))
        return program, self._tables.setdefault((plan.layout, *usual), table)

    def _assumptions(self, plan: ServingPlan) -> tuple[str, ...]:
        said = dict.fromkeys((*self.cluster.assumptions, *self._steps_of(plan)[0].assumptions))
        return (*(line for line in said if "backward" not in line), *cost_assumptions(self.cluster))
