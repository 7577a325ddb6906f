"""Calculon (Isaev et al., SC 2023; github.com/calculon-ai/calculon) beside us, from a folder with its sources.

What is taken of it: its models and systems, its optimal-execution search with the early end over microbatches that its
page shows (`-m`), and its model of one execution. Its debug records are off: writing them takes three quarters of its time.
Its second memory is off: plans here move nothing to the host's memory. It counts neither vocabulary nor embedding; the
models here have Megatron's 51,200 words, with which it counts parameters.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plan_peers_job import (
    MIXED,
    PEERS_AXES,
    Found,
    PlanJob,
    divisors,
    is_fitting,
    peer_modules,
    rates,
    with_memory,
)

from meshwright.specs import Cluster, Workload
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan

SYSTEM = "a100_80g"
VOCABULARY = 51_200
SEED = 0
ALL_OF_A_CELL = 10_000  # more than a cell has
CHUNK_S = 1.0  # of the peer's evaluations in one of the pairs
# Models and sizes of its own validation (Korthikanti et al., arXiv 2205.05198), and one model of its folder.
SIZES = (("megatron-22B", 8, 4), ("turing-530B", 280, 280), ("megatron-1T", 512, 512))
LONG_SIZES = (("gpt3-175B", 64, 64),)
RATE_SIZE = ("gpt3-175B", 64, 512)
RECOMPUTES = {"none": "none", "attn_only": "selective", "full": "full"}
# Samples/s of the best execution of a cell, its number, the execution, and the cell.
Ranked = tuple[float, int, dict[str, Any], tuple[Any, ...]]
COMMUNICATIONS = ("ar", "p2p_rs_ag", "rs_ag")


def jobs(folder: Path, is_long: bool) -> list[PlanJob]:
    """Its jobs in our terms: unfused attention with dropout, tensor parallelism that can overlap, both as it has them."""
    return [_job(folder, *size) for size in (*SIZES, *(LONG_SIZES if is_long else ()))]


def _job(folder: Path, name: str, num_devices: int, batch: int) -> PlanJob:
    size = json.loads((folder / "models" / f"{name}.json").read_text())
    model = ModelSpec.gpt(
        size["num_blocks"], size["hidden"], size["attn_heads"], vocabulary_size=VOCABULARY,
        max_sequence_length=size["seq_size"], name=name, source=f"Calculon, models/{name}.json",
    )  # fmt: skip
    fix = {**MIXED, "attention": "unfused_dropout", "overlap": ("reduce", "gather", "tp")}
    memory_bytes = int(_system(folder)["mem1"]["GiB"] * 2**30)
    cluster, work = (
        with_memory(Cluster(f"{num_devices}xA100-80"), memory_bytes),
        Workload(batch, size["seq_size"]),
    )
    return PlanJob(f"{name} on {num_devices}", model, cluster, work, fix, PEERS_AXES, divisors(batch))


def _loaded(folder: Path, name: str) -> tuple[Any, Any]:
    """Its application and system."""
    from calculon.llm.llm import Llm  # type: ignore[import-not-found]
    from calculon.system import System  # type: ignore[import-not-found]

    return Llm.Application(json.loads((folder / "models" / f"{name}.json").read_text())), System(
        _system(folder)
    )


def _system(folder: Path) -> dict[str, Any]:
    """Its file of the system, without the second memory."""
    system: dict[str, Any] = json.loads((folder / "systems" / f"{SYSTEM}.json").read_text())
    system["mem2"]["GiB"] = 0
    return system


def _cells(app: Any, system: Any, num_devices: int, batch: int, has_break: bool) -> Iterator[tuple[Any, ...]]:
    """Arguments of its search, one tuple for each cell of the outer loop of its command."""
    from calculon.llm.llm import Llm
    from calculon.llm.optimal_execution import OptimalExecution  # type: ignore[import-not-found]

    for tp in Llm.get_all_tensor_parallelisms(num_devices, app.hidden, app.attn_heads):
        for pp in Llm.get_all_pipeline_parallelisms(num_devices, tp, app.num_blocks):
            dp = Llm.get_data_parallelism(num_devices, tp, pp)
            own = OptimalExecution.get_batch_size(dp, batch)
            chunks = Llm.get_valid_pipeline_interleavings(app.num_blocks, pp) if own else ()
            shardings = (True, False) if dp > 1 else (False,)
            for each in itertools.product(chunks, RECOMPUTES, shardings, COMMUNICATIONS):
                first = (False, 1, False, num_devices, batch, "float16", app, system, tp, pp, dp)
                yield (*first, each[0], own, *each[1:], (True,), has_break, True, True)


def peer_search(folder: Path, job: PlanJob) -> Found:
    """Its whole search in one process, with the early end."""
    with peer_modules(folder):
        from calculon.llm.optimal_execution import OptimalExecution

        app, system = _loaded(folder, job.model.name)
        batch = job.workload.global_batch
        ranked: list[Ranked] = []
        begin, number = time.process_time(), 0
        for cell in _cells(app, system, job.cluster.num_devices, batch, True):
            own, evaluated, *_ = OptimalExecution.search(*cell)
            number += evaluated
            ranked += [(own[0][0], len(ranked), own[0][1], cell)] if own else []
        ranked.sort(reverse=True)
        core_s = time.process_time() - begin
        if not ranked:
            return Found(None, core_s, number)
        rate, _, execution, _ = ranked[0]
        plan = _plan(job, execution)
        fitting = None if is_fitting(plan, job.cluster) else _fitting(job, ranked)
    return Found(plan, core_s, number, own_s=execution["batch_size"] / rate, fitting=fitting)


def _fitting(job: PlanJob, ranked: list[Ranked]) -> Plan | None:
    """Its fastest plan that fits by our estimate: cells by their best, each again with all that it found, until the next
    cell's best is slower than one that fits."""
    from calculon.llm.optimal_execution import OptimalExecution

    best, chosen, known = 0.0, None, dict[Plan, bool]()
    for rate, _, _, cell in ranked:
        if rate <= best:
            break
        for own, execution, _ in OptimalExecution.search(cell[0], ALL_OF_A_CELL, *cell[2:])[0]:
            plan = _plan(job, execution)
            if own > best and known.setdefault(plan, is_fitting(plan, job.cluster)):
                best, chosen = own, plan
    return chosen


def _plan(job: PlanJob, found: dict[str, Any]) -> Plan:
    """Its execution as our plan; all that its model takes for granted is in the job."""
    tp, chunks = found["tensor_par"], found["pipeline_interleaving"]
    # inside a node is what it puts on its first network
    is_pipeline_inside = found["pipeline_par_net"] == 0 and found["data_par_net"] == 1
    return Plan.of(
        job.model, job.cluster, job.workload, tp=tp, pp=found["pipeline_par"], dp=found["data_par"],
        schedule="interleaved_1f1b" if chunks > 1 else "1f1b", num_chunks=chunks,
        microbatch_size=found["microbatch_size"], recompute=RECOMPUTES[found["activation_recompute"]],
        sharding="zero1" if found["optimizer_sharding"] else "none",
        sequence_parallel=tp > 1 and found["tensor_par_comm_type"] == "rs_ag",
        mesh_order=("dp", "pp", "cp", "tp") if is_pipeline_inside else ("pp", "dp", "cp", "tp"), **job.fix,
    )  # fmt: skip


def peer_judges(folder: Path, job: PlanJob, plan: Plan) -> float | None:
    """Seconds of a plan of ours by its model, at its own best choice of what our plan leaves open (networks, overlap, kind
    of exchange); None where it cannot say it, or where it finds that it does not fit."""
    if plan.cp > 1 or plan.sharding not in ("none", "zero1") or plan.schedule not in PEERS_AXES["schedule"]:
        return None
    with peer_modules(folder):
        app, system = _loaded(folder, job.model.name)
        found = [_run(app, system, each) for each in _executions(plan)]
    return min((seconds for seconds in found if seconds is not None), default=None)


def _executions(plan: Plan) -> Iterator[dict[str, Any]]:
    kinds = COMMUNICATIONS[2:] if plan.sequence_parallel else COMMUNICATIONS[:2]
    names = {ours: theirs for theirs, ours in RECOMPUTES.items()}
    overlaps = ("none", "ring", "pipe") if plan.tp > 1 else ("none",)
    for kind, overlap, redo, beside in itertools.product(kinds, overlaps, (False, True), (False, True)):
        if redo and (kind != "rs_ag" or plan.recompute == "full") or beside and plan.dp == 1:
            continue
        for tensor, pipeline, data in itertools.product((0, 1), repeat=3):
            yield {
                "num_procs": plan.num_devices, "tensor_par": plan.tp, "pipeline_par": plan.pp, "data_par": plan.dp,
                "tensor_par_net": tensor, "pipeline_par_net": pipeline, "data_par_net": data,
                "batch_size": plan.workload.global_batch, "microbatch_size": plan.microbatch_size,
                "datatype": "float16", "fused_activation": True, "attention_type": "multihead",
                "activation_recompute": names[plan.recompute], "pipeline_interleaving": plan.num_chunks,
                "optimizer_sharding": plan.sharding == "zero1", "tensor_par_comm_type": kind,
                "tensor_par_overlap": overlap, "seq_par_ag_redo": redo, "data_par_overlap": beside,
                "weight_offload": False, "activations_offload": False, "optimizer_offload": False, "training": True,
            }  # fmt: skip


def _run(app: Any, system: Any, execution: dict[str, Any]) -> float | None:
    """Seconds of one step by its model; None where it refuses."""
    import logging

    from calculon.llm.llm import Llm

    model = Llm(app, logging.getLogger("calculon"))
    try:
        model.compile(system, Llm.Execution.from_json(execution))
        model.run(system)
    except Llm.Error:
        return None
    return float(execution["batch_size"] / model.get_stats_json(False)["sample_rate"])


def rate_pairs(folder: Path) -> list[tuple[float, float, float]]:
    """Its candidates/s in cells of its search drawn at random, beside our closed form on a space of the same kind."""
    job = _job(folder, *RATE_SIZE)
    with peer_modules(folder):
        from calculon.llm.optimal_execution import OptimalExecution

        app, system = _loaded(folder, job.model.name)
        cells = list(_cells(app, system, job.cluster.num_devices, job.workload.global_batch, False))
        random.Random(SEED).shuffle(cells)
        rest = iter(cells)

        def chunk() -> tuple[int, float]:
            begin, number = time.process_time(), 0
            while time.process_time() - begin < CHUNK_S:
                number += OptimalExecution.search(*next(rest))[1]
            return number, time.process_time() - begin

        return rates(job, chunk)
