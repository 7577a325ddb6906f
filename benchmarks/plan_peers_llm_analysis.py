"""llm-analysis (github.com/cli99/llm-analysis) beside us, from a folder with its sources. It evaluates, and has no search.

What is taken of it: one call of its training analysis for each candidate, its objects made anew as a user's loop does.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from plan_peers_job import MICROBATCH_SIZES, MIXED, PEERS_AXES, PlanJob, peer_modules, rates

from meshwright.specs import Cluster, Workload
from meshwright.specs.model.model import ModelSpec

NUM_DEVICES, BATCH, SEQUENCE, VOCABULARY = 64, 512, 2048, 50_272
MODEL, GPU, FORMATS = "facebook_opt-175b", "a100-sxm-80gb", "w16a16e16"
CHUNK_S = 0.5  # of the peer's evaluations in one of the pairs
# Of its five kinds of recomputation the two that we have as well, beside none, and ZeRO 0 to 3.
AXES = {key: value for key, value in PEERS_AXES.items() if key not in ("sharding", "schedule")}


def rate_pairs(folder: Path) -> list[tuple[float, float, float]]:
    """Its evaluations/s on a grid of degrees, microbatches, ZeRO stages and recomputation, beside our closed form."""
    model = ModelSpec.gpt(
        96, 12288, 96, vocabulary_size=VOCABULARY, max_sequence_length=SEQUENCE, name="opt-175b", source=MODEL
    )
    cluster, work = Cluster(f"{NUM_DEVICES}xA100-80"), Workload(BATCH, SEQUENCE)
    axes = {**AXES, "schedule": ("1f1b",)}
    job = PlanJob("opt-175b on 64", model, cluster, work, MIXED, axes, MICROBATCH_SIZES)
    with peer_modules(folder):
        from llm_analysis.analysis import (  # type: ignore[import-not-found]
            ActivationRecomputation,
            DSZeRO,
            LLMAnalysis,
        )
        from llm_analysis.config import (  # type: ignore[import-not-found]
            ParallelismConfig,
            get_dtype_config_by_name,
            get_gpu_config_by_name,
            get_model_config_by_name,
        )

        given = (
            get_model_config_by_name(MODEL),
            get_gpu_config_by_name(GPU),
            get_dtype_config_by_name(FORMATS),
        )
        kinds = (
            ActivationRecomputation.NONE,
            ActivationRecomputation.ATTN_COMPUTE,
            ActivationRecomputation.FULL,
        )
        degrees = [(tp, pp) for tp, pp in itertools.product((1, 2, 4, 8), repeat=2) if tp * pp <= NUM_DEVICES]
        grid = itertools.cycle(itertools.product(degrees, (1, 2, 4, 8), DSZeRO, kinds))

        def chunk() -> tuple[int, float]:
            begin, number = time.process_time(), 0
            while time.process_time() - begin < CHUNK_S:
                (tp, pp), size, zero, kind = next(grid)
                dp = NUM_DEVICES // (tp * pp)
                parallel = ParallelismConfig(tp_size=tp, pp_size=pp, dp_size=dp)
                LLMAnalysis(*given, parallel).training(
                    batch_size_per_gpu=size, gradient_accumulation_steps=BATCH // (dp * size), ds_zero=zero,
                    activation_recomputation=kind, total_num_tokens=BATCH * SEQUENCE,
                )  # fmt: skip
                number += 1
            return number, time.process_time() - begin

        return rates(job, chunk)
