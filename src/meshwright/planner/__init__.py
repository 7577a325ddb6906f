"""The planner: all plans that a number of devices allows, verified, simulated and ranked; and why the others do not fit."""

from meshwright.planner.search.every_plan import Ranking, choices, plans_for
from meshwright.prediction.memory_limit import Rejection, largest_holders
from meshwright.prediction.predicted_plan import Candidate, evaluate, interval_of_step

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
