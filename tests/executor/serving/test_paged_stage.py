"""A stage of a served model: what of the model a tensor-parallel rank holds and computes is its share, in closed form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.executor.serving.paged_case import FAMILIES, their_model
from tests.executor.serving.scattered_blocks import ScatteredBlocks, prompt
from torch.utils.flop_counter import FlopCounterMode

from meshwright.executor.serving.paged_stage import PagedStage, StagePlace
from meshwright.executor.serving.parallel.rank_place import RankPlace
from meshwright.executor.serving.runner_options import RunnerOptions, block_bytes
from meshwright.executor.serving.served_model import ServedModel, open_served
from meshwright.executor.serving.torch_runner import TorchRunner
from meshwright.specs.model.model import ModelSpec

OPTIONS = RunnerOptions(dtype="float32", block_tokens=4, num_blocks=32, max_model_tokens=64)
FLOAT_BYTES = 4


def stage_of(served: ServedModel, tp: int) -> PagedStage:
    """The last rank's of so many; nothing is summed."""
    model = served.model
    shard = RankPlace(model, tp, 1, tp - 1).shard
    place = StagePlace(range(model.num_layers), shard, lambda term: term)
    with torch.inference_mode():
        return PagedStage(served, place, OPTIONS)


def counted_flops(stage: PagedStage, runner: TorchRunner, lengths: tuple[int, ...]) -> int:
    """Of one step with prompts of these lengths."""
    work = [(f"{n}", prompt(n, n)) for n in lengths]
    step = stage.packed(ScatteredBlocks(runner).inputs(work))
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        stage.forward(step)
    return counter.get_total_flops()


def expected_flops(model: ModelSpec, tp: int, lengths: tuple[int, ...]) -> int:
    """Two for every number of a matrix and token, head rows of the last tokens only. torch counts no attention on the CPU:
    that a rank has its share of the heads is in the bytes of its pages."""
    attention, inner, hidden = model.attention, model.intermediate_size, model.hidden_size
    matrices = hidden * (attention.qkv_size + attention.result_size + 3 * inner)
    head = len(lengths) * hidden * -(-model.vocabulary_size // tp)
    return 2 * (model.num_layers * sum(lengths) * matrices // tp + head)


def expected_bytes(model: ModelSpec, tp: int) -> int:
    """Of tables and matrices a share; norms, and routers of experts, are on every rank."""
    tables = 2 * -(-model.vocabulary_size // tp) * model.hidden_size
    norms = (2 * model.num_layers + 1) * model.hidden_size
    routers = model.num_layers * model.num_experts * model.hidden_size
    matrices = model.num_parameters - 2 * model.vocabulary_size * model.hidden_size - norms - routers
    return FLOAT_BYTES * (matrices // tp + tables + norms + routers)


@pytest.mark.parametrize("tp", [1, 2])
def test_a_rank_has_its_part_of_every_expert(tp: int, tmp_path: Path) -> None:
    their_model(FAMILIES["mixtral"], tmp_path)
    served = open_served(tmp_path)
    assert served.model.num_experts and stage_of(served, tp).num_weight_bytes == expected_bytes(
        served.model, tp
    )


@pytest.mark.parametrize("tp", [1, 2])
def test_a_rank_computes_and_holds_its_share(tp: int, tmp_path: Path) -> None:
    their_model(FAMILIES["llama"], tmp_path)
    served = open_served(tmp_path)
    stage, model, lengths = stage_of(served, tp), served.model, (7, 12)
    assert counted_flops(stage, TorchRunner(served, OPTIONS), lengths) == expected_flops(model, tp, lengths)
    assert stage.num_weight_bytes == expected_bytes(model, tp)
    pages = 2 * model.num_layers * 32 * 4 * model.attention.key_size // tp
    assert stage.blocks.pages.nbytes == FLOAT_BYTES * pages


@pytest.mark.parametrize("tp", [1, 2])
def test_pages_hold_the_latent_of_a_token_once_on_every_rank(tp: int, tmp_path: Path) -> None:
    """Numbers of a latent and those that turn, of all heads: keys and values of four heads would be 4 x (12 + 12)."""
    their_model(FAMILIES["deepseek_v3"], tmp_path)
    served = open_served(tmp_path)
    stage, width = stage_of(served, tp), 16 + 4
    assert stage.blocks.pages.shape == (1, served.model.num_layers, 32, 4, 1, width)
    bytes_of_block = served.model.num_layers * 4 * width * FLOAT_BYTES
    assert block_bytes(served.model, replace(OPTIONS, tp=tp)) == bytes_of_block
    assert stage.blocks.pages.nbytes == 32 * bytes_of_block


def test_stages_have_every_layer_once() -> None:
    model = ModelSpec.decoder(7, 32, 4)
    found = [RankPlace(model, 2, 3, rank) for rank in range(6)]
    assert [each.layers for each in found[::2]] == [range(3), range(3, 5), range(5, 7)]
    assert [each.layers for each in found[1::2]] == [each.layers for each in found[::2]]
    assert [each.has_embedding for each in found] == [True, True] + [False] * 4
    assert [each.has_head for each in found] == [False] * 4 + [True, True]
    assert found[3].tensor_team == ((2, 3), "tp")
    assert {team for team in found[0].teams() if ">" in team[1]} == {
        ((rank, rank + 2), f"{rank}>{rank + 2}") for rank in range(4)
    }
