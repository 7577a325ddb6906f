"""The runner in one process: logits are transformers' however tokens are packed, cut, placed, shared, copied and swapped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.executor.serving.paged_case import BLOCK_TOKENS, FAMILIES, NUM_BLOCKS, their_logits, their_model
from tests.executor.serving.scattered_blocks import ScatteredBlocks, greedy, prompt

from meshwright.executor.serving.page import paged_attention
from meshwright.executor.serving.runner_options import BLOCK_TOKENS as BLOCK_TOKENS_OF_USERS
from meshwright.executor.serving.runner_options import MOST_SEQUENCES, RunnerOptions, block_bytes
from meshwright.executor.serving.served_model import open_served
from meshwright.executor.serving.torch_runner import TorchRunner, completed
from meshwright.specs.error import ExecutionError, SpecError

TOLERANCE = 1e-4  # of logits in float32
OPTIONS = RunnerOptions(
    dtype="float32", block_tokens=BLOCK_TOKENS, num_blocks=NUM_BLOCKS, num_host_blocks=16, num_threads=1
)

Case = tuple[Any, TorchRunner]  # their model and ours


@pytest.fixture(scope="module", params=FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("model")
    theirs = their_model(FAMILIES[request.param], folder)
    runner = TorchRunner(open_served(folder), OPTIONS)
    yield theirs, runner
    runner.close()


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_packed_prompts(case: Case) -> None:
    theirs, runner = case
    prompts = {"a": prompt(37, 1), "b": prompt(1, 2), "c": prompt(16, 3)}
    expected = np.concatenate([their_logits(theirs, tokens) for tokens in prompts.values()])
    assert expected.std() > 0.1  # a model of zeros would agree, too
    close(ScatteredBlocks(runner).step(*prompts.items(), all_rows=True), expected)


def test_chunks_beside_decodes(case: Case) -> None:
    """A prompt in chunks of 13, 1, 2 and 14, while another sequence decodes and a third is prefilled."""
    theirs, runner = case
    long, short, late = prompt(30, 4), prompt(12, 5), prompt(9, 6)
    blocks = ScatteredBlocks(runner, 1)
    steps = [
        {"long": (0, 13), "short": (0, 9)},
        {"short": (9, 10), "long": (13, 14)},
        {"short": (10, 11), "late": (0, 9), "long": (14, 16)},
        {"long": (16, 30), "short": (11, 12)},
    ]
    tokens = {"long": long, "short": short, "late": late}
    for step in steps:
        found = blocks.step(*((name, tokens[name][low:high]) for name, (low, high) in step.items()))
        close(found, [their_logits(theirs, tokens[name][:high])[-1] for name, (_, high) in step.items()])


def test_a_step_that_is_cut_is_the_whole_step(case: Case) -> None:
    """Decodes and chunks beside each other, cut between sequences and within a chunk, in two to four parts: the same logits,
    and the same keys and values for the step behind it. Rows are asked for in any order."""
    _, runner = case
    tokens = {name: prompt(40, seed) for seed, name in enumerate("abcd")}
    first = [("a", tokens["a"][:11]), ("b", tokens["b"][:6]), ("c", tokens["c"][:20])]
    mixed = [
        ("a", tokens["a"][11:12]),
        ("b", tokens["b"][6:7]),
        ("c", tokens["c"][20:31]),
        ("d", tokens["d"][:17]),
    ]
    last = [(name, tokens[name][at : at + 1]) for name, at in (("a", 12), ("b", 7), ("c", 31), ("d", 17))]
    whole = ScatteredBlocks(runner, 5)
    expected = [whole.step(*work, all_rows=True) for work in (first, mixed, last)]
    for cuts in ((8,), (1, 5, 13, 22), (2, 13), (0, 30, 99)):
        cut = ScatteredBlocks(runner, 6)
        for work, logits in zip((first, mixed, last), expected, strict=True):
            inputs = cut.inputs(work, all_rows=True)
            inputs.rows = np.random.default_rng(7).permutation(inputs.rows)
            found = runner.forward_cut(inputs, cuts)
            np.testing.assert_allclose(found, logits[inputs.rows], rtol=0, atol=1e-5 * logits.std())
            for name, own in work:
                cut.lengths[name] += len(own)


def test_shared_prefix_and_fork(case: Case) -> None:
    """Two readers of the same full blocks, and a copy of a partly filled one, which then differ."""
    theirs, runner = case
    head, one, other = prompt(2 * BLOCK_TOKENS + 3, 7), prompt(5, 8), prompt(6, 9)
    blocks = ScatteredBlocks(runner, 2)
    blocks.step(("one", head))
    blocks.fork("one", "other")
    assert blocks.tables["one"][:2] == blocks.tables["other"][:2]
    found = blocks.step(("one", one), ("other", other))
    close(found, [their_logits(theirs, head + one)[-1], their_logits(theirs, head + other)[-1]])


def test_swap(case: Case) -> None:
    """Blocks go to the host, are overwritten, and come back to other places."""
    theirs, runner = case
    tokens, rest = prompt(3 * BLOCK_TOKENS - 1, 10), prompt(3, 11)
    blocks = ScatteredBlocks(runner, 3)
    blocks.step(("kept", tokens))
    table = blocks.tables["kept"]
    runner.move_blocks([(block, place) for place, block in enumerate(table, 5)], (), ())
    blocks.free += table
    blocks.step(("other", prompt(5 * BLOCK_TOKENS, 12)))
    assert set(table) <= set(blocks.tables["other"])
    blocks.tables["kept"] = [blocks.free.pop() for _ in table]
    runner.move_blocks((), (), [(place, block) for place, block in enumerate(blocks.tables["kept"], 5)])
    close(blocks.step(("kept", rest)), [their_logits(theirs, tokens + rest)[-1]])


def test_logits_do_not_depend_on_the_batch(case: Case) -> None:
    """A decode alone, and among others that are shorter and longer."""
    _, runner = case
    alone, among = ScatteredBlocks(runner, 4), ScatteredBlocks(runner, 5)
    lengths = {"a": 20, "b": 3, "c": 70, "d": 21, "e": 1}
    prompts = {name: prompt(length, 20 + length) for name, length in lengths.items()}
    found = greedy(among, prompts, 3)
    together = among.step(*((name, [tokens[-1]]) for name, tokens in found.items()))
    for place, name in enumerate(prompts):
        assert greedy(alone, {name: prompts[name]}, 3)[name] == found[name]
        close(alone.step((name, [found[name][-1]]))[0], together[place])


def test_greedy_tokens(case: Case) -> None:
    """Of prompts of all lengths together: transformers' most probable token at every place (shown by teacher forcing)."""
    theirs, runner = case
    prompts = {f"{n}": prompt(n, 30 + n) for n in (1, 4, 5, 13)}
    for name, tokens in greedy(ScatteredBlocks(runner, 6), prompts, 10).items():
        whole = prompts[name] + tokens
        assert their_logits(theirs, whole)[len(prompts[name]) - 1 : -1].argmax(1).tolist() == tokens


@pytest.fixture(scope="module", params=["llama", "mistral"])
def small_tiles(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """Tiles of 5 queries, groups of few decodes, no mask kept."""
    folder = tmp_path_factory.mktemp("model")
    theirs = their_model(FAMILIES[request.param], folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paged_attention, "TILE_TOKENS", 5)
        patch.setattr(paged_attention, "GATHERED_TOKENS", 40)
        patch.setattr(paged_attention, "MASK_NUMBERS", 0)
        yield theirs, TorchRunner(open_served(folder), OPTIONS)


def test_tiles_and_groups(small_tiles: Case) -> None:
    """What a long step is cut into at its limits."""
    theirs, runner = small_tiles
    blocks = ScatteredBlocks(runner, 7)
    prompts = {f"{n}": prompt(n, 50 + n) for n in (3, 7, 11, 12, 30)}
    blocks.step(*prompts.items())
    more = {name: prompt(17 if name == "11" else 1, 9) for name in prompts}
    close(
        blocks.step(*more.items()), [their_logits(theirs, prompts[name] + more[name])[-1] for name in prompts]
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 2e-6), ("bfloat16", 0.15)])
def test_other_formats(dtype: str, tolerance: float, tmp_path: Path) -> None:
    theirs = their_model(FAMILIES["qwen3"], tmp_path)
    runner = TorchRunner(open_served(tmp_path), replace(OPTIONS, dtype=dtype))
    tokens = prompt(30, 1)
    expected = their_logits(theirs.to(getattr(torch, dtype)), tokens)
    found = ScatteredBlocks(runner).step(("a", tokens), all_rows=True)
    assert np.abs(found - expected.float().numpy()).max() < tolerance * float(expected.float().std())


def test_what_is_left_open_is_completed(tmp_path: Path) -> None:
    their_model(FAMILIES["llama"], tmp_path)
    served = open_served(tmp_path)
    found = completed(served, RunnerOptions())
    assert (found.dtype, found.max_model_tokens) == ("float32", 256)
    assert found.num_blocks == MOST_SEQUENCES * 256 // BLOCK_TOKENS_OF_USERS
    assert block_bytes(served.model, found) == 2 * 2 * 2 * 8 * BLOCK_TOKENS_OF_USERS * 4
    with pytest.raises(ExecutionError, match="257; allowed: 1 to 256"):
        completed(served, RunnerOptions(max_model_tokens=257))
    with pytest.raises(ExecutionError, match="ParallelRunner"):
        TorchRunner(served, RunnerOptions(tp=2))
    with pytest.raises(SpecError, match="float16"):
        RunnerOptions(dtype="float16")
    with pytest.raises(SpecError, match="block_tokens=0"):
        RunnerOptions(block_tokens=0)


def test_a_closed_runner_says_so(tmp_path: Path) -> None:
    their_model(FAMILIES["llama"], tmp_path)
    runner = TorchRunner(open_served(tmp_path), OPTIONS)
    runner.close()
    with pytest.raises(ExecutionError, match="closed"):
        ScatteredBlocks(runner).step(("a", [1, 2]))
