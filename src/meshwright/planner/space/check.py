"""What can be said about fixed and forbidden choices before anything is enumerated, each in words of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from meshwright.planner.space.axis import AXES, HANDED_ON
from meshwright.schedules.order import registered
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.workload import Workload
from meshwright.specs.sequence.context_parallel import INSIDE_ULYSSES, ContextParallel
from meshwright.specs.sequence.sequence_part import SequencePart
from meshwright.stage.operator.layer import local_sizes

WORDS_THAT_FORBID = (
    "recompute",
    "sharding",
    "schedule",
    "layers",
    "mesh_order",
    "context",
    "vocabulary",
)  # values that are words of their own
# Axes that a word turns off: at one, no, or the default.
SWITCHES = (
    "tp",
    "cp",
    "ep",
    "etp",
    "pp",
    "dp",
    "sequence_parallel",
    "recompute_blocks",
    "sharding_degree",
    "token_parts",
    "vocabulary",
)
NOTHING_ELSE = ("none", "even", "ends")  # values that are left where all others are forbidden
FROM_ZERO = ("etp", "recompute_blocks", "sharding_degree")


def words_of(wanted: Mapping[str, Sequence[Any]], banned: Sequence[str]) -> str:
    """What was asked for, for a message."""
    said = ", ".join(f"{name}={'/'.join(map(str, values))}" for name, values in wanted.items())
    return f"{said or 'nothing'} fixed and {', '.join(banned) or 'nothing'} forbidden"


def check_open(fix: Mapping[str, Any], decided: Collection[str]) -> None:
    """A planner of one paper decides these fields itself. Raises PlanError naming those that are fixed all the same."""
    taken = [name for name in decided if name in fix]
    if taken:
        raise PlanError(f"{', '.join(taken)} is decided here", allowed="other fields of a plan")


def check_names(
    wanted: Mapping[str, Sequence[Any]],
    banned: Sequence[str],
    names: Mapping[str, tuple[Any, ...]],
    formats: Mapping[str, Any] | None = None,
) -> None:
    """Every name is known, and nothing is both asked for and forbidden. Raises PlanError."""
    for name, values in wanted.items():
        if name not in AXES:
            raise PlanError(f"the search has no {name!r} to fix", allowed=", ".join((*AXES, *HANDED_ON)))
        for value in values:
            _check_value(name, value, names)
    words = [value for name in WORDS_THAT_FORBID for value in names[name] if value not in NOTHING_ELSE]
    for word in banned:
        if word not in (*SWITCHES, *words):
            raise PlanError(f"the search has no {word!r} to forbid", allowed=", ".join((*SWITCHES, *words)))
        off = (0,) if word in FROM_ZERO else (1, 0, False, *NOTHING_ELSE)
        given = (formats[word],) if formats and word in formats else wanted.get(word, ())
        is_on = any(value not in off for value in given)
        if is_on or any((word,) == tuple(values) for values in wanted.values()):
            raise PlanError(
                f"{word} is both fixed and forbidden",
                allowed="each of them for different choices",
                next=f"leave it out of --fix or of --forbid: {words_of(wanted, banned)}",
            )


def _check_value(name: str, value: Any, names: Mapping[str, tuple[Any, ...]]) -> None:
    if name in names:
        if value not in names[name]:
            allowed = ", ".join(str(each) or "''" for each in names[name])
            if name == "schedule" and value in registered():
                raise PlanError(
                    f"schedule is fixed to {value}, which has every stage on {registered()[value].num_copies} devices: the "
                    f"search counts one copy of parameters and cannot rank it",
                    allowed=allowed,
                    next="write the plan, and `meshwright check` and `simulate` it",
                )
            raise PlanError(f"{name} is fixed to {value!r}, which the search does not try", allowed=allowed)
        return
    least = 0 if name in FROM_ZERO else 1
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PlanError(f"{name} is {value!r}", allowed=f"a whole number from {least}")


def check_degrees(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, wanted: Mapping[str, Sequence[Any]]
) -> None:
    """Fixed degrees divide what they must. Raises PlanError."""
    if model.is_adapted:
        raise PlanError(
            f"{model.name} has frozen parameters, and the search counts gradients and optimizer states of all",
            allowed="models all of which train",
            next="plan for the whole model, then `meshwright simulate PLAN --lora-rank 8`: it counts what trains",
        )
    single = {name: values[0] for name, values in wanted.items() if len(values) == 1}
    taken = [(name, int(single[name])) for name in ("pp", "dp", "cp", "tp") if name in single]
    product = int(np.prod([degree for _, degree in taken])) if taken else 1
    if cluster.num_devices % product or (len(taken) == len("pdct") and product != cluster.num_devices):
        text = " x ".join(f"{name}({degree})" for name, degree in taken)
        raise PlanError(
            f"{text} = {product} does not divide the {cluster.num_devices} devices of {cluster.name}",
            allowed=f"degrees whose product is {cluster.num_devices}",
        )
    share = int(single.get("dp", 1)) * int(single.get("microbatch_size", 1))
    if workload.global_batch % share:
        raise PlanError(
            f"global_batch {workload.global_batch} is not a multiple of dp x microbatch_size = {share}",
            allowed="a batch that divides into whole microbatches for every pipeline",
            next="change the batch, or fix other numbers",
        )
    if "tp" in single:
        local_sizes(model, int(single["tp"]))
    if "cp" in single:
        _check_context(int(single["cp"]), single, workload.sequence_length)
    stages = int(single.get("pp", 1)) * int(single.get("num_chunks", 1))
    if stages > model.num_layers + 2:
        raise PlanError(
            f"{stages} stages for the {model.num_layers} layers of {model.name}",
            allowed="at most as many as layers, and one each for the embedding and the head",
        )


def _check_context(cp: int, single: Mapping[str, Any], sequence_length: int) -> None:
    """Raise PlanError where so many devices cannot share the sequences, in whatever way where none is fixed."""
    layout, ulysses = single.get("token_layout", ""), int(single.get("ulysses", 1))
    if "context" not in single and ulysses == 1:
        SequencePart(sequence_length, cp)
        return
    kind = single.get("context", INSIDE_ULYSSES[0])
    ContextParallel(cp, kind, layout, ulysses).part(sequence_length)
