"""LoadDesk: what a state's layout does to its load, as a document; what steps take is simulated once for every layout."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from meshwright.planner.serving.replica_steps import ReplicaSteps
from meshwright.planner.serving.served_plan import ServedPlan
from meshwright.serving.fleet.fleet import Served
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.replica_memory import replica_memory
from meshwright.specs.units import counted, format_seconds
from meshwright.workbench.document.document import Document, Section
from meshwright.workbench.document.served.layout import (
    against_load_sections,
    load_figures,
    occupancy_sections,
)
from meshwright.workbench.server.load.asked_load import AskedLoad

OCCUPANCY, AGAINST_LOAD = PARTS = ("occupancy", "against_load")  # that may be asked for
FACTORS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # of the rate, for latency against load
MOST_JOBS = 8  # whose steps are kept
STEADY = 3  # medians of a request's time that a load has to last, at least, before it says what is usual
ONE = BatchShape.of((), 1, 1)  # any batch makes a table


class LoadDesk:
    """Steps of the jobs that were asked for last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str, str, int], ReplicaSteps] = OrderedDict()
        self._making = Lock()

    def document(self, asked: AskedLoad, parts: Sequence[str]) -> Document:
        """Of one layout under its load. Raises OutOfMemoryError where it does not fit, PlanError where it cannot be."""
        own, served = self._served(asked, asked.rate_per_s)
        sections: list[Section] = []
        if OCCUPANCY in parts:
            sections += occupancy_sections(served.occupancies, own)
        if AGAINST_LOAD in parts:
            points = [(factor * asked.rate_per_s, factor) for factor in FACTORS]
            found = [
                (rate, own if factor == 1.0 else self._served(asked, rate)[0]) for rate, factor in points
            ]
            sections += against_load_sections(found, asked.objective)
        return Document(
            "workbench",
            f"{asked.model.name} served on {asked.words['cluster']}",
            f"{asked.load}, by {own.plan.name}",
            load_figures(own, served.occupancies, asked.objective),
            [*asked.notes, *_said(asked, own), *self._steps(asked).assumptions(asked.plan)],
            sections,
        )

    def _served(self, asked: AskedLoad, rate_per_s: float) -> tuple[ServedPlan, Served]:
        steps, plan = self._steps(asked), asked.plan
        program, seconds = steps.of(plan)
        replica_memory(
            program, plan.limits(asked.model.max_sequence_length), plan.block_tokens
        )  # before all else
        with self._making:  # who comes meanwhile finds the table
            seconds.step(ONE)
        served = steps.serve(plan, asked.requests(rate_per_s), is_watched=True)
        return ServedPlan.of(plan, served, asked.objective, asked.cluster.devices[0]), served

    def _steps(self, asked: AskedLoad) -> ReplicaSteps:
        """Of a job, for sequences of this length and somewhat longer ones."""
        rounded = 1 << (asked.longest - 1).bit_length()
        key = (asked.model.digest, asked.words["cluster"], asked.dtype, rounded)
        with self._making:
            if key not in self._kept:
                self._kept[key] = ReplicaSteps(asked.model, asked.cluster, asked.dtype, rounded)
            self._kept.move_to_end(key)
            while len(self._kept) > MOST_JOBS:
                self._kept.popitem(last=False)
            return self._kept[key]


def _said(asked: AskedLoad, own: ServedPlan) -> list[str]:
    """What was simulated, how it is asked for elsewhere, and where it is too little."""
    drawn, report = asked.drawn, own.report
    found = [
        f"simulated: {counted(drawn.num, 'request')} with lengths that vary by {drawn.variation:g} of their mean come at "
        f"random (poisson) for {format_seconds(drawn.num / asked.rate_per_s)}, through the scheduler that serves; steps are "
        "read from a table of simulated ones"
    ]
    if drawn.num / asked.rate_per_s < STEADY * report.e2e_s["p50"]:
        found.append(
            f"this many requests come within less than {STEADY} times what one of them takes: what is seen is how the load "
            "begins, not how it goes on"
        )
    command = asked.command()
    return [*found, f"on the command line: {command}"] if command else found
