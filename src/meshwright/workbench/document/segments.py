"""The inside of one stage: its segments and what is sent between them, over a few microbatches, on a device that has it."""

from __future__ import annotations

from dataclasses import replace

from meshwright.prediction.composition import is_in_segments, not_in_rows
from meshwright.prediction.predicted import Predicted, predict
from meshwright.prediction.step_program import PLAIN, PLAIN_IN_CHUNKS
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import Plan
from meshwright.workbench.document.document import Document, TimelineSection
from meshwright.workbench.document.drawn.drawing import drawn_trace

NUM_MICROBATCHES = 2  # what one does beside another is seen with two
NOTE = (
    "One device that has the stage, with two microbatches in the order of a plain pipeline: what its layers compute and what "
    "they send."
)


def segments_document(plan: Plan, cluster: ClusterSpec, stage: int, *, most_rows: int) -> Document:
    """The document of stage `stage` of a plan on GPUs. Raises PlanError for a stage that there is not, and where nothing is
    sent inside a layer, or rows do not say all of it."""
    if not 0 <= stage < plan.num_stages:
        raise PlanError(f"there is no stage {stage}", allowed=f"0 to {plan.num_stages - 1}")
    if not (cluster.machine.has_streams and is_in_segments(plan)):
        missing = ", ".join(not_in_rows(plan)) or "nothing that is sent inside a layer"
        raise PlanError(
            f"a plan with {missing} in segments", allowed="tp above 1 with recompute none or full"
        )
    found = _in_segments(plan, cluster)
    trace = found.trace()
    (device, *_) = found.program.tables.devices_of_stage[found.made.pipeline_stages.index(stage)]
    lists = tuple(
        number
        for number in range(found.program.num_lists)
        if found.program.coordinates(number)["pp"] == device
    )
    drawn = drawn_trace(
        trace, f"stage {stage}", wiring=found.made.wiring, most_rows=most_rows, lists=lists,
        stages=found.made.pipeline_stages,
    )  # fmt: skip
    section = TimelineSection("segments", f"Inside stage {stage}", [drawn], NOTE)
    return Document("plan", f"Stage {stage} of {plan.model.name}", found.description, sections=[section])


def _in_segments(plan: Plan, cluster: ClusterSpec) -> Predicted:
    """The same stages with few microbatches."""
    work = replace(plan.workload, global_batch=NUM_MICROBATCHES * plan.microbatch_size * plan.dp)
    few = plan.changed(schedule=PLAIN if plan.num_chunks == 1 else PLAIN_IN_CHUNKS, workload=work, passes=())
    return predict(few, cluster, extrapolate=True, in_segments=True)
