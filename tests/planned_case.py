"""A small training job given by a plan, run on gloo, and the same in one process of plain torch.

Used by the tests of layouts: tensor, sequence, sharded and pipeline parallelism in one vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import pytest

from meshwright import catalog
from meshwright.executor.capability import check_plan
from meshwright.executor.job.gather import JobResult
from meshwright.executor.job.job import Job
from meshwright.executor.job.pool import Pool
from meshwright.executor.ops.optimizer_step import OptimizerConfig
from meshwright.executor.training.tensor_layout import TensorLayout
from meshwright.executor.training.training_job import RANDOM, TrainingConfig
from meshwright.lowering.lower import lower
from meshwright.lowering.sharding.gradient_norm import clip_norm
from meshwright.lowering.sharding.router_correction import correction_rate
from meshwright.specs.cluster.slowing import Slowing
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.error import MeshwrightError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import PassOption, Plan
from meshwright.specs.plan.workload import Workload
from meshwright.stage.mesh import data_axes, device_order
from meshwright.stage.piece import executed_pieces, piece_layers
from tests.training_case import ADAMW, SEQUENCE, largest_difference, reference

# Four query heads, two of keys and values, a table of an even number of rows: what tp 2 divides.
LLAMA = ModelSpec.decoder(4, 32, 4, num_kv_heads=2, vocabulary_size=34, max_sequence_length=SEQUENCE)
TIED = replace(LLAMA, has_tied_embeddings=True)
QWEN = LLAMA.changed(has_query_key_norm=True)
GPT = ModelSpec.gpt(4, 32, 4, vocabulary_size=34, max_sequence_length=SEQUENCE, name="gpt", source="tests")
DEEP = ModelSpec.decoder(8, 32, 4, num_kv_heads=2, vocabulary_size=34, max_sequence_length=SEQUENCE)
# Five experts, of which some have no token; two dense blocks, and a shared expert with a gate in the others.
_EXPERTS = {"num_experts_per_token": 2, "expert_intermediate_size": 24}
MIXTRAL = LLAMA.changed(architecture="mixtral", num_experts=5, **_EXPERTS)
QWEN_MOE = LLAMA.changed(
    architecture="qwen2_moe", num_experts=6, shared_intermediate_size=20, dense_layers=(0, 2),
    has_qkv_bias=True, **_EXPERTS,
)  # fmt: skip
# Of four and six experts, which two and four devices divide.
MIXTRAL_4 = MIXTRAL.changed(num_experts=4)
QWEN_MOE_4 = QWEN_MOE.changed(num_experts=4)
_LATENT = {
    "num_kv_heads": 4, "head_dim": 10, "key_value_rank": 12, "rotary_head_dim": 4, "value_head_dim": 6,
}  # fmt: skip
LATENT = LLAMA.changed(architecture="deepseek_v2", **_LATENT)
DEEPSEEK = LLAMA.changed(
    architecture="deepseek_v3", num_experts=6, shared_intermediate_size=16, dense_layers=(0,), query_rank=14,
    router_scores="sigmoid", num_expert_groups=3, num_expert_groups_per_token=2, has_router_correction=True,
    gate_scale=2.5, **_EXPERTS, **_LATENT,
)  # fmt: skip
# Of four experts and heads, which four devices may divide in any way.
_FOLDED = {"num_kv_heads": 4, "vocabulary_size": 36}
FOLDED = {
    "folded mixtral": MIXTRAL_4.changed(**_FOLDED),
    "folded qwen moe": QWEN_MOE_4.changed(**_FOLDED, dense_layers=(0,)),
    "folded deepseek": DEEPSEEK.changed(
        **_FOLDED, num_experts=4, num_expert_groups=2, num_expert_groups_per_token=1
    ),
}
WINDOWED = LLAMA.changed(architecture="mistral", sliding_window=3, sliding_layers=(0, 1, 2))
# Sinks of heads, biases of experts and of their router, windows in every second block, scaled positions.
GPT_OSS = LLAMA.changed(
    architecture="gpt_oss", num_experts=4, has_qkv_bias=True, has_output_bias=True, sliding_window=3, sliding_layers=(0, 2),
    rope_scaling="yarn", rope_factor=4.0, rope_low_factor=1.0, rope_high_factor=32.0, rope_original_length=4,
    has_whole_rope_ramp=False, **_EXPERTS,
)  # fmt: skip
PLAIN_HEADS = LLAMA.changed(num_kv_heads=4)  # every query with keys of its own
LADDER = LLAMA.changed(has_ladder_residual=True)
LADDER_GPT = GPT.changed(has_ladder_residual=True)
BRANCHES = LLAMA.changed(has_parallel_branches=True)
BRANCHES_GPT = GPT.changed(has_parallel_branches=True)
# Two blocks of an encoder and two of its decoder; of an encoder of one block and a tied table.
ENCODER = LLAMA.changed(num_encoder_layers=2)
ENCODER_EXPERTS = MIXTRAL.changed(num_encoder_layers=2)
TIED_ENCODER = QWEN.changed(num_encoder_layers=1, has_tied_embeddings=True)
MODELS: Mapping[str, ModelSpec] = {
    "llama": LLAMA, "tied": TIED, "qwen": QWEN, "gpt": GPT, "deep": DEEP, "mixtral": MIXTRAL, "qwen moe": QWEN_MOE,
    "mixtral of 4": MIXTRAL_4, "qwen moe of 4": QWEN_MOE_4, "latent": LATENT, "deepseek": DEEPSEEK, "ladder": LADDER,
    "ladder gpt": LADDER_GPT, "branches": BRANCHES, "branches gpt": BRANCHES_GPT, "encoder": ENCODER,
    "tied encoder": TIED_ENCODER, "encoder experts": ENCODER_EXPERTS, "windowed": WINDOWED, "plain heads": PLAIN_HEADS,
    **FOLDED,
    "gpt oss": GPT_OSS,
}  # fmt: skip
GRADIENTS, AFTER_ADAMW = 1e-10, 1e-8  # DESIGN's tolerances against one process, float64
BATCH = 8
RATE = 0.05  # at which routers are corrected: large, so that choices change within a few steps


@dataclass(frozen=True)
class Planned:
    """One layout: a model by name and the fields of a plan. ``clip``: largest norm, 0 for any."""

    model: str = "llama"
    clip: float = 0.0
    dropout: float = 0.0
    learning_rate: float = ADAMW.learning_rate
    batch: int = BATCH  # samples of a step
    length: int = SEQUENCE  # tokens of a sample
    choices: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.choices.items()]
        words += [f"batch={self.batch}"] * (self.batch != BATCH)
        words += [f"length={self.length}"] * (self.length != SEQUENCE)
        words += [f"clip={self.clip}"] * bool(self.clip) + [f"dropout={self.dropout}"] * bool(self.dropout)
        return "-".join([self.model, *words])

    @property
    def num_devices(self) -> int:
        """Processes that it takes."""
        return prod(int(self.choices.get(axis, 1)) for axis in ("pp", "dp", "cp", "tp"))

    def plan(self) -> Plan:
        """The plan. Raises PlanError where the choices contradict each other."""
        passes = [PassOption("clip_gradients", {"max_norm": self.clip})] if self.clip else []
        given = {"dtype": "float64", **self.choices}
        options = {
            "unshard": {"prefetch": 1, "keeps_after_forward": True},
            "correct_routers": {"rate": RATE},
            "share_choices": {"gates": True},
        }
        passes += [PassOption(name, options.get(name, {})) for name in given.pop("passes", ())]
        cluster = Cluster.detect(self.num_devices)
        workload = Workload(self.batch, self.length)
        return Plan.of(MODELS[self.model], cluster, workload, passes=tuple(passes), **given).placed(cluster)

    def job(self, iterations: int, **fields: Any) -> tuple[Job, Plan]:
        """The job of its program; every gradient of every iteration comes back."""
        plan = self.plan()
        check_plan(plan)
        optimizer = replace(
            ADAMW, name=plan.optimizer, clip_norm=clip_norm(plan), learning_rate=self.learning_rate
        )
        pieces = executed_pieces(plan)
        layers = tuple(piece.num_blocks for piece in piece_layers(plan.stages(), pieces))
        training = TrainingConfig(
            plan.model, layers, self.length, optimizer, dropout=self.dropout, records_gradients=True,
            layout=TensorLayout.of(plan), data_axes=data_axes(plan),
            **({"source": RANDOM, "correction_rate": correction_rate(plan)} | fields),
        )  # fmt: skip
        program = lower(plan, catalog.find_schedule(plan.schedule), pieces=pieces, in_segments=True)
        return Job.of(program, iterations, training=training, dtype=plan.dtype), plan

    def run(self, pool: Pool, iterations: int, slowing: Slowing | None = None, **fields: Any) -> JobResult:
        """What it gives on gloo."""
        job, plan = self.job(iterations, **fields)
        return pool.run(job, places=device_order(plan), slowing=slowing)


def assert_equal_to_one_process(case: Planned, result: JobResult, iterations: int) -> None:
    """Losses, gradient norms, every gradient of the first step and of all, the parameters."""
    name = case.choices.get("optimizer", ADAMW.name)
    optimizer: OptimizerConfig = replace(ADAMW, name=name, clip_norm=case.clip or None)
    expected = reference(case.plan().model, optimizer, case.batch, iterations, length=case.length)
    assert result.losses == pytest.approx(expected.losses, rel=AFTER_ADAMW)
    norms = [it.gradient_norm for it in result.iterations]
    assert norms == pytest.approx(expected.norms, rel=AFTER_ADAMW)
    assert largest_difference(result.gradients[0], expected.gradients[0]) < GRADIENTS
    for ours, theirs in zip(result.gradients, expected.gradients, strict=True):
        assert largest_difference(ours, theirs) < AFTER_ADAMW
    assert largest_difference(result.parameters, expected.parameters) < AFTER_ADAMW


def legal(cases: Iterator[Planned]) -> list[Planned]:
    """Those whose choices make a plan that the executor runs."""
    return [case for case in cases if _is_legal(case)]


def _is_legal(case: Planned) -> bool:
    try:
        plan = case.plan()
        check_plan(plan)
        lower(plan, catalog.find_schedule(plan.schedule))
    except MeshwrightError:
        return False
    return True
