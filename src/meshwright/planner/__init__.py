"""The planner: all plans that a number of devices allows, verified, simulated and ranked; and why the others do not fit."""

from meshwright.planner.candidate import Candidate, evaluate, interval_of_step
from meshwright.planner.enumerate import Ranking, choices, plans_for
from meshwright.planner.memory_limit import Rejection, largest_holders

__all__ = [
    "Candidate",
    "Ranking",
    "Rejection",
    "choices",
    "evaluate",
    "interval_of_step",
    "largest_holders",
    "plans_for",
]
