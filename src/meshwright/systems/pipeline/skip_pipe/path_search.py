"""Which stages every microbatch visits, on which nodes, in which order: simulated annealing on the dispatched span.

A dispatch of thirty microbatches takes a fraction of a millisecond, so tens of thousands of plans are simply run: what
collides is slow by itself, and no list of conflicts is kept. Memory is a rule of the moves: every node is on `memory` paths
of a round, always.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.specs.error import PlanError
from meshwright.systems.pipeline.skip_pipe.mechanism import LOST, Legs, Network, PathPlan, repeated, run

Path = tuple[int, ...]

# What a path may do (gensyn-ai/skippipe, schedulers/a_star_modified.py): how far ahead of all it has visited its next
# stage may be, how far behind, how often it may go back, and how far in all.
MAX_AHEAD, MAX_BEHIND, MAX_RETURNS, MAX_BEHIND_SUM = 4, 1, 2, 2
# Ours, by trial: hot enough that a plan may lose a second, cold enough at the end to keep what it has.
FIRST_TEMPERATURE_S, LAST_TEMPERATURE_S = 1.0, 0.02
NUM_PROPOSALS = 5_000  # of each annealing
EXCHANGED_SHARE = 0.15  # of the proposals exchange all of two paths, the others one node of each
SPACINGS_S = (0.8, 1.0, 1.2, 1.4)  # between the places of a node; the published plans have 0.44 and 1.0


@dataclass(frozen=True)
class PathRules:
    """What all paths of a round must satisfy.

    Attributes:
        stage_nodes: nodes of each stage; paths begin on those of the first.
        num_visited: stages of a path, with the first.
        memory: paths of a round through a node, exactly.

    Raises PlanError where nodes and visits do not come out even.
    """

    stage_nodes: tuple[tuple[int, ...], ...]
    num_visited: int
    memory: int

    def __post_init__(self) -> None:
        visits = len(self.stage_nodes[0]) * self.memory * (self.num_visited - 1)
        places = sum(len(nodes) for nodes in self.stage_nodes[1:]) * self.memory
        if visits != places:
            raise PlanError(
                f"{visits} visits of paths to stages behind the first, whose nodes have {places} places",
                allowed="as many of one as of the other: all stages are visited equally often, in full nodes",
            )

    @cached_property
    def stage_of_node(self) -> dict[int, int]:
        """Stage of every node."""
        return {node: stage for stage, nodes in enumerate(self.stage_nodes) for node in nodes}

    def allows(self, path: Path) -> bool:
        """Different stages, of which none is far ahead of those before it, and few behind."""
        stages = [self.stage_of_node[node] for node in path]
        front, behind = 0, []
        for stage in stages[1:]:
            if stage > front + MAX_AHEAD:
                return False
            if stage < front:
                behind.append(front - stage)
            front = max(front, stage)
        is_straight_enough = max(behind, default=0) <= MAX_BEHIND and len(behind) <= MAX_RETURNS
        return is_straight_enough and sum(behind) <= MAX_BEHIND_SUM and len(set(stages)) == len(stages)

    def sorted_by_stage(self, path: Path) -> Path:
        """The same nodes, stage after stage."""
        return (path[0], *sorted(path[1:], key=self.stage_of_node.__getitem__))

    def check(self, paths: Sequence[Path]) -> None:
        """Raises PlanError where a path does what it may not, or a node is on more or fewer paths than it has memory."""
        wrong = [path for path in paths if not self.allows(path) or len(path) != self.num_visited]
        visits = Counter(node for path in paths for node in path)
        uneven = [node for node in self.stage_of_node if visits[node] != self.memory]
        if wrong or uneven:
            raise PlanError(
                f"paths {wrong} break the rules of paths, nodes {uneven} are not visited {self.memory} times"
            )


@dataclass(frozen=True)
class FoundPlan:
    """The best plan of a search, its span, and how many plans were run."""

    plan: PathPlan
    span_s: float
    num_dispatched: int


def search_paths(
    network: Network,
    rules: PathRules,
    *,
    seed: int = 0,
    num_proposals: int = NUM_PROPOSALS,
    spacings_s: Sequence[float] = SPACINGS_S,
) -> FoundPlan:
    """The plan of least span that two searches find; a seed decides the result.

    The first one gives all places of a node the same path, at every spacing; the second lets them differ, from the best of
    these on. Each annealing has as many proposals.

    Raises:
        PlanError: no plan that was tried finishes all of its microbatches.
    """
    draws = random.Random(seed)
    shared = replace(rules, memory=1)
    coarse = [
        _Annealing(network, shared, first_paths(shared, draws), rules.memory, spacing_s, draws)
        for spacing_s in spacings_s
    ]
    for each in coarse:
        each.run(num_proposals)
    best = min(coarse, key=lambda each: each.best_s)
    if math.isinf(best.best_s):
        raise PlanError("no plan finishes all of its microbatches", next="try other spacings, or more memory")
    fine = _Annealing(network, rules, repeated(best.best, rules.memory), 1, best.spacing_s, draws)
    fine.run(num_proposals)
    rules.check(fine.best)
    num_dispatched = sum(each.num_dispatched for each in (*coarse, fine))
    return FoundPlan(PathPlan(tuple(fine.best), fine.spacing_s), fine.best_s, num_dispatched)


class _Annealing:
    """One search: the paths as they are, each taken by `copies` places of its node, their span, and the best seen."""

    def __init__(
        self, network: Network, rules: PathRules, paths: Sequence[Path], copies: int, spacing_s: float,
        draws: random.Random,
    ) -> None:  # fmt: skip
        self.network, self.rules, self.copies, self.spacing_s = network, rules, copies, spacing_s
        self.draws, self.num_dispatched = draws, 0
        self.paths = list(paths)
        self.span_s = self.dispatched_s(self.paths)
        self.best_s, self.best = self.span_s, list(self.paths)

    def run(self, num_proposals: int) -> None:
        """Propose so many changes, each kept with the probability that its temperature gives."""
        cooling = LAST_TEMPERATURE_S / FIRST_TEMPERATURE_S
        for number in range(num_proposals):
            temperature_s = FIRST_TEMPERATURE_S * cooling ** (number / num_proposals)
            changed = self.proposed()
            if changed is not None:
                self.consider(changed, temperature_s)

    def dispatched_s(self, paths: Sequence[Path]) -> float:
        """Span of a plan; without end where a microbatch is lost."""
        self.num_dispatched += 1
        legs = Legs.of(self.network, PathPlan(repeated(paths, self.copies), self.spacing_s).injections())
        status, _, start_s, _ = run(self.network, legs)
        return math.inf if status == LOST else float((start_s + legs.seconds)[:, -1].max())

    def proposed(self) -> list[Path] | None:
        """Two paths with one node of each exchanged, or all but their homes; None where that changes or allows nothing."""
        draws, last = self.draws, self.rules.num_visited - 1
        i, j = draws.randrange(len(self.paths)), draws.randrange(len(self.paths))
        one, other = list(self.paths[i]), list(self.paths[j])
        if draws.random() < EXCHANGED_SHARE:
            one[1:], other[1:] = other[1:], one[1:]
        else:
            a, b = draws.randint(1, last), draws.randint(1, last)
            if i == j:
                one[a], one[b] = one[b], one[a]
                other = one
            else:
                one[a], other[b] = other[b], one[a]
        pair: tuple[Path, Path] = (tuple(one), tuple(other))
        if not all(map(self.rules.allows, pair)):
            pair = (self.rules.sorted_by_stage(pair[0]), self.rules.sorted_by_stage(pair[1]))
        if pair == (self.paths[i], self.paths[j]) or not all(map(self.rules.allows, pair)):
            return None
        changed = list(self.paths)
        changed[i], changed[j] = pair
        return changed

    def consider(self, paths: list[Path], temperature_s: float) -> None:
        """Take the paths where they are no slower, or by chance."""
        span_s = self.dispatched_s(paths)
        if span_s > self.span_s and self.draws.random() >= math.exp((self.span_s - span_s) / temperature_s):
            return
        self.paths, self.span_s = paths, span_s
        if span_s < self.best_s:
            self.best_s, self.best = span_s, list(paths)


def first_paths(rules: PathRules, draws: random.Random) -> list[Path]:
    """Paths that keep the rules: each takes the stages that have most places left, and any of their nodes."""
    left = {
        stage: [node for node in nodes for _ in range(rules.memory)]
        for stage, nodes in enumerate(rules.stage_nodes)
        if stage
    }
    paths = []
    for home in rules.stage_nodes[0]:
        for _ in range(rules.memory):
            fullest = sorted(left, key=lambda stage: (-len(left[stage]), draws.random()))
            stages = sorted(fullest[: rules.num_visited - 1])
            nodes = [left[stage].pop(draws.randrange(len(left[stage]))) for stage in stages]
            paths.append((home, *nodes))
    rules.check(paths)
    return paths
