"""What every rank computes is the closed form of its share: one that computes more than its part would be seen."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest

from meshwright.executor.job.pool import Pool
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.sequence.context_parallel import ContextParallel
from meshwright.stage.mesh import device_order
from tests.executor.test_expert_layouts import rows_of_samples
from tests.planned_case import BATCH, LLAMA, MIXTRAL_4, Planned
from tests.training_case import SEQUENCE

INTERMEDIATE_SIZE = 96  # of LLAMA's MLPs
PASSES = 3  # a product forward, and two of as many FLOPs for its gradients
PRODUCTS_OF_ATTENTION = 2 + 5  # forward; backward, which makes its scores again


def planned(model: str = "llama", **choices: Any) -> Planned:
    return Planned(model, choices=choices)


def products_of_token(model: ModelSpec) -> float:
    """Numbers of all matrices that every token is multiplied with; those of experts apart."""
    attention, experts = model.layers[0].attention, model.layers[0].experts
    width = (attention.num_heads + 2 * attention.num_kv_heads) * attention.head_dim
    own = model.hidden_size * (width + attention.num_heads * attention.head_dim)
    own += model.hidden_size * (3 * INTERMEDIATE_SIZE if experts is None else experts.num_experts)
    return model.num_layers * own + model.hidden_size * model.vocabulary_size


def of_products(model: ModelSpec, *, tp: int, num_replicas: int) -> float:
    return 2 * PASSES * BATCH * SEQUENCE / num_replicas * products_of_token(model) / tp


def of_pairs(model: ModelSpec, pairs: float, num_parts: int) -> float:
    """Of attention in which every sample has so many pairs of a query and a key, a part of the heads or samples."""
    attention = model.layers[0].attention
    numbers = attention.num_heads * attention.head_dim / num_parts
    return 2 * PRODUCTS_OF_ATTENTION * model.num_layers * BATCH * numbers * pairs


def counted(case: Planned, pool: Pool) -> tuple[dict[str, float], ...]:
    job, plan = case.job(1)
    return pool.run(replace(job, counts_flops=True), places=device_order(plan)).flops


@pytest.mark.slow
def test_one_process_computes_all_of_it(gloo_pool: Pool) -> None:
    whole = of_products(LLAMA, tp=1, num_replicas=1) + of_pairs(LLAMA, SEQUENCE**2, 1)
    (found,) = counted(planned(), gloo_pool)
    assert found == {"products": pytest.approx(whole, rel=0.01)}


# Attention of whole sequences looks at blocks of queries and all their keys, which these short sequences are one of.
WHOLE_SEQUENCES = [
    {"tp": 2, "sequence_parallel": True},
    {"cp": 2, "context": "ulysses"},
    pytest.param({"tp": 2}, marks=pytest.mark.slow),
    pytest.param({"tp": 2, "split_backward": True}, marks=pytest.mark.slow),
    pytest.param({"tp": 2, "dp": 2, "sharding": "zero3"}, marks=pytest.mark.slow),
    pytest.param({"tp": 2, "cp": 2, "context": "ulysses"}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("choices", WHOLE_SEQUENCES, ids=str)
def test_a_rank_computes_its_part_of_every_product(choices: dict[str, Any], gloo_pool: Pool) -> None:
    degrees = {axis: int(choices.get(axis, 1)) for axis in ("tp", "cp", "dp")}
    num_replicas = degrees["cp"] * degrees["dp"]
    expected = of_products(LLAMA, tp=degrees["tp"], num_replicas=num_replicas)
    expected += of_pairs(LLAMA, SEQUENCE**2, prod(degrees.values()))
    found = counted(planned(**choices), gloo_pool)
    assert len(found) == prod(degrees.values())
    for rank in found:
        assert rank == {"products": pytest.approx(expected, rel=0.01)}


@pytest.mark.parametrize(
    "choices",
    [
        {"cp": 2, "context": "ring"},
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in (
                {"cp": 4, "context": "ring"},
                {"cp": 2, "context": "ring", "token_layout": "contiguous"},
                {"cp": 2, "context": "all_gather"},
                {"cp": 2, "tp": 2, "context": "ring"},
                {"cp": 2, "tp": 2, "context": "all_gather", "sequence_parallel": True},
            )
        ),
    ],
    ids=str,
)
def test_a_rank_attends_to_what_its_tokens_see(choices: dict[str, Any], gloo_pool: Pool) -> None:
    cp, tp = choices["cp"], choices.get("tp", 1)
    found = counted(planned(**choices), gloo_pool)
    assert len(found) == cp * tp
    products = of_products(LLAMA, tp=tp, num_replicas=cp)
    pairs = []
    for number, rank in enumerate(found):
        part = ContextParallel(cp, choices["context"], choices.get("token_layout", "")).part(
            SEQUENCE, number // tp
        )
        pairs.append(sum(token + 1 for run in part.runs for token in run))
        attention = of_pairs(LLAMA, pairs[-1], tp)
        assert rank == {
            "products": pytest.approx(products, rel=0.01),
            "attention": pytest.approx(attention, rel=0.01),
        }
    assert sum(pairs) == tp * SEQUENCE * (SEQUENCE + 1) // 2


def test_a_rank_computes_the_rows_of_its_experts(gloo_pool: Pool) -> None:
    degree, experts = 2, MIXTRAL_4.layers[0].experts
    assert experts is not None
    rows = rows_of_samples(MIXTRAL_4).sum((0, 1)).view(degree, -1).sum(1)
    beside = of_products(MIXTRAL_4, tp=1, num_replicas=degree) + of_pairs(MIXTRAL_4, SEQUENCE**2, degree)
    of_row = 2 * PASSES * 3 * MIXTRAL_4.hidden_size * experts.intermediate_size
    found = counted(planned("mixtral of 4", dp=degree, ep=degree), gloo_pool)
    assert int(rows.sum()) == experts.num_experts_per_token * BATCH * SEQUENCE * MIXTRAL_4.num_layers
    for rank, own in zip(found, rows.tolist(), strict=True):
        assert rank == {"products": pytest.approx(beside + own * of_row, rel=0.01)}
