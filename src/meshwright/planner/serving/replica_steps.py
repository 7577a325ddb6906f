"""ReplicaSteps: what steps of replicas take, for any plan of one model on one cluster; each layout is lowered once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from meshwright.planner.advice.running_cost import cost_assumptions
from meshwright.planner.serving.serving_space import BATCH_TOKENS, SEQUENCES
from meshwright.serving.decoder.decoder import decoder_of
from meshwright.serving.fleet.fleet import Served, serve
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.policy.limits import Limits
from meshwright.serving.request.request import Request
from meshwright.serving.simulated.forward_program import ForwardProgram
from meshwright.serving.simulated.parted.rounded_steps import RoundedSteps
from meshwright.serving.simulated.parted.serving_step import step_named
from meshwright.serving.simulated.proposed.simulated_decoder import SimulatedDecoder
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.serving.simulated.step_model import EveryStep, StepModel
from meshwright.serving.simulated.step_table import StepTable
from meshwright.serving.weight.weight_place import RESIDENT
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.model.model import ModelSpec

# Tokens and sequences of a step that tables are made for; the last one is for all limits that are tried.
ExpertLoad = Callable[[int], float]
SIZES = ((Limits.max_batch_tokens, Limits.max_sequences), (max(BATCH_TOKENS), max(SEQUENCES)))


def of_chance(num_devices: int) -> float:
    """An `ExpertLoad`: experts are chosen alike."""
    return 1.0


@dataclass(eq=False)
class ReplicaSteps:
    """Attributes:
    model, cluster, dtype: the job.
    longest: tokens of the longest sequence.
    has_table: do steps come from a table?
    sizes: of steps that tables are made for, smallest first; a plan that none of them holds has its own.
    expert_load: of so many devices with whole experts, rows of the busiest over the mean.
    """

    model: ModelSpec
    cluster: ClusterSpec
    dtype: str
    longest: int
    has_table: bool = True
    sizes: Sequence[tuple[int, int]] = SIZES
    expert_load: ExpertLoad = of_chance
    _programs: dict[tuple[ReplicaLayout, str, str], ForwardProgram] = field(default_factory=dict, init=False)
    _steps: dict[tuple[object, ...], StepModel] = field(default_factory=dict, init=False)

    def of(self, plan: ServingPlan) -> tuple[ForwardProgram, StepModel]:
        """A layout's program, and its steps for batches of the smallest size that holds the plan's limits."""
        named = (plan.layout, plan.weights, plan.sums)
        if named not in self._programs:
            self._programs[named] = ForwardProgram(
                self.model, self.cluster, plan.layout, self.dtype, weights=plan.weights, sums=plan.sums,
                expert_load=self.expert_load(plan.layout.ep),
            )  # fmt: skip
        program = self._programs[named]
        own = (plan.max_batch_tokens, plan.max_sequences)
        size = next((each for each in self.sizes if own[0] <= each[0] and own[1] <= each[1]), own)
        key = (*named, plan.step, *size)
        if key not in self._steps:
            self._steps[key] = self._step_model(plan, program, size)
        return program, self._steps[key]

    def serve(
        self, plan: ServingPlan, requests: Sequence[Request], num_clients: int = 0, think_s: float = 0.0,
        is_watched: bool = False,
    ) -> Served:  # fmt: skip
        """A load on the replicas of a plan; arguments and errors as of `fleet.serve`."""
        program, steps = self.of(plan)
        most = self.model.max_sequence_length
        return serve(plan, program, steps, requests, most, num_clients, think_s, is_watched)

    def assumptions(self, plan: ServingPlan) -> tuple[str, ...]:
        """What a plan's seconds and costs rest on, for people."""
        said = dict.fromkeys((*self.cluster.assumptions, *self.of(plan)[0].assumptions))
        proposed = SimulatedDecoder.of(decoder_of(plan.decoder))
        told = () if proposed is None else (proposed.assumption,)
        return (*(line for line in said if "backward" not in line), *told, *cost_assumptions(self.cluster))

    def _step_model(self, plan: ServingPlan, program: ForwardProgram, size: tuple[int, int]) -> StepModel:
        """A table where what kernels take adds up; else batches one by one, which where they cost a search are rounded."""
        longest = min(self.longest, self.model.max_sequence_length)
        steps = step_named(plan.step).of(program, Limits(*size, longest))
        if not self.has_table or (
            steps is program and plan.weights != RESIDENT
        ):  # a wait is no sum of surfaces
            return EveryStep(steps)
        return StepTable(program, *size, longest) if steps is program else RoundedSteps(steps)
