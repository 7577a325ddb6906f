"""Space: every configuration of a training step that a cluster allows, as columns of whole numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.error import PlanError, SpecError
from meshwright.specs.layer_operator import local_sizes
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import Plan
from meshwright.specs.workload import Workload

Ints = NDArray[np.int64]
SCHEDULES = ("1f1b", "interleaved_1f1b")
# What Megatron-LM offers as --recompute-granularity, and nothing.
RECOMPUTES = ("none", "selective", "full")
SHARDINGS = ("none", "zero1", "zero3")
MICROBATCH_SIZES = (1, 2, 4, 8, 16)  # sequences; a larger one fills no kernel better and lengthens the bubble
# Context parallelism pays where keys and values travel behind attention: a device keeps at least so many tokens.
LEAST_TOKENS_OF_CP = 4096
# Gathers cross nodes in every layer; beyond so many chunks a device a pipeline sends more than its bubble shrinks.
MAX_CHUNKS = 16
AXES = (
    *("tp", "cp", "ep", "pp", "dp", "schedule", "num_chunks", "microbatch_size"),
    *("recompute", "sharding", "sequence_parallel"),
)  # fmt: skip
NAMED: Mapping[str, tuple[Any, ...]] = {
    "schedule": SCHEDULES, "recompute": RECOMPUTES, "sharding": SHARDINGS, "sequence_parallel": (False, True),
}  # fmt: skip
# Other fields of a plan that may be decided beforehand; the space has one value of each.
HANDED_ON = (
    *("dtype", "master_dtype", "reduction_dtype", "float8", "attention", "software", "overlap"),
)  # fmt: skip
# What software that shards does beside computes where nobody says otherwise.
OVERLAPS: Mapping[str, tuple[str, ...]] = {
    "none": ("reduce",), "zero1": ("reduce", "gather"), "zero3": ("reduce", "gather"),
}  # fmt: skip
WORDS_THAT_FORBID = ("recompute", "sharding", "schedule")  # axes whose values are words of their own


@dataclass(frozen=True, eq=False)
class Space:
    """Candidates as columns of equal length; `schedule`, `recompute`, `sharding` count in `NAMED`.

    `model`, `cluster`, `workload` and `formats` (other fields of a plan) are the same for all.
    """

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    formats: Mapping[str, Any]
    tp: Ints
    cp: Ints
    ep: Ints
    pp: Ints
    dp: Ints
    schedule: Ints
    num_chunks: Ints
    microbatch_size: Ints
    recompute: Ints
    sharding: Ints
    sequence_parallel: Ints

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def num_microbatches(self) -> Ints:
        """Of one pipeline in a step."""
        return self.workload.global_batch // (self.dp * self.microbatch_size)

    @property
    def expert_tp(self) -> Ints:
        """Devices that share one expert's matrices, as `Plan.expert_tp`."""
        return np.where(self.dp * self.cp % self.ep == 0, self.tp, 1)

    def overlap(self, sharding: int) -> tuple[str, ...]:
        """What runs beside computes under this sharding."""
        return tuple(self.formats.get("overlap", OVERLAPS[SHARDINGS[sharding]]))

    def plan(self, number: int) -> Plan:
        """The candidate as a plan."""
        chosen: dict[str, Any] = {name: int(getattr(self, name)[number]) for name in AXES}
        for name, values in NAMED.items():
            chosen[name] = values[chosen[name]]
        overlap = self.overlap(int(self.sharding[number]))
        return Plan.of(
            self.model, self.cluster, self.workload, **{**chosen, **self.formats, "overlap": overlap}
        )

    def taken(self, chosen: Ints | NDArray[np.bool_]) -> Space:
        """The candidates with these numbers, in this order."""
        columns = {name: getattr(self, name)[chosen] for name in AXES}
        whole = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in AXES}
        return Space(**whole, **columns)


def space_of(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    *,
    fix: Mapping[str, Any] | None = None,
    forbid: Sequence[str] = (),
    microbatch_sizes: Sequence[int] = MICROBATCH_SIZES,
) -> Space:
    """All candidates of a model on all devices of a cluster, in a fixed order.

    Args:
        fix: fields of a plan that are decided already: any of `AXES` and `HANDED_ON`.
        forbid: axes that must stay at one ("cp", "interleaved_1f1b") or values that must not be taken ("zero3", "full").
        microbatch_sizes: sequences of a microbatch to try.

    Raises:
        PlanError: an unknown name, something both fixed and forbidden, or no candidate: says which rule leaves none.
    """
    wanted, banned = dict(fix or {}), tuple(forbid)
    _check_names(wanted, banned)
    _check_fixed(model, cluster, workload, wanted)
    sizes = (
        (wanted["microbatch_size"],) if "microbatch_size" in wanted else tuple(sorted(set(microbatch_sizes)))
    )
    rows = [row for row in _rows(model, cluster, workload, sizes, wanted) if _is_wanted(row, wanted, banned)]
    if not rows:
        raise PlanError(
            f"no plan puts a batch of {workload.global_batch} and {model.num_layers} layers on {cluster.num_devices} "
            f"devices with {_words(wanted, banned)}",
            allowed="degrees whose product is the number of devices, dp x microbatch_size that divides the batch, "
            "at most as many stages as layers",
            next="change the batch or the number of devices, or fix and forbid less",
        )
    table = np.array(rows, dtype=np.int64)
    columns = {name: table[:, place] for place, name in enumerate(AXES)}
    formats = {name: value for name, value in wanted.items() if name in HANDED_ON}
    return Space(model, cluster, workload, formats, **columns)


def _words(wanted: Mapping[str, Any], banned: Sequence[str]) -> str:
    said = ", ".join(f"{name}={value}" for name, value in wanted.items() if name in AXES) or "nothing"
    return f"{said} fixed and {', '.join(banned) or 'nothing'} forbidden"


def _check_names(wanted: Mapping[str, Any], banned: Sequence[str]) -> None:
    """Every name is known, and nothing is both asked for and forbidden."""
    for name, value in wanted.items():
        if name not in AXES and name not in HANDED_ON:
            raise PlanError(f"the search has no {name!r} to fix", allowed=", ".join((*AXES, *HANDED_ON)))
        if name in NAMED and value not in NAMED[name]:
            allowed = ", ".join(str(each) for each in NAMED[name])
            raise PlanError(f"{name} is fixed to {value!r}, which the search does not try", allowed=allowed)
        if (
            name in AXES
            and name not in NAMED
            and (isinstance(value, bool) or not isinstance(value, int) or value < 1)
        ):
            raise PlanError(f"{name} is {value!r}", allowed="a whole number from 1")
    known = (*_numbers(), *(value for name in WORDS_THAT_FORBID for value in NAMED[name] if value != "none"))
    for word in banned:
        if word not in known:
            raise PlanError(f"the search has no {word!r} to forbid", allowed=", ".join(known))
        fixed = wanted.get(word, 1) not in (1, False) or word in wanted.values()
        if fixed:
            raise PlanError(
                f"{word} is both fixed and forbidden",
                allowed="each of them for different choices",
                next=f"leave it out of --fix or of --forbid: {_words(wanted, banned)}",
            )


def _numbers() -> tuple[str, ...]:
    """Axes that a word turns off."""
    return ("tp", "cp", "ep", "pp", "dp", "sequence_parallel")


def _check_fixed(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, wanted: Mapping[str, Any]
) -> None:
    """What can be said about fixed degrees before anything is enumerated, in words of its own."""
    taken = [(name, int(wanted[name])) for name in ("pp", "dp", "cp", "tp") if name in wanted]
    product = int(np.prod([degree for _, degree in taken])) if taken else 1
    if cluster.num_devices % product or (len(taken) == len("pdct") and product != cluster.num_devices):
        text = " x ".join(f"{name}({degree})" for name, degree in taken)
        raise PlanError(
            f"{text} = {product} does not divide the {cluster.num_devices} devices of {cluster.name}",
            allowed=f"degrees whose product is {cluster.num_devices}",
        )
    share = int(wanted.get("dp", 1)) * int(wanted.get("microbatch_size", 1))
    if workload.global_batch % share:
        raise PlanError(
            f"global_batch {workload.global_batch} is not a multiple of dp x microbatch_size = {share}",
            allowed="a batch that divides into whole microbatches for every pipeline",
            next="change the batch, or fix other numbers",
        )
    if "tp" in wanted:
        local_sizes(model, int(wanted["tp"]))
    stages = int(wanted.get("pp", 1)) * int(wanted.get("num_chunks", 1))
    if stages > model.num_layers:
        raise PlanError(
            f"{stages} stages for the {model.num_layers} layers of {model.name}",
            allowed="at most as many as layers",
        )


def _rows(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    sizes: Sequence[int],
    wanted: Mapping[str, Any],
) -> Iterator[tuple[int, ...]]:
    """Rows in the order of `AXES`."""
    devices, node = cluster.num_devices, cluster.levels[0].num_devices
    for tp in (wanted["tp"],) if "tp" in wanted else _tensor_degrees(model, min(node, devices)):
        for cp in (wanted["cp"],) if "cp" in wanted else _context_degrees(workload.sequence_length):
            for pp in _divisors(devices // (tp * cp)) if devices % (tp * cp) == 0 else ():
                dp = devices // (tp * cp * pp)
                if pp > model.num_layers or workload.global_batch % dp:
                    continue
                for ep in _expert_degrees(model, dp, cp, tp, wanted.get("ep")):
                    yield from _choices(model, workload, (tp, cp, ep, pp, dp), sizes)


def _choices(
    model: ModelSpec, workload: Workload, degrees: tuple[int, ...], sizes: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    """Everything that is chosen on given degrees."""
    tp, _, _, pp, dp = degrees
    for chunks in _chunks(model.num_layers, pp):
        for size in sizes:
            if workload.global_batch % (dp * size):
                continue
            for recompute in range(len(RECOMPUTES)):
                for sharding, name in enumerate(SHARDINGS):
                    if (name == "zero3" and pp > 1) or (name != "none" and degrees[1] * dp == 1):
                        continue
                    for parallel in (0, 1) if tp > 1 else (0,):
                        yield (*degrees, int(chunks > 1), chunks, size, recompute, sharding, parallel)


def _chunks(num_layers: int, pp: int) -> list[int]:
    """Chunks a device: those that divide the layers of a stage; of stages that differ, all that leave no stage empty."""
    if pp == 1:
        return [1]
    most = min(MAX_CHUNKS, num_layers // pp)
    is_even = num_layers % pp == 0
    return [v for v in range(1, most + 1) if not is_even or (num_layers // pp) % v == 0]


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def _tensor_degrees(model: ModelSpec, most: int) -> list[int]:
    """Degrees within a node that divide what tensor parallelism divides."""
    found = []
    for degree in _divisors(most):
        try:
            local_sizes(model, degree)
        except SpecError:
            continue
        found.append(degree)
    return found


def _context_degrees(sequence_length: int) -> list[int]:
    """Powers of two that leave every device enough tokens."""
    degrees = [1]
    while (
        sequence_length % (2 * degrees[-1]) == 0
        and sequence_length // (2 * degrees[-1]) >= LEAST_TOKENS_OF_CP
    ):
        degrees.append(2 * degrees[-1])
    return degrees


def _expert_degrees(model: ModelSpec, dp: int, cp: int, tp: int, wanted: int | None) -> list[int]:
    """Degrees along devices of dp x cp, from the inside out; one that is asked for may also go along tp."""
    if not model.num_experts:
        return [1] if wanted in (None, 1) else []
    if wanted is None:
        return [d for d in _divisors(model.num_experts) if dp * cp % d == 0 and (d == 1 or d % cp == 0)]
    inside = cp if dp * cp % wanted == 0 else cp * tp
    is_whole = model.num_experts % wanted == 0 and dp * cp * tp % wanted == 0
    return [wanted] if is_whole and (wanted == 1 or wanted % inside == 0) else []


def _is_wanted(row: tuple[int, ...], wanted: Mapping[str, Any], banned: Sequence[str]) -> bool:
    for place, name in enumerate(AXES):
        value = NAMED[name][row[place]] if name in NAMED else row[place]
        if name in wanted and value != wanted[name]:
            return False
        if value in banned or (name in banned and value not in (1, False)):
            return False
    return True
