"""Experts divided among ranks: together they add the whole layer, every choice is taken once, weights are its share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.executor.serving.expert_slots import Slots, slots_of
from tests.executor.serving.paged_case import FAMILIES, their_model
from torch import Tensor

from meshwright.executor.layout.tensor_shard import ExpertShard
from meshwright.executor.serving.packed_step import PackedStep
from meshwright.executor.serving.paged_layer import PagedExperts, PagedFeedForward
from meshwright.executor.serving.paged_stage import PagedStage, StagePlace
from meshwright.executor.serving.parallel.rank_place import RankPlace, check_degrees
from meshwright.executor.serving.part.held_experts import HeldExperts
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import ServedModel, open_served
from meshwright.executor.serving.weight.stage_weights import num_held
from meshwright.serving.weight.weight_place import NOTHING_FETCHED
from meshwright.specs.error import PlanError

OPTIONS = RunnerOptions(dtype="float64", block_tokens=4, num_blocks=8, max_model_tokens=64)
TOLERANCE = 1e-12  # of terms in float64, beside values of about 1
FLOAT_BYTES = 8
CPU = torch.device("cpu")
NO_STEP = PackedStep(*(torch.empty(0),) * 4, {}, {})


def stages(served: ServedModel, tp: int, ep: int, slots: Slots = ()) -> list[PagedStage]:
    """Of all ranks; nothing is summed."""
    model = served.model
    places = [RankPlace(model, tp, 1, rank, ep, slots).shard for rank in range(tp)]
    with torch.inference_mode():
        return [
            PagedStage(served, StagePlace(range(model.num_layers), shard, lambda term: term), OPTIONS)
            for shard in places
        ]


def terms(stage: PagedStage, x_TE: Tensor) -> dict[int, Tensor]:
    """What a rank adds in every layer with experts."""
    found = {}
    for number in stage.held:
        part = stage.parts[f"layers.{number}.feed_forward"]
        assert isinstance(part, PagedFeedForward) and isinstance(part.inner, PagedExperts)
        with torch.inference_mode():
            found[number] = part.inner.term(x_TE, NO_STEP)
    return found


def experts_of(name: str) -> bool:
    """Are there experts in a family's model?"""
    return any("experts" in key for key in FAMILIES[name])


CASES = [
    *((name, 2, 2, 0) for name in FAMILIES if experts_of(name)),
    ("gpt_oss", 2, 2, 2), ("deepseek_v3", 2, 2, 4), ("deepseek_v2", 4, 2, 0), ("deepseek_v3", 4, 2, 2),
]  # fmt: skip


@pytest.mark.parametrize(("family", "tp", "ep", "num_copies"), CASES)
def test_terms_of_all_ranks_are_the_layer(
    family: str, tp: int, ep: int, num_copies: int, tmp_path: Path
) -> None:
    """Of 1, 2 and 40 tokens: with few some ranks have no rows."""
    their_model(FAMILIES[family], tmp_path)
    served = open_served(tmp_path)
    slots = slots_of(served.model, ep, num_copies)
    (whole,), ranks = stages(served, 1, 1), stages(served, tp, ep, slots)
    generator = torch.Generator().manual_seed(1)
    for num_tokens in (1, 2, 40):
        x_TE = torch.randn(num_tokens, served.model.hidden_size, generator=generator, dtype=torch.float64)
        expected, found = terms(whole, x_TE), [terms(each, x_TE) for each in ranks]
        for layer, own in expected.items():
            together = torch.stack([each[layer] for each in found]).sum(0)
            torch.testing.assert_close(together, own, rtol=0, atol=TOLERANCE)
            assert own.abs().max() > 0.01
    assert_counted_once(whole, ranks, tp // ep)


def assert_counted_once(whole: PagedStage, ranks: Sequence[PagedStage], num_sharing: int) -> None:
    """Every expert has as many rows on all devices as in one process, and copies of it as many as each other, or one more."""
    for layer, own in whole.held.items():
        by_expert: dict[int, list[int]] = {}
        for stage in ranks[::num_sharing]:
            held = stage.held[layer]
            for expert, rows in zip(held.experts, held.num_rows_S.tolist(), strict=True):
                by_expert.setdefault(expert, []).append(rows)
        assert [sum(by_expert[expert]) for expert in own.experts] == own.num_rows_S.tolist()
        assert all(max(rows) - min(rows) <= 3 for rows in by_expert.values()), "one in each of three steps"


def test_copies_take_turns() -> None:
    """Expert 0 on devices 0 and 1: its rows go to one, then to the other, and those of 1 and 2 to where these stand."""
    slots = ((0, 1, 2, 0),)
    experts_TK = torch.tensor([[0, 2], [0, 1], [1, 0], [0, 2]])
    found = []
    for number in range(2):
        held = HeldExperts(ExpertShard(2, number, slots=slots), 0, 3, CPU)
        local_TK, here_TK = held.slots(experts_TK)
        assert here_TK is not None
        found.append(torch.where(here_TK, local_TK, -1).tolist())
    assert found[0] == [[0, -1], [-1, 1], [1, 0], [-1, -1]]
    assert found[1] == [[-1, 0], [1, -1], [-1, -1], [1, 0]]


@pytest.mark.parametrize(("tp", "ep", "num_copies"), [(2, 2, 0), (2, 2, 2), (4, 2, 0)])
def test_a_rank_has_the_bytes_of_its_share(tp: int, ep: int, num_copies: int, tmp_path: Path) -> None:
    """Whole experts and their biases, of shared ones and attention a part; routers, corrections and norms on every rank."""
    config = {**FAMILIES["deepseek_v2"], "n_shared_experts": 2, "num_attention_heads": 4}
    their_model(config, tmp_path)
    served = open_served(tmp_path)
    model = served.model
    experts = model.layers[1].experts
    assert experts is not None and model.layers[0].experts is None
    shapes = served.names.our_shapes()
    of_expert = 3 * model.hidden_size * experts.intermediate_size
    num_layers = sum(block.experts is not None for block in model.layers)
    of_experts = num_layers * of_expert * experts.num_experts
    others = expected_others(shapes, tp)
    mine = num_layers * of_expert * (experts.num_experts + num_copies) // tp
    slots = slots_of(model, ep, num_copies)
    for stage in stages(served, tp, ep, slots):
        assert stage.num_weight_bytes == FLOAT_BYTES * (others + mine)
    more = num_held(served, NOTHING_FETCHED, None, slots) - num_held(served, NOTHING_FETCHED)
    assert more == of_experts * num_copies // experts.num_experts


def expected_others(shapes: dict[str, tuple[int, ...]], tp: int) -> int:
    """Numbers beside experts: tables and matrices of heads and units divided, all else whole."""
    divided = ("qkv", "attention_output", "widen_key_value", "query", "gate_up", "down")
    found = 0
    for name, shape in shapes.items():
        module = name.removesuffix(".weight").rsplit(".", 1)[-1]
        size = int(np.prod(shape))
        if module in ("embedding", "head"):
            found += -(-shape[0] // tp) * shape[1]
        elif module in divided:
            found += size // tp
        elif not module.startswith("expert_"):
            found += size
    return found


@pytest.mark.parametrize(
    ("family", "tp", "ep", "said"),
    [
        ("llama", 2, 2, "no experts of"), ("mixtral", 2, 4, "ep=4 with tp=2"), ("qwen3_moe", 2, 1, ""),
        ("gpt_oss", 1, 2, "ep=2 with tp=1 and the 6 experts"),
    ],
)  # fmt: skip
def test_degrees_that_give_no_whole_experts_are_refused(
    family: str, tp: int, ep: int, said: str, tmp_path: Path
) -> None:
    their_model(FAMILIES[family], tmp_path)
    model = open_served(tmp_path).model
    if not said:
        return check_degrees(model, tp, 1, ep)
    with pytest.raises(PlanError, match=said):
        check_degrees(model, tp, 1, ep)
    return None
