"""The passes that a plan may name with options (`Plan.passes`): what each is made of, and where in lowering it stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from meshwright.ir.program import Program
from meshwright.ir.table import Exchange
from meshwright.lowering.memory.offload import OffloadOptimizer
from meshwright.lowering.sharding.canonical import CANONICAL
from meshwright.lowering.sharding.gather import Unshard
from meshwright.lowering.sharding.gradient_norm import ClipGradients, PostValidate
from meshwright.lowering.transfer.receive_place import PlaceReceives
from meshwright.lowering.transfer.stage_edge import (
    ConnectStages,
    LayerEdge,
    encoder_edges,
    parse_edges,
    skip_edges,
)
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import PassOption, Plan
from meshwright.stage.group.value_size import moment_bytes, optimizer_size
from meshwright.stage.mesh import collapsed_axes, shard_axes

Pass = Callable[[Program], Program]
CONNECT, PLACE_RECEIVES = ConnectStages.name, PlaceReceives.name
CLIP, POST_VALIDATE = ClipGradients.name, PostValidate.name
OFFLOAD = OffloadOptimizer.name
UNSHARDED = Unshard.name
DEFAULT_NORM = 1.0  # of GPT-3 and Llama (arXiv 2005.14165, 2302.13971)
# name -> type of each option
OPTIONS: dict[str, dict[str, type]] = {
    CONNECT: {"layer_edges": str, "num_encoder_layers": int},
    PLACE_RECEIVES: {"computes_ahead": int},
    CLIP: {"max_norm": float},
    POST_VALIDATE: {},
    OFFLOAD: {},
    CANONICAL: {},
    UNSHARDED: {"prefetch": int, "keeps_after_forward": bool},
}


def check_passes(plan: Plan) -> None:
    """Every pass is known, named once, and given options that it has.

    Raises PlanError.
    """
    names = [each.name for each in plan.passes]
    if set(names) - set(OPTIONS) or len(set(names)) < len(names):
        raise PlanError(
            f"the plan names passes {names}", allowed=f"{', '.join(OPTIONS)}, each once; others are fields"
        )
    for each in plan.passes:
        _check_options(each)
    if POST_VALIDATE in names and CLIP not in names:
        raise PlanError(f"the plan names {POST_VALIDATE} without {CLIP}", allowed="both, or the latter alone")
    if POST_VALIDATE in names and OFFLOAD in names:
        raise PlanError(
            f"pass {POST_VALIDATE} may take a step back, and {OFFLOAD} has stored its state on the host by then",
            allowed="one of the two",
        )
    _check_sharded(plan, names)
    limit = clip_norm(plan)
    if limit is not None and not limit > 0.0:
        raise PlanError(f"pass {CLIP} is given max_norm = {limit}", allowed="a number above 0")
    if CLIP in names and plan.ep > 1:
        raise PlanError(
            f"pass {CLIP} counts every parameter once, and of experts (ep={plan.ep}) it does not know the copies",
            allowed="ep 1",
        )
    if POST_VALIDATE in names and plan.sharding != "none":
        raise PlanError(
            f"pass {POST_VALIDATE} may take a step back, and sharding={plan.sharding} has gathered it by then",
            allowed="sharding none",
        )


def _check_sharded(plan: Plan, names: Sequence[str]) -> None:
    """Passes that sharded state decides on."""
    if CANONICAL in names and plan.sharding in ("zero2", "zero3"):
        raise PlanError(
            f"pass {CANONICAL} keeps whole gradients of every microbatch, and sharding={plan.sharding} shards them at once",
            allowed="sharding none or zero1",
        )
    if UNSHARDED in names and plan.sharding != "zero3":
        raise PlanError(
            f"pass {UNSHARDED} says how parameters are gathered, and sharding={plan.sharding} keeps them whole",
            allowed="sharding zero3",
        )
    prefetch = (options_of(plan, UNSHARDED) or {}).get("prefetch", 0)
    if prefetch < 0:
        raise PlanError(f"pass {UNSHARDED} is given prefetch = {prefetch}", allowed="0 or more pieces ahead")


def _check_options(given: PassOption) -> None:
    known = OPTIONS[given.name]
    for name, value in given.options.items():
        if type(value) is not known.get(name):
            raise PlanError(
                f"pass {given.name} is given {name} = {value!r}",
                allowed=", ".join(f"{option} ({kind.__name__})" for option, kind in known.items()),
            )


def options_of(plan: Plan, name: str) -> dict[str, Any] | None:
    """Options of a pass; None where the plan does not name it."""
    return next((dict(each.options) for each in plan.passes if each.name == name), None)


def architecture_of(plan: Plan) -> tuple[tuple[LayerEdge, ...], int]:
    """(edges between layers, number of encoder layers) of a plan whose layers are connected beside the path.

    Raises PlanError where it asks for both, or for an encoder-decoder with a tied table, whose third use no plan counts.
    """
    given = options_of(plan, CONNECT) or {}
    edges, num_encoder_layers = parse_edges(given.get("layer_edges", "")), given.get("num_encoder_layers", 0)
    if num_encoder_layers and (edges or plan.model.has_tied_embeddings):
        raise PlanError(
            f"pass {CONNECT} is given num_encoder_layers = {num_encoder_layers}"
            + (" and layer_edges" if edges else ", and the model ties its embeddings"),
            allowed="one of the two, and tables that are not tied",
        )
    return edges, num_encoder_layers


def connect_stages(plan: Plan, pieces: Sequence[int]) -> Pass | None:
    """The pass that adds the plan's edges to a program whose stages are cut into this many pieces, or None."""
    edges, num_encoder_layers = architecture_of(plan)
    if num_encoder_layers:
        found = encoder_edges(num_encoder_layers, plan.layers_per_stage)
    else:
        found = skip_edges(edges, plan.layers_per_stage)
    if not found:
        return None
    ends = list(
        accumulate(pieces)
    )  # an output leaves the last piece of its stage, and enters the first of another
    placed = (e._replace(source=ends[e.source] - 1, target=ends[e.target] - pieces[e.target]) for e in found)
    return ConnectStages(tuple(placed))


def clip_norm(plan: Plan) -> float | None:
    """The largest norm of all gradients that the plan allows (1 where it only says that it clips); None: any."""
    given = options_of(plan, CLIP)
    return None if given is None else float(given.get("max_norm", DEFAULT_NORM))


def step_passes(plan: Plan) -> tuple[Pass, ...]:
    """The passes that change the optimizer's step, as far as the plan asks for them."""
    named = {each.name for each in plan.passes}
    lengths = {axis.name: axis.size for axis in collapsed_axes(plan)}
    divided = tuple(axis for axis in (*shard_axes(plan), "tp") if lengths.get(axis, 1) > 1)
    moved_share = moment_bytes(plan) / optimizer_size(plan).num_bytes
    offload = OffloadOptimizer(moved_share, waits_for_sums=plan.sharding != "none")
    known = (ClipGradients(divided), PostValidate(), offload)
    return tuple(one for one in known if one.name in named)


def unshard(plan: Plan, exchanges: Mapping[int, Exchange]) -> Pass:
    """How parameters that are sharded are gathered."""
    return Unshard(exchanges, **(options_of(plan, UNSHARDED) or {}))


def place_receives(plan: Plan) -> Pass | None:
    """The pass that places receives as the plan asks, or None."""
    given = options_of(plan, PLACE_RECEIVES)
    return None if given is None else PlaceReceives(**given)
