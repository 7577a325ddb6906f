"""SimuMax (github.com/MooreThreads/SimuMax) beside us, from a folder with its sources.

What is taken of it: models, the system of A100 GPUs on PCIe, its search for a parallel strategy with the arguments of its
own examples (or, on 64 GPUs, with all that it offers), and its model of one strategy. What it prints goes nowhere.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from plan_peers_job import (
    MICROBATCH_SIZES,
    MIXED,
    PEERS_AXES,
    Found,
    PlanJob,
    is_fitting,
    peer_modules,
    rates,
    with_memory,
)

from meshwright.specs import Cluster, Workload, load_model
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan

SYSTEM, STRATEGY = "a100_pcie", "tp1_pp2_dp4_mbs1"
INSIDE, OUTSIDE = "intra_node_pcie_8x", "inter_node"  # its networks of a node of eight and between nodes
SEQUENCE = 4096  # of its strategy file
PADDED = 128  # its examples pad the vocabulary to a multiple
ALL_RECOMPUTES = ["no_recompute", "full_block", "selective_recompute"]
RATE_SIZE = ("llama3-8b", 64, 256)
# What its search is given: examples/search_strategy_llama3_8b.py; all that it offers; examples/search/llm_search.py.
SMALL: Mapping[str, Any] = {
    "gmi_error": 10, "tp_search_list": [1, 2], "ep_search_list": [1], "pp_search_list": [2],
    "recompute_search_type": ["no_recompute"], "use_reserved_memory": True,
}  # fmt: skip
WIDE: Mapping[str, Any] = {
    "gmi_error": 6,
    "recompute_search_type": ALL_RECOMPUTES,
    "use_reserved_memory": True,
}
EXPERTS: Mapping[str, Any] = {
    "gmi_error": 6, "tp_search_list": [1], "ep_search_list": [8, 16, 32, 64], "use_reserved_memory": False,
    "recompute_search_type": ALL_RECOMPUTES,
}  # fmt: skip
SIZES: tuple[tuple[str, int, int, Mapping[str, Any]], ...] = (
    ("llama3-8b", 8, 32, SMALL), ("llama3-8b", 64, 256, WIDE), ("llama3-70b", 64, 256, WIDE),
    ("deepseekv2", 2048, 16384, EXPERTS),
)  # fmt: skip
LONG_SIZES = (("deepseekv3", 2048, 16384, EXPERTS),)


def jobs(folder: Path, is_long: bool) -> list[PlanJob]:
    """Its jobs in our terms: microbatches of one sequence, 1F1B, the optimizer's state always sharded."""
    return [_job(folder, *size) for size in (*SIZES, *(LONG_SIZES if is_long else ()))]


def _job(folder: Path, name: str, num_devices: int, batch: int, settings: Mapping[str, Any]) -> PlanJob:
    size = json.loads((folder / "configs" / "models" / f"{name}.json").read_text())
    axes = {key: value for key, value in PEERS_AXES.items() if key != "recompute_blocks"}
    axes = {**axes, "schedule": ("1f1b",), "sharding": ("zero1",), "microbatch_size": 1}
    return PlanJob(
        f"{name} on {num_devices}", _model(name, size), _cluster(folder, num_devices), Workload(batch, SEQUENCE),
        MIXED, axes, MICROBATCH_SIZES, {"name": name, **settings},
    )  # fmt: skip


def _model(name: str, size: Mapping[str, Any]) -> ModelSpec:
    """Its dimensions: dense ones as Llama's, those with latent attention as DeepSeek's."""
    vocabulary = -(-size["vocab_size"] // PADDED) * PADDED
    config = {
        "_name_or_path": name, "model_type": "llama", "vocab_size": vocabulary, "hidden_size": size["hidden_size"],
        "intermediate_size": size["intermediate_size"], "num_hidden_layers": size["layer_num"],
        "num_attention_heads": size["head_num"], "num_key_value_heads": size["kv_head_num"],
        "head_dim": size["head_size"], "max_position_embeddings": SEQUENCE, "rms_norm_eps": 1e-5,
        "rope_theta": 1e4, "tie_word_embeddings": False, "hidden_act": "silu", "attention_bias": False,
    }  # fmt: skip
    if size["model_type"] == "dense":
        return load_model(config)
    del config["head_dim"]
    return load_model(
        {
            **config,
            "model_type": "deepseek_v3" if "v3" in name else "deepseek_v2",
            "moe_intermediate_size": size["moe_ffn_hidden_size"],
            "n_routed_experts": size["expert_num"],
            "n_shared_experts": size["moe_shared_expert_intermediate_size"] // size["moe_ffn_hidden_size"],
            "num_experts_per_tok": size["topk"],
            "first_k_dense_replace": size["dense_layers"],
            "moe_layer_freq": 1,
            "kv_lora_rank": size["kv_lora_rank"],
            "q_lora_rank": size["q_lora_rank"],
            "qk_nope_head_dim": size["qk_head_dim"],
            "qk_rope_head_dim": size["qk_pos_emb_head_dim"],
            "v_head_dim": size["v_head_dim"],
        }  # fmt: skip
    )


def _cluster(folder: Path, num_devices: int) -> ClusterSpec:
    """A100 GPUs on the links of its system file."""
    system = json.loads((folder / "configs" / "system" / f"{SYSTEM}.json").read_text())
    made = with_memory(Cluster(f"{num_devices}xA100-80"), system["accelerator"]["mem_gbs"] * 2**30)
    levels = []
    for level, name in zip(made.levels, (INSIDE, OUTSIDE)):
        link = system["networks"][name]["bandwidth"]
        rate, latency = link["gbps"] * 1e9, link["latency_us"] * 1e-6
        levels.append(replace(level, bandwidth_bytes_per_s=rate, latency_s=latency))
    return replace(made, name=f"{num_devices}xA100-80 on PCIe", levels=tuple(levels))


def _performance(folder: Path, job: PlanJob, choices: Mapping[str, Any]) -> Any:
    """Its object of a model on a system, with the strategy of its examples and these choices in it."""
    from simumax.core.config import (  # type: ignore[import-not-found]
        ModelConfig,
        StrategyConfig,
        SystemConfig,
    )
    from simumax.core.perf_llm import PerfLLM  # type: ignore[import-not-found]

    where = folder / "configs"
    strategy = StrategyConfig.read_json_file(str(where / "strategy" / f"{STRATEGY}.json"))
    made = PerfLLM()
    made.configure(
        strategy_config=StrategyConfig.init_from_dict({**strategy, **choices}),
        model_config=ModelConfig.init_from_config_file(
            str(where / "models" / f"{job.settings['name']}.json")
        ),
        system_config=SystemConfig.init_from_config_file(str(where / "system" / f"{SYSTEM}.json")),
    )
    made.model_config.padded_vocab_size = True
    made.model_config.make_vocab_size_divisible_by = PADDED
    if job.model.num_experts:
        made.model_config.moe_pad_expert_input_to_capacity, made.model_config.capacity = True, 1
        made.strategy.dispatch_probs = True
    return made


def peer_search(folder: Path, job: PlanJob) -> Found:
    """Its own search."""
    with peer_modules(folder), tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # it removes ./tmp
        warnings.simplefilter("ignore")
        made = _performance(folder, job, {})
        given = {key: value for key, value in job.settings.items() if key != "name"}
        rows: dict[str, list[Any]] = {}
        begin = time.process_time()
        best = made.search_best_parallel_strategy(
            world_size=job.cluster.num_devices, micro_batch_size=1, global_batch_size=job.workload.global_batch,
            all_search_result=rows, dump_path=None, verbose=False, **given,
        )  # fmt: skip
        core_s = time.process_time() - begin
        os.chdir(folder)
    number = len(rows.get("mfu", ()))
    if not best:
        return Found(None, core_s, number)
    plan, is_bound = _plan(job, best)
    fitting = None if is_bound or is_fitting(plan, job.cluster) else _fitting(job, rows)
    return Found(
        plan, core_s, number, own_s=seconds_of(best["iter_time"]), is_bound=is_bound, fitting=fitting
    )


def _fitting(job: PlanJob, rows: Mapping[str, Sequence[Any]]) -> Plan | None:
    """Its fastest plan that fits by our estimate."""
    found = [dict(zip(rows, row)) for row in zip(*rows.values())]
    found.sort(key=lambda row: -float(row["mfu"]))
    plans = (_plan(job, row) for row in found)
    return next((plan for plan, _ in plans if is_fitting(plan, job.cluster)), None)


def seconds_of(text: str) -> float:
    """ "5.5547 s" or "812.3 ms" in seconds."""
    value, unit = text.split()
    return float(value) * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[unit]


def _plan(job: PlanJob, best: Mapping[str, Any]) -> tuple[Plan, bool]:
    """Its strategy as our plan. Where it runs chosen modules of some layers again, ours runs nothing again: no slower."""
    degrees = {name: int(value) for name, value in re.findall(r"\b([a-z]+)(\d+)\b", best["parallelism"])}
    pp, layers = degrees["pp"], job.model.num_layers
    each = -(-layers // pp)
    counts = (*[each] * (pp - 1), layers - each * (pp - 1))
    again, status = {"recompute": "none"}, best["recompute_status"]
    number = re.search(r"recompute_layer_num=(\d+)", status)
    chosen: dict[str, Any] = dict(again)
    if status.startswith("full_block") and number and int(number[1]):
        chosen["recompute"] = "full"
        if int(number[1]) < each:
            chosen["recompute_blocks"] = tuple(min(int(number[1]), count) for count in counts)
    plan = Plan.of(
        job.model, job.cluster, job.workload, tp=degrees["tp"], ep=degrees["ep"], pp=pp, dp=degrees["dp"],
        layers_per_stage=counts, microbatch_size=degrees["mbs"], sharding="zero1",
        sequence_parallel=degrees["tp"] > 1, **chosen, **job.fix, overlap=("reduce", "gather"),
    )  # fmt: skip
    return plan, status.startswith("selective")


def peer_judges(folder: Path, job: PlanJob, plan: Plan) -> float | None:
    """Seconds of a plan of ours by its model; None where it cannot say it, or where it finds that it does not fit."""
    each = -(-plan.model.num_layers // plan.pp)
    last = plan.model.num_layers - each * (plan.pp - 1)
    blocks = set(plan.recompute_blocks[:-1] or plan.recompute_blocks)
    is_said = (
        plan.layers_per_stage == (*[each] * (plan.pp - 1), last) and plan.sharding == "zero1" and plan.cp == 1
        and plan.recompute in ("none", "full") and len(blocks) < 2 and plan.sequence_parallel == (plan.tp > 1)
    )  # fmt: skip
    if not is_said:
        return None
    with peer_modules(folder), tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        warnings.simplefilter("ignore")
        found = _evaluated(folder, job, _choices(plan, each, last))
        os.chdir(folder)
    return found


def _choices(plan: Plan, each: int, last: int) -> dict[str, Any]:
    is_full = plan.recompute == "full"
    again = plan.recompute_blocks[0] if plan.recompute_blocks else each
    return {
        "world_size": plan.num_devices, "tp_size": plan.tp, "pp_size": plan.pp, "ep_size": plan.ep, "etp_size": 1,
        "micro_batch_size": plan.microbatch_size, "micro_batch_num": plan.num_microbatches,
        "enable_sequence_parallel": True, "enable_recompute": True, "recompute_variance": not is_full,
        "recompute_granularity": "full_block" if is_full else None, "recompute_layer_num": again if is_full else 0,
        "num_layers_in_last_pipeline_stage": last if plan.pp > 1 and last != each else None,
    }  # fmt: skip


def _evaluated(folder: Path, job: PlanJob, choices: Mapping[str, Any]) -> float | None:
    """One evaluation: its object anew, time and memory."""
    made = _performance(folder, job, choices)
    made.run_estimate()
    memory, cost = made.analysis_mem(), made.analysis_cost()
    key = "peak_mem_with_reserved" if job.settings.get("use_reserved_memory") else "peak_mem"
    peak = max(made.get_pp_stage_peak_mem(memory, key, toG=True).values())
    if peak > made.system.accelerator.mem_gbs - job.settings.get("gmi_error", 0):
        return None
    return seconds_of(cost.data["duration_time_per_iter"])


def rate_pairs(folder: Path) -> list[tuple[float, float, float]]:
    """Its evaluations/s on a grid of degrees, beside our closed form on a space of the same kind."""
    job = _job(folder, *RATE_SIZE, WIDE)
    grid = [
        {"world_size": 64, "tp_size": tp, "pp_size": pp, "micro_batch_num": 256 * tp * pp // 64, "enable_recompute": True,
         "recompute_granularity": "full_block" if layers else None, "recompute_layer_num": layers}
        for tp in (1, 2, 4, 8) for pp in (1, 2, 4, 8) for layers in (0, 32 // pp)
    ]  # fmt: skip
    with peer_modules(folder), tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        warnings.simplefilter("ignore")
        rest = itertools.cycle(grid)

        def chunk() -> tuple[int, float]:
            begin = time.process_time()
            for _ in range(len(grid) // 2):
                _evaluated(folder, job, next(rest))
            return len(grid) // 2, time.process_time() - begin

        found = rates(job, chunk)
        os.chdir(folder)
    return found
