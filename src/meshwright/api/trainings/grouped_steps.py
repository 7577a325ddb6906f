"""Steps whose sequences are in groups that change: who decides them, makes their programs, and predicts what they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from meshwright import catalog
from meshwright.api.trainings.job import Resumed
from meshwright.api.trainings.place import TrainingPlace
from meshwright.ir.trace import Trace
from meshwright.prediction.predicted import predict
from meshwright.prediction.sequence.fitted_costs import sequence_costs_of
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.error import SpecError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.length_distribution import LengthDistribution
from meshwright.specs.sequence.sequence_costs import SequenceCosts
from meshwright.specs.sequence.sequence_group import GroupedBatch, SequenceGrouping
from meshwright.specs.training.recipe import Length
from meshwright.specs.training.source import Source

if TYPE_CHECKING:
    from meshwright.executor.data.whole_sequence import WholeSequences
    from meshwright.executor.job.changing.controller import ControlledStep, StepSeconds
    from meshwright.executor.job.launch import Launch

SLOT = "sequence_groups"
KEPT = 4  # steps whose programs are known, of those that were made


@dataclass(eq=False)
class GroupedSteps:
    """A controller (`executor.job.changing`): asks an algorithm for the groups of a step, whose lengths are known without its
    tokens, and lowers and predicts their program.

    Attributes:
        place: where the plan is trained; its prices are those of the prediction.
        grouping, costs: who decides the groups, by which costs of the plan's ranks.
        sequences: the samples of the training, `seed` its order.
    """

    place: TrainingPlace
    grouping: SequenceGrouping
    costs: SequenceCosts
    sequences: WholeSequences
    seed: int
    _made: dict[int, ControlledStep] = field(default_factory=dict)

    @classmethod
    def of(
        cls, name: str, place: TrainingPlace, source: Source, resumed: Resumed, profile: Profile | None = None
    ) -> GroupedSteps:
        """By the name of an algorithm. `source`: prepared. Raises PlanError for a plan that has no groups, SpecError and
        ExecutionError for a name or data that are none."""
        from meshwright.executor.data.data_source import whole_sequences
        from meshwright.executor.data.packing import SampleCount

        plan, cluster = place.plan, place.subject.cluster
        assert cluster is not None, "a plan that is trained runs somewhere"
        work = plan.workload
        consumed = resumed.step * work.global_batch if resumed.samples is None else resumed.samples
        count = SampleCount(work.global_batch, resumed.step, consumed)
        return cls(
            place, catalog.filler(SLOT, name), sequence_costs_of(plan, cluster, profile=profile, extrapolate=True),
            whole_sequences(source, count, work.sequence_length), resumed.seed,
        )  # fmt: skip

    @property
    def num_ranks(self) -> int:
        """Among which sequences are divided."""
        return self.place.plan.dp * self.place.plan.cp

    def next(self, step: int, observations: Sequence[StepSeconds]) -> ControlledStep:
        """As of `Controller`; the last programs are kept, so that who asks again gets the same."""
        from meshwright.executor.job.changing.controller import ControlledStep

        if step not in self._made:
            groups = self.grouping(self.sequences.lengths(self.seed, step), self.num_ranks, self.costs)
            trace = self.trace(groups)
            self._made[step] = ControlledStep(trace.program, groups, float(trace.metadata["step"]["value"]))
            for old in sorted(self._made)[:-KEPT]:
                del self._made[old]
        return self._made[step]

    def trace(self, groups: GroupedBatch) -> Trace:
        """A step of these groups on virtual time."""
        known = self.place.subject.predicted
        assert known is not None, "a plan is predicted before it is trained"
        found = predict(known.plan, known.cluster, pricing=known.pricing, groups=groups)
        return found.trace(
            said={"label": found.description, "assumptions": [*found.assumptions, groups.words]}
        )

    @property
    def plan(self) -> Plan:
        """The plan with the lengths of its data, by which its model FLOPs are counted."""
        found = LengthDistribution.of(self.sequences.spans.lengths)
        work: Workload = replace(self.place.plan.workload, lengths=found.kept().pairs)
        return self.place.plan.changed(workload=work)


def check_grouped(
    name: str, length: Length, source: Source, launch: Launch | None, profiler: object, routing: object = None
) -> None:
    """Raise SpecError for what groups that change by step do not go with, PlanError for a name that nobody knows."""
    catalog.filler(SLOT, name)
    beside = {
        "a job that was started on several processes": launch is not None,
        "--profiler": profiler is not None,
        "--record-routing": routing is not None,
        "--tokens": length.tokens is not None,
        "--evaluate-every": source.evaluate_every > 0,
        "--no-document-mask": not source.document_mask,
    }
    for what in (what for what, is_there in beside.items() if is_there):
        raise SpecError(
            f"{what} with --sequence-groups {name}",
            allowed="a training on this machine, as long as --iterations or --seconds say, of documents apart",
            next="leave one of them out",
        )


def whole_source(source: Source, said: Callable[[str], None], folder: str | Path | None = None) -> Source:
    """The source with token shards of whole documents, made now where they are not there."""
    from meshwright.executor.data.data_source import prepared_source

    return prepared_source(
        replace(source, whole_sequences=True), folder,
        lambda share: said(f"making tokens of {source.name}, {share:.0%} (once: they are kept)"),
    )  # fmt: skip
