"""The verbs plan, solve, pareto and check."""
