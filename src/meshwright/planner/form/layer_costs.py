"""LayerCosts: what every run of a model's blocks takes and holds as the stage of each device of a 1F1B pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.planner.form.cost_table import EMBEDDING, HEAD, CostTables, tables_of
from meshwright.planner.form.memory_form import StateBytes, sharing
from meshwright.planner.space.axis import AXES, HANDED_ON, MESH_ORDERS, SHARDINGS, named
from meshwright.planner.space.space import Space
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.plan.plan import RECOMPUTES, Plan, Recompute

Floats = NDArray[np.float64]
NOTHING = -np.inf  # bytes of a moment that a device does not have


@dataclass(frozen=True, eq=False)
class LayerCosts:
    """Sums over the first blocks, [blocks + 1], and what a stage has besides them, [devices].

    Attributes:
        seconds, again: of one microbatch there and back, and what running blocks again adds.
        held: bytes that are there all the time, of parameters, gradients and the optimizer.
        saved, freed: bytes that one microbatch in flight keeps, and of these what running blocks again frees.
        end_s, end_again, end_saved, end_freed: of embedding, head and messages; the second and fourth where all blocks
            of the stage are run again.
        received_again: seconds as soon as any block is run again.
        in_flight: microbatches.
        fixed, fixed_again: bytes of all else when most microbatches are in flight, without and with a block run again.
        fixed_late: bytes of all else with one microbatch less in flight: the embedding's backward.
    """

    seconds: Floats
    again: Floats
    held: Floats
    saved: Floats
    freed: Floats
    end_s: Floats
    end_again: Floats
    end_saved: Floats
    end_freed: Floats
    received_again: Floats
    in_flight: Floats
    fixed: Floats
    fixed_again: Floats
    fixed_late: Floats

    @property
    def num_layers(self) -> int:
        """Blocks of the model."""
        return len(self.seconds) - 1

    @property
    def num_devices(self) -> int:
        """Of the pipeline."""
        return len(self.end_s)

    def most_saved(self, device: int, room_bytes: float, held: Floats, has_again: bool) -> Floats:
        """Bytes that one microbatch may keep on a device that has `room_bytes`, for stages that hold `held`."""
        fixed = self.fixed_again[device] if has_again else self.fixed[device]
        flying = self.in_flight[device]
        room = (room_bytes - fixed - held) / flying
        late = room_bytes - self.fixed_late[device] - held
        if flying > 1:
            return np.asarray(np.minimum(room, late / (flying - 1)))
        return np.asarray(np.where(late >= 0, room, -np.inf))


def layer_costs(
    plan: Plan, cluster: ClusterSpec, kinds: Sequence[Recompute], *, extrapolate: bool = False
) -> dict[Recompute, LayerCosts]:
    """The costs of a 1F1B plan by the kind of recompute, from the tables of the planner's search.

    Raises PlanError as `tables_of`.
    """
    space = _space(plan, cluster)
    tables = tables_of(space, extrapolate=extrapolate)
    return {kind: _of_kind(plan, space, tables, kind) for kind in kinds}


def _space(plan: Plan, cluster: ClusterSpec) -> Space:
    """The plan with each kind of recompute: row n is that of `RECOMPUTES[n]`, for all blocks."""
    names = named()
    given = {
        "mesh_order": MESH_ORDERS.index("-".join(plan.mesh_order)), "schedule": names["schedule"].index(plan.schedule),
        "layers": 0, "recompute": 0, "recompute_blocks": 0, "sharding": SHARDINGS.index(plan.sharding),
        "float8": names["float8"].index(plan.float8), "context": names["context"].index(plan.context),
        "token_layout": names["token_layout"].index(plan.token_layout),
        "vocabulary": names["vocabulary"].index(plan.vocabulary),
    }  # fmt: skip
    columns = {
        axis: np.full(len(RECOMPUTES), given.get(axis, int(getattr(plan, axis) if axis not in given else 0)))
        for axis in AXES
    }
    columns["recompute"] = np.arange(len(RECOMPUTES))
    formats = {name: getattr(plan, name) for name in HANDED_ON}
    return Space(
        plan.model,
        cluster,
        plan.workload,
        formats,
        names,
        left_out="",
        num_beyond_memory=0,
        open_contexts={},
        **columns,
    )


def _of_kind(plan: Plan, space: Space, tables: CostTables, kind: Recompute) -> LayerCosts:
    row, none = RECOMPUTES.index(kind), 0
    run, no_run = int(tables.run[row]), int(tables.run[none])
    way, no_way = int(tables.way[row]), int(tables.way[none])
    both = tables.forward[no_run] + tables.backward[no_run]
    again = tables.again[run] + tables.backward[run] - tables.backward[no_run]
    freed = tables.saved_whole[way] - tables.saved[way]
    held, fixed = _state_bytes(plan, space, tables)
    received = np.full(plan.pp, float(tables.received[no_run]))
    first, last = np.arange(plan.pp) == 0, np.arange(plan.pp) == plan.pp - 1
    moments = [_moments(plan, tables, each) for each in (no_way, way)]
    late = fixed + tables.table_gradient[no_way] + _messages(plan, tables, no_way)
    return LayerCosts(
        seconds=_summed(tables, both), again=_summed(tables, again), held=_summed(tables, held),
        saved=_summed(tables, tables.saved_whole[way]), freed=_summed(tables, freed),
        end_s=_ends(plan, both) + np.where(first, 0.0, received) + np.where(last, 0.0, received),
        end_again=_ends(plan, again), end_saved=_ends(plan, tables.saved_whole[way]), end_freed=_ends(plan, freed),
        received_again=np.where(first, 0.0, received) * (kind == "full"),
        in_flight=np.minimum(plan.pp - np.arange(plan.pp), plan.num_microbatches).astype(float),
        fixed=fixed + moments[0], fixed_again=fixed + moments[1], fixed_late=np.where(first, late, NOTHING),
    )  # fmt: skip


def _summed(tables: CostTables, of_kind: Floats) -> Floats:
    """Sums over the first blocks, from the values of their kinds."""
    return np.concatenate([[0.0], np.cumsum(tables.counts @ of_kind[:EMBEDDING])])


def _ends(plan: Plan, of_part: Floats) -> Floats:
    """Of embedding and head, on the devices that have them."""
    found = np.zeros(plan.pp)
    found[0] += of_part[EMBEDDING]
    found[-1] += of_part[HEAD]
    return found


def _state_bytes(plan: Plan, space: Space, tables: CostTables) -> tuple[Floats, Floats]:
    """Bytes of parameters, gradients and optimizer of every kind of block (and the ends), and of the devices' ends."""
    rows = np.zeros(1, dtype=np.int64)
    shared, shards = int(sharing(space, rows)[0]), int(tables.expert_shards[tables.group[0]])
    dense, expert = tables.dense[tables.way[0]], tables.expert[tables.way[0]]
    sizes = StateBytes.of(space).state[int(space.sharding[0])]
    whole = sum(size.num_bytes for size in sizes if not size.is_shared)
    divided = sum(size.num_bytes for size in sizes if size.is_shared)
    held = (dense + expert) * whole + (dense / shared + expert / shards) * divided
    ends = _ends(plan, held)
    if plan.model.has_tied_embeddings and plan.pp == 1:
        table = plan.model.vocabulary_size * plan.model.hidden_size / plan.tp
        ends[0] -= table * (whole + divided / shared)
    return held, ends


def _messages(plan: Plan, tables: CostTables, way: int) -> float:
    return float(tables.messages[way]) if plan.pp > 1 else 0.0


def _moments(plan: Plan, tables: CostTables, way: int) -> Floats:
    """Bytes besides state and activations at every device's fullest moment of a backward, or at the loss."""
    gathered = np.full(plan.pp, float(tables.gathered[way]))
    moment = np.full(plan.pp, float(tables.transient[way]))
    for place, end in ((0, 2),) if plan.pp == 1 else ((0, 0), (-1, 1)):
        gathered[place] += tables.ends[way, end]
        moment[place] += tables.ends_reduced[way, end]
    moment[-1] = max(moment[-1], float(tables.loss[way]))
    return np.asarray(gathered + moment + _messages(plan, tables, way))
