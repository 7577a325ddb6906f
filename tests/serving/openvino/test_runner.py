"""The OpenVINO runner computes what transformers does, for every family, however a scheduler cuts and moves sequences."""

# ruff: noqa: E402  what follows needs OpenVINO

from __future__ import annotations

import gc
import random
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

pytest.importorskip("openvino", reason="the extra serve-cpu is not installed")

from tests.serving.openvino.drawn_schedule import DrawnSchedule, prompts_by
from tests.serving.openvino.step import Piece, logits_of, step_inputs
from tests.serving.openvino.tiny_models import FAMILIES, VOCABULARY, TinyModel, tiny_model
from tests.serving.stored.packing import quantised

from meshwright.serving.openvino.runner import OpenVinoOptions, OpenVinoRunner
from meshwright.specs.error import ExecutionError, SpecError

FLOAT32_ROUNDING = 2e-4  # of logits whose standard deviation is about 2.4: sums of other order
EXACT = OpenVinoOptions(precision="float32", num_blocks=48, num_host_blocks=8, num_threads=1)
NUM_NEW = 16


@pytest.fixture(scope="module", params=FAMILIES)
def served(request, tmp_path_factory) -> tuple[TinyModel, OpenVinoRunner]:
    model = tiny_model(tmp_path_factory.mktemp(request.param), request.param)
    return model, OpenVinoRunner(model.folder, EXACT)


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> tuple[TinyModel, OpenVinoRunner]:
    model = tiny_model(tmp_path_factory.mktemp("llama"), "llama")
    return model, OpenVinoRunner(model.folder, EXACT)


def drawn(count: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count).tolist()


def check_greedy(model: TinyModel, runner: OpenVinoRunner, count: int, seed: int) -> dict[str, int]:
    """Every token behind every prompt is the one that transformers finds best behind what stands before it."""
    dice = random.Random(seed)
    schedule = DrawnSchedule(runner, NUM_NEW, dice)
    outputs = schedule.outputs(prompts_by(dice, count, VOCABULARY))
    assert len(outputs) == count and all(len(tokens) == NUM_NEW for tokens in outputs.values())
    sequences = [[*prompt, *tokens] for prompt, tokens in outputs.items()]
    for logits, (prompt, tokens) in zip(model.all_logits(sequences), outputs.items()):
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == tokens
    return schedule.happened


def test_packed_prompts_have_the_logits_of_transformers_at_every_token(served) -> None:
    model, runner = served
    first, second = drawn(100), drawn(45, seed=2)
    found = logits_of(runner, Piece(first, 0, [7, 3, 30, 11]), Piece(second, 0, [20, 21]), all_rows=True)
    expected = np.concatenate(model.all_logits([first, second]))
    assert expected.std() > 0.5
    np.testing.assert_allclose(found, expected, rtol=0, atol=FLOAT32_ROUNDING)


def test_greedy_tokens_are_those_of_transformers_whatever_the_scheduler_does(served) -> None:
    happened = check_greedy(*served, count=12, seed=5)
    assert min(happened.values()) > 0, happened


@pytest.mark.slow
def test_two_hundred_prompts_have_the_greedy_tokens_of_transformers(served) -> None:
    happened = check_greedy(*served, count=200, seed=6)
    assert min(happened.values()) > 20, happened


def test_a_model_cut_between_layers_has_the_same_logits(llama) -> None:
    model, whole = llama
    cut = OpenVinoRunner(model.folder, OpenVinoOptions("float32", num_blocks=8, num_threads=1, num_stages=2))
    pieces = Piece(drawn(50), 0, [5, 2]), Piece(drawn(30, seed=2), 0, [1])
    np.testing.assert_array_equal(
        logits_of(cut, *pieces, all_rows=True), logits_of(whole, *pieces, all_rows=True)
    )


def test_one_sequence_has_the_same_logits_alone_and_among_others(llama) -> None:
    _, runner = llama
    one, other = Piece(drawn(40), 0, [9, 4]), Piece(drawn(90, seed=2), 0, [1, 2, 3])
    together = logits_of(runner, other, one)[1]
    np.testing.assert_allclose(logits_of(runner, one)[0], together, rtol=0, atol=1e-5)
    step, beside = Piece([5], 40, [9, 4]), Piece([6], 90, [1, 2, 3])
    np.testing.assert_allclose(
        logits_of(runner, step)[0], logits_of(runner, beside, step)[1], rtol=0, atol=1e-5
    )


def test_a_step_that_asks_for_nothing_fills_blocks_and_returns_no_row(llama) -> None:
    model, runner = llama
    tokens, blocks = drawn(60), [13, 14]
    inputs = step_inputs([Piece(tokens[:40], 0, blocks)], runner.block_tokens)
    inputs.rows = inputs.rows[:0]
    assert runner.forward(inputs).shape == (0, VOCABULARY)
    found = logits_of(runner, Piece(tokens[40:], 40, blocks))
    np.testing.assert_allclose(found[0], model.logits(tokens)[-1], rtol=0, atol=FLOAT32_ROUNDING)


def test_a_step_is_prepared_and_its_tokens_written_while_another_waits_or_its_logits_are_read(llama) -> None:
    """Of three steps two lie beside each other at any time, of different lengths."""
    model, runner = llama
    prompts = [drawn(40), drawn(25, seed=2), drawn(70, seed=3)]
    blocks = [[20, 21], [22], [23, 24, 25]]
    given = [
        step_inputs([Piece([0] * len(tokens), 0, held)], runner.block_tokens)
        for tokens, held in zip(prompts, blocks)
    ]
    first, second = (runner.prepare(inputs) for inputs in given[:2])
    for inputs in given[:2]:
        for array in (inputs.positions, inputs.block_ids, inputs.token_ids):
            array[...] = 0  # they are the runner's own now
    second.token_ids[...], first.token_ids[...] = prompts[1], prompts[0]
    logits = [first.logits(), second.logits()]
    expected = [model.logits(tokens)[-1] for tokens in prompts]
    for found, right in zip(logits, expected):
        np.testing.assert_allclose(found[0], right, rtol=0, atol=FLOAT32_ROUNDING)
    third = runner.prepare(given[2])
    third.token_ids[...] = prompts[2]
    last = third.logits()
    np.testing.assert_allclose(logits[1][0], expected[1], rtol=0, atol=FLOAT32_ROUNDING)
    np.testing.assert_allclose(last[0], expected[2], rtol=0, atol=FLOAT32_ROUNDING)


def test_a_step_larger_than_all_before_it_is_computed(llama) -> None:
    """Inputs have room for 256 sequences at the start."""
    model, runner = llama
    prompt = drawn(20)
    logits_of(runner, Piece(prompt, 0, [0]))
    many = [Piece([token], 20, [0]) for token in range(300)]
    assert logits_of(runner, *many).shape == (300, VOCABULARY)
    found = logits_of(runner, Piece([7], 20, [0]))[0]
    np.testing.assert_allclose(found, model.logits([*prompt, 7])[-1], rtol=0, atol=FLOAT32_ROUNDING)


def test_moves_come_in_order_and_carry_what_blocks_hold(llama) -> None:
    """Out of block 40, another sequence into it, back into 41; a copy of 41 goes on by itself."""
    model, runner = llama
    tokens, other = drawn(20), drawn(20, seed=2)
    logits_of(runner, Piece(tokens, 0, [40]))
    runner.move_blocks([(40, 3)], [], [])
    logits_of(runner, Piece(other, 0, [40]))
    runner.move_blocks([(40, 4)], [(40, 42)], [(3, 41), (4, 43)])
    for block, prompt in ((41, tokens), (42, other), (43, other)):
        found = logits_of(runner, Piece([5], 20, [block]))[0]
        np.testing.assert_allclose(found, model.logits([*prompt, 5])[-1], rtol=0, atol=FLOAT32_ROUNDING)


def test_weights_in_shards_and_in_bfloat16_are_those_of_the_model(tmp_path) -> None:
    model = tiny_model(tmp_path, "qwen3", torch.bfloat16, shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    runner, tokens = OpenVinoRunner(tmp_path, EXACT), drawn(40)
    found = logits_of(runner, Piece(tokens, 0, [1, 2]), all_rows=True)
    np.testing.assert_allclose(found, model.logits(tokens), rtol=0, atol=FLOAT32_ROUNDING)


def test_adapters_and_folders_of_another_shape_are_refused(llama, tmp_path) -> None:
    model, runner = llama
    inputs = step_inputs([Piece([1], 0, [0])], runner.block_tokens)
    inputs.adapters = [1]
    with pytest.raises(SpecError, match="adapters are not served here"):
        runner.forward(inputs)
    tiny_model(tmp_path, "llama", intermediate_size=96)
    (tmp_path / "config.json").write_text((model.folder / "config.json").read_text())
    with pytest.raises(ExecutionError, match=r"gate_proj.weight is \(96, 64\)"):
        OpenVinoRunner(tmp_path, EXACT)


def test_a_runner_that_is_closed_lets_go_of_its_blocks_and_may_be_closed_again(llama) -> None:
    runner = OpenVinoRunner(llama[0].folder, EXACT)
    blocks = weakref.ref(runner._blocks)
    runner.close()
    gc.collect()
    assert blocks() is None
    runner.close()


@pytest.mark.slow
def test_a_process_that_let_go_of_two_models_still_takes_a_signal(llama) -> None:
    program = f"""if True:
        import signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever began these tests may ignore it
        from meshwright.serving.openvino.runner import OpenVinoOptions, OpenVinoRunner
        options = OpenVinoOptions("float32", num_blocks=4)
        runners = [OpenVinoRunner({str(llama[0].folder)!r}, options) for _ in range(2)]
        while runners:
            runners.pop(0).close()
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise SystemExit(7)"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 7


@pytest.mark.parametrize("name", ["awq", "gptq ordered", "fp8 blocks", "packed int4"])
def test_quantised_weights_are_the_numbers_that_they_mean(name: str, tmp_path) -> None:
    model = tiny_model(tmp_path / "made", "llama")
    packed, plain = quantised(model.folder, name, tmp_path)
    tokens = drawn(40)
    runners = [OpenVinoRunner(folder, EXACT) for folder in (packed, plain)]
    found, expected = (logits_of(runner, Piece(tokens, 0, [5, 3, 9]), all_rows=True)[0] for runner in runners)
    np.testing.assert_array_equal(found, expected)
