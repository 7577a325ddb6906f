"""The fewest devices, whole nodes, whose best plan reads a budget of tokens in time, or on which some plan fits at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.planner.advice.goodput import Duration, Failures, duration
from meshwright.planner.search.plans import Plans
from meshwright.planner.search.search import search
from meshwright.planner.search.solve import Attempt, Solution, fits_any
from meshwright.planner.space.axis import MESH_ORDERS
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.device import usual_node
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import MeshwrightError, OutOfMemoryError, PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.workload import Workload
from meshwright.specs.units import format_count, format_seconds

MOST_DEVICES = 32768  # beyond that nobody asks by accident; --max-gpus says another number
NUM_SIMULATED = 4  # plans of each number of devices: the closed form is within a few percent
NUM_BETWEEN = (
    4  # numbers of nodes that divide less well, between the last that is late and the first that is not
)
# Numbers of nodes are first compared by plans with these choices, which the best plan has as a rule: a tenth of the space.
FEW_CHOICES: Mapping[str, Any] = {"mesh_order": MESH_ORDERS[0], "recompute_blocks": 0}
NEARLY = 1.1  # times the deadline: what is as late with few choices may be in time with all
NOTHING_FITS = "nothing fits"
NUM_WORSE = 2  # so many numbers in a row that are slower than one before: more devices no longer help


class DeadlineError(PlanError):
    """No number of devices is in time: says what is, and how late the others are."""

    exit_code = 3


@dataclass(frozen=True, eq=False)
class _Tried:
    """One number of nodes: its search and how long it takes, or why there is no plan."""

    cluster: ClusterSpec
    found: Plans | None
    takes: Duration | None
    why: str = ""

    @property
    def num_devices(self) -> int:
        return self.cluster.num_devices

    @property
    def expected_s(self) -> float:
        return math.inf if self.takes is None else self.takes.expected_s

    def attempt(self, deadline_s: float) -> Attempt:
        why = self.why if self.why == NOTHING_FITS else "no plan"
        told = format_seconds(self.expected_s) if self.found else why
        return Attempt(self.num_devices, self.expected_s <= deadline_s, told)


def fewest_devices(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    *,
    num_tokens: int,
    deadline_s: float,
    failures: Failures | None = None,
    max_devices: int = MOST_DEVICES,
    progress: Callable[[str, float], None] | None = None,
    num_simulated: int = NUM_SIMULATED,
    fix: Mapping[str, Any] | None = None,
    **options: Any,
) -> Solution:
    """The smallest number of devices, in whole nodes of the cluster's kind, that reads the tokens by the deadline.

    Numbers of nodes are first those whose odd factors divide batch x layers: others leave devices without an even share.
    They begin where the devices' peak would do, double, and are bisected, by plans of few choices; the last that is late
    and a few of the others between it and the first in time are then searched with all choices, as is the answer.

    Args:
        cluster: says device, node and network; its number of devices does not matter.
        failures: the expected time then has restarts and checkpoints in it.
        max_devices: none above is tried.
        fix, options: as of `search.search`.

    Raises:
        DeadlineError: none is in time: the shortest time, and the tokens that can be read by the deadline.
        PlanError: a cluster that cannot be resized, or as `search`; OutOfMemoryError: nothing fits on any number.
    """
    if not 0 < deadline_s < math.inf or num_tokens < 1:
        raise PlanError(
            f"{num_tokens} tokens in {deadline_s} s", allowed="both above 0: --tokens 2T --deadline 30d"
        )
    node = node_size(cluster)
    if max_devices < node:
        raise PlanError(f"at most {max_devices} devices", allowed=f"at least a node, {node}")
    trials = _NodeTrials(
        model, cluster, workload, num_tokens, failures, progress,
        {"fix": fix or {}, "num_simulated": num_simulated, **options},
    )  # fmt: skip
    counts = _node_counts(model, workload, node, max_devices // node)
    if not counts:
        raise PlanError(
            f"no number of nodes of {node} devices divides a batch of {workload.global_batch} and {model.num_layers} layers",
            next="change the batch",
        )
    first = _at_least(model, workload, cluster, num_tokens, deadline_s) / node
    place = _first_in_time(lambda n: trials.coarse_s(counts[n]), len(counts), deadline_s, first, counts)
    if place is None:  # perhaps one that is nearly in time is so with all choices
        best = min(trials.known, key=trials.coarse_s) if trials.known else counts[-1]
        if trials.whole_s(best) > deadline_s:
            raise _too_late(trials.known, num_tokens, deadline_s, max_devices)
        return _solution(trials.known, best, deadline_s)
    best = counts[place]
    below = counts[place - 1] if place else 0
    for nodes in [below, *_between(max(below, math.ceil(first) - 1), best)]:
        is_near = nodes >= first and trials.coarse_s(nodes) <= NEARLY * deadline_s
        if is_near and trials.whole_s(nodes) <= deadline_s:
            return _solution(trials.known, nodes, deadline_s)
    trials.whole_s(best)
    return _solution(trials.known, best, deadline_s)


def smallest_fitting(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    *,
    max_devices: int = MOST_DEVICES,
    max_memory_bytes: int | None = None,
    fix: Mapping[str, Any] | None = None,
    forbid: Sequence[str] = (),
    **options: Any,
) -> Solution:
    """The fewest devices, in whole nodes of the cluster's kind, on which some plan is expected to fit; its plans are ranked.

    Args:
        cluster: says device, node and network; its number of devices does not matter.
        max_devices: none above is tried.
        fix, forbid, max_memory_bytes, options: as of `search.search`.

    Raises OutOfMemoryError where nothing fits on any number, PlanError for a cluster that cannot be resized or as `search`.
    """
    node, capacity = node_size(cluster), min(cluster.memory_bytes, max_memory_bytes or cluster.memory_bytes)
    counts = _node_counts(model, workload, node, max_devices // node)
    tried: dict[int, bool] = {}

    def fits(place: int) -> bool:
        nodes = counts[place]
        if nodes not in tried:
            where = resized(cluster, nodes)
            tried[nodes] = fits_any(model, where, workload, fix or {}, forbid, capacity)
        return tried[nodes]

    place = _first_that(fits, len(counts))
    if place is None:
        raise OutOfMemoryError(
            f"nothing fits on up to {max_devices} devices"
            if counts
            else "no number of nodes divides the job",
            next="raise --max-gpus, fix and forbid less, or change the batch",
        )
    where = resized(cluster, counts[place])
    found = search(
        model, where, workload, fix=fix, forbid=forbid, max_memory_bytes=max_memory_bytes, **options
    )
    attempts = tuple(
        Attempt(nodes * node, does, "fits" if does else NOTHING_FITS) for nodes, does in sorted(tried.items())
    )
    return Solution("gpus", where.num_devices, where, found, attempts)


def _first_that(does: Callable[[int], bool], num: int) -> int | None:
    """The first of `num` places that does, where what is behind one that does does, too; by doubling and bisecting."""
    low, place = -1, 0
    while place < num and not does(place):
        low, place = place, 2 * place + 1
    if place >= num:
        if low == num - 1 or not num or not does(num - 1):
            return None
        place = num - 1
    while place - low > 1:
        middle = (low + place) // 2
        low, place = (low, middle) if does(middle) else (middle, place)
    return place


class _NodeTrials:
    """Numbers of nodes that were searched: first with few choices, the ones that matter with all."""

    def __init__(
        self, model: ModelSpec, cluster: ClusterSpec, workload: Workload, num_tokens: int, failures: Failures | None,
        progress: Callable[[str, float], None] | None, options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.known: dict[int, _Tried] = {}
        self._job, self._cluster = (model, workload, num_tokens, failures), cluster
        self._options, self._progress = options, progress
        taken = {*options["fix"], *options.get("forbid", ())}
        self._few = {name: value for name, value in FEW_CHOICES.items() if name not in taken}

    def coarse_s(self, nodes: int) -> float:
        """Expected seconds of the best plan, of few choices unless all were tried already."""
        if nodes not in self.known:
            self.known[nodes] = self._searched(nodes, self._few)
        return self.known[nodes].expected_s

    def whole_s(self, nodes: int) -> float:
        """Of all choices; the better of both, as only some of either are simulated."""
        found = [self._searched(nodes, {}), *([self.known[nodes]] if nodes in self.known else [])]
        self.known[nodes] = min(found, key=lambda each: each.expected_s)
        return self.known[nodes].expected_s

    def _searched(self, nodes: int, more: Mapping[str, Any]) -> _Tried:
        if self._progress is not None:
            self._progress(f"{nodes * node_size(self._cluster)} devices", 0.0)
        options = {**self._options, "fix": {**more, **self._options["fix"]}}
        model, workload, num_tokens, failures = self._job
        return _tried(model, resized(self._cluster, nodes), workload, num_tokens, failures, options)


def resized(cluster: ClusterSpec, num_nodes: int) -> ClusterSpec:
    """The same devices, nodes and network with another number of nodes. Raises PlanError where that is not said."""
    node, kind = node_size(cluster), cluster.devices[0]
    if not cluster.is_homogeneous or cluster.links:
        raise PlanError(
            f"{cluster.name} has devices or links that differ", allowed="a cluster of equal nodes"
        )
    number = num_nodes * node
    if len(cluster.levels) > 1:
        outer = replace(cluster.levels[-1], num_devices=number)
        levels = (*cluster.levels[:-1], outer) if num_nodes > 1 else cluster.levels[:-1]
        short = _short(cluster, num_nodes, node)
        name = short.name if short and short.levels == levels else f"{cluster.name}, {number} devices"
        return replace(cluster, name=name, devices=(kind,) * number, levels=levels)
    short = _short(cluster, num_nodes, node)
    if short is None or short.levels[0].bandwidth_bytes_per_s != cluster.levels[0].bandwidth_bytes_per_s:
        raise PlanError(
            f"{cluster.name} has no network that joins nodes",
            allowed="a cluster of two nodes or more, or a short name such as 8xH100",
        )
    return replace(short, devices=(kind,) * number)


def node_size(cluster: ClusterSpec) -> int:
    """Devices of the unit in which the cluster grows: what its outermost level joins; of one node alone, the usual node."""
    if len(cluster.levels) > 1:
        return cluster.levels[-2].num_devices
    try:
        return usual_node(cluster.devices[0].name).num_devices
    except MeshwrightError:
        return cluster.num_devices


def _short(cluster: ClusterSpec, num_nodes: int, node: int) -> ClusterSpec | None:
    """What the short name of that many nodes means; None for a device without one."""
    try:
        return Cluster(f"{num_nodes}x{node}x{cluster.devices[0].name}")
    except MeshwrightError:
        return None


def _node_counts(model: ModelSpec, workload: Workload, node: int, most: int) -> list[int]:
    """Numbers of nodes whose devices divide evenly: every odd factor goes into batch x layers."""
    whole = workload.global_batch * model.num_layers
    return [nodes for nodes in range(1, most + 1) if whole % _odd(nodes * node) == 0]


def _odd(number: int) -> int:
    while number % 2 == 0:
        number //= 2
    return number


def _at_least(
    model: ModelSpec, workload: Workload, cluster: ClusterSpec, num_tokens: int, deadline_s: float
) -> float:
    """Devices that the budget takes at the peak of the fastest format: fewer cannot do it."""
    peak = max(cluster.devices[0].flops_per_s.values())
    return num_tokens * model.train_flops_per_token(round(workload.attended_length)) / (peak * deadline_s)


def _first_in_time(
    expected_s: Callable[[int], float], num: int, deadline_s: float, first: float, counts: Sequence[int]
) -> int | None:
    """Place of the first count in time, by doubling from the first that could be and bisecting; None where none is."""
    low = sum(count < first for count in counts) - 1
    place, shortest, num_worse = low + 1, math.inf, 0
    while place < num and (now := expected_s(place)) > deadline_s:
        num_worse = num_worse + 1 if now >= shortest and shortest < math.inf else 0
        if num_worse >= NUM_WORSE or place == num - 1:
            return None
        shortest, low = min(shortest, now), place
        further = next((n for n in range(place + 1, num) if counts[n] >= 2 * counts[place]), num - 1)
        place = further
    if place >= num:
        return None
    while place - low > 1:
        middle = (low + place) // 2
        low, place = (low, middle) if expected_s(middle) <= deadline_s else (middle, place)
    return place


def _between(below: int, above: int) -> list[int]:
    """A few numbers of nodes between, evenly, ascending."""
    inside = list(range(below + 1, above))
    if len(inside) <= NUM_BETWEEN:
        return inside
    return [inside[len(inside) * k // NUM_BETWEEN] for k in range(NUM_BETWEEN)]


def _tried(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, num_tokens: int, failures: Failures | None,
    options: Mapping[str, Any],
) -> _Tried:  # fmt: skip
    """Search one number of nodes. What is wrong with every number of nodes is raised by the first."""
    number = cluster.num_devices
    try:
        found = search(model, cluster, workload, **options)
    except OutOfMemoryError:
        return _Tried(cluster, None, None, NOTHING_FITS)
    except PlanError as error:
        return _Tried(cluster, None, None, error.given)
    takes = [
        duration(num_tokens, each.step.value, workload.tokens_per_step, number, failures) for each in found
    ]
    return _Tried(cluster, found, min(takes, key=lambda each: each.expected_s))


def _too_late(
    known: Mapping[int, _Tried], num_tokens: int, deadline_s: float, max_devices: int
) -> MeshwrightError:
    """The error: the shortest time of all, what it would read by the deadline, and whether more devices would help."""
    best = min(known.values(), key=lambda each: (each.expected_s, each.num_devices))
    if best.takes is None:
        whys = {each.why for each in known.values()}
        return OutOfMemoryError(
            f"nothing fits on up to {max(each.num_devices for each in known.values())} devices",
            next="raise --max-gpus, or fix and forbid less",
        ) if NOTHING_FITS in whys else PlanError(best.why)  # fmt: skip
    largest = max(known.values(), key=lambda each: each.num_devices)
    reach = int(num_tokens * deadline_s / best.expected_s)
    needed = math.ceil(best.num_devices * best.expected_s / deadline_s)
    more = (
        f"raise --max-gpus: about {needed} devices would do it as efficiently as {best.num_devices} do"
        if largest is best
        else f"more than {best.num_devices} devices do not help with this batch: take a larger --global-batch"
    )
    return DeadlineError(
        f"{format_count(num_tokens)} tokens in {format_seconds(deadline_s)}: the shortest time is "
        f"{format_seconds(best.expected_s)}, on {best.num_devices} devices (at most {max_devices} were allowed)",
        allowed=f"--deadline from {math.ceil(best.expected_s / 3600)}h, or --tokens up to {format_count(reach)}",
        next=more,
    )


def _solution(known: Mapping[int, _Tried], best: int, deadline_s: float) -> Solution:
    chosen = known[best]
    assert chosen.found is not None, "a number of devices without plans is never in time"
    attempts = tuple(known[nodes].attempt(deadline_s) for nodes in sorted(known))
    late_above = [each.value for each in attempts if each.value > chosen.num_devices and not each.does]
    notes = [f"not monotone: {', '.join(map(str, late_above))} devices are late"] if late_above else []
    return Solution("gpus", chosen.num_devices, chosen.cluster, chosen.found, attempts, tuple(notes))
