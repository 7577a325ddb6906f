"""What stages of a program keep: the executor's decoder as it counts itself, stacks on GPUs as the memory estimate does."""

import pytest
from tests.lowering.plans import DENSE, EXPERTS, SEQUENCE, lowered, plan

from meshwright.prediction.memory_estimate import ACTIVATIONS, estimate_memory
from meshwright.schedules import registered
from meshwright.specs import Cluster
from meshwright.specs.plan.plan import GATHERED
from meshwright.stage.piece import as_executed, num_pieces, piece_layers
from meshwright.stage.saved.block import block_saved
from meshwright.stage.saved.saved import (
    pending_bytes_per_token,
    pending_gradient_bytes_per_token,
    saved_bytes_per_token,
)
from meshwright.stage.saved.size import is_own_decoder, kept_bytes_per_token, local_pending_bytes_per_token

OWN = {"dtype": "float32", "master_dtype": "", "reduction_dtype": ""}
HALF, FLOAT32 = 2, 4
LOGITS = DENSE.vocabulary_size


def kept(chosen, stage=0):
    return kept_bytes_per_token(chosen, chosen.stages()[stage])


@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_plans_of_the_executor_keep_what_its_decoder_keeps(model, recompute):
    chosen = plan(model, pp=2, dp=2, recompute=recompute, **OWN)
    assert is_own_decoder(chosen)
    for layers in chosen.stages():
        assert kept_bytes_per_token(chosen, layers) == saved_bytes_per_token(model, layers)
        # between I and W: the inputs of all that has parameters, and their output gradients; nothing else that F kept
        left = pending_bytes_per_token(model, layers)
        both = kept_bytes_per_token(chosen, layers) + local_pending_bytes_per_token(chosen, layers)
        assert (
            both
            == left
            < saved_bytes_per_token(model, layers) + pending_gradient_bytes_per_token(model, layers)
        )


def test_stacks_on_gpus_are_not_known_tensor_by_tensor():
    chosen = plan(DENSE, pp=2)
    for layers in chosen.stages():
        pending = pending_gradient_bytes_per_token(DENSE, layers, chosen.dtype)
        assert local_pending_bytes_per_token(chosen, layers) == pending


@pytest.mark.parametrize(
    "choices",
    [{}, {"tp": 2}, {"tp": 4, "sequence_parallel": True}, {"cp": 2}, {"recompute": "selective_op"}],
    ids=str,
)
@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_a_microbatch_of_a_stack_is_that_of_the_estimate(model, choices):
    chosen = plan(model, pp=2, **choices)
    assert not is_own_decoder(chosen)
    devices = estimate_memory(chosen, Cluster(chosen.cluster), registered()["1f1b"]).devices
    in_flight = 2  # of four, on the first of two stages
    expected = dict(devices[0].holders)[ACTIVATIONS]
    assert in_flight * kept(chosen) * SEQUENCE == pytest.approx(expected)


@pytest.mark.parametrize("choices", [{"tp": 2}, {"tp": 2, "sequence_parallel": True}, {"dp": 2}], ids=str)
def test_what_processes_run_is_the_decoder_whatever_the_plan_was_made_for(choices):
    chosen = as_executed(plan(DENSE, pp=2, **choices))
    assert is_own_decoder(chosen)
    rows, b = chosen.tp if chosen.sequence_parallel else 1, HALF
    divisors = {"rows": rows, "heads": chosen.tp, "keys": chosen.tp, "inner": chosen.tp}
    block = sum(each.bytes_per_token / divisors[each.division] for each in block_saved(DENSE, chosen.dtype))
    blocks, tokens = chosen.stages()[0].num_blocks, 8
    assert kept(chosen) == blocks * block + tokens
    ends = (
        (2 * DENSE.hidden_size + 1) * b / rows + FLOAT32 * LOGITS / chosen.tp + tokens
    )  # the loss in float32
    assert kept(chosen, 1) == chosen.stages()[1].num_blocks * block + ends


@pytest.mark.parametrize("sharding", ["none", "zero3"])
def test_pieces_keep_what_their_stage_keeps(sharding):
    chosen = plan(dp=2, sharding=sharding, software="eager")
    pieces = piece_layers(chosen.stages(), num_pieces(chosen))
    assert len(pieces) == DENSE.num_layers
    assert sum(kept_bytes_per_token(chosen, layers) for layers in pieces) == pytest.approx(kept(chosen))


def test_logits_wait_for_their_backward_as_the_software_keeps_them():
    sizes = {software: kept(plan(software=software)) for software in ("eager", "eager, fused loss")}
    assert sizes["eager"] - sizes["eager, fused loss"] == (FLOAT32 - HALF) * LOGITS
    first, last = (plan(pp=2, schedule="gpipe", vocabulary=each) for each in ("ends", "interlaced"))
    assert kept(last, 0) - kept(first, 0) == FLOAT32 * LOGITS / 2
    assert kept(first, 1) - kept(last, 1) == FLOAT32 * LOGITS / 2
    passes = plan(pp=2, vocabulary="one_barrier")  # values of their own
    assert kept(passes, 0) == kept(first, 0)
    assert kept(first, 1) - kept(passes, 1) == FLOAT32 * LOGITS


def test_scores_and_masks_are_kept_where_attention_is_written_out():
    """Of a score two bytes, with dropout one for its mask and two behind it; two further masks of a byte a number."""
    flash, scores, dropout = (
        kept(plan(software="fused", attention=each)) for each in ("flash", "unfused", "unfused_dropout")
    )
    pairs, layers = DENSE.num_heads * SEQUENCE, DENSE.num_layers
    assert scores - flash == layers * (2 * pairs - 4 * DENSE.num_heads)
    assert dropout - scores == layers * (3 * pairs + 2 * DENSE.hidden_size)


def test_recompute_makes_again_what_is_kept_without_it():
    assert kept(plan(recompute="full")) == kept(plan()) > kept(plan(recompute="selective_op"))


def test_a_program_has_these_sizes():
    chosen = plan(tp=2, pp=2)
    sizes = {value.kind: value.by_index for value in lowered(chosen, None).tables.value_bytes}
    assert sizes["saved"] == (kept(chosen, 0), kept(chosen, 1))
    assert sizes["pending"][0] == pending_gradient_bytes_per_token(DENSE, chosen.stages()[0], "bfloat16") / 2


@pytest.mark.parametrize("stage", [0, 1])
def test_gathered_inputs_that_are_kept_are_whole(stage):
    """Of two products a block, and of the head, the parts of the other devices; else a device's own part is kept."""
    both = {
        gathered: plan(DENSE, pp=2, tp=4, sequence_parallel=True, gathered=gathered) for gathered in GATHERED
    }
    layers = both["kept"].stages()[stage]
    num_inputs = 2 * layers.num_blocks + layers.has_head
    rest = 3 / 4 * DENSE.hidden_size * HALF
    assert kept(both["kept"], stage) - kept(both["again"], stage) == pytest.approx(num_inputs * rest)
    assert kept(both["kept"].changed(sequence_parallel=False), stage) == kept(
        both["again"].changed(sequence_parallel=False), stage
    )
