"""The planner: the plans that a number of devices allows, ranked, the best simulated; and why the others do not fit."""

from meshwright.planner.search.every_plan import choices, every_plan
from meshwright.planner.search.plans import Plans
from meshwright.planner.search.search import search
from meshwright.prediction.memory_limit import Rejection, largest_holders
from meshwright.prediction.predicted import Predicted, predict

__all__ = ["Plans", "Predicted", "Rejection", "choices", "every_plan", "largest_holders", "predict", "search"]
