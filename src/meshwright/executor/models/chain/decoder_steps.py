"""The steps of a decoder's chain: what a stage's modules compute between two exchanges.

Shapes: B samples, S tokens, s tokens of this device's part of the stream, E hidden size, V vocabulary, T tokens of all
samples, W width of the queries, keys and values here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from meshwright.executor.models.chain import context_steps as parts
from meshwright.executor.models.chain import encoder_decoder_steps as halves
from meshwright.executor.models.chain import expert_steps
from meshwright.executor.models.chain.step_data import MicrobatchData, block_of, last_product
from meshwright.executor.models.decoder import DecoderStage
from meshwright.executor.models.part.ladder_residual import apart, beside
from meshwright.executor.models.tensor_parallel import (
    exponential_terms,
    largest_logits,
    split_cross_entropy,
)
from meshwright.executor.ops.linear import biased
from meshwright.executor.ops.token_cross_entropy import token_cross_entropy
from meshwright.stage.chain.chain import LOSS, ChainStep, Segment

StepFunction = Callable[..., tuple[Tensor, ...]]


def run_segment(
    stage: DecoderStage,
    segment: Segment,
    data: MicrobatchData,
    inputs: Mapping[str, Tensor | tuple[Tensor, ...]],
) -> dict[str, Tensor]:
    """All steps of a segment, from the values that it reads (of what it has of several token parts, all of them): those that
    others read, and the loss."""
    values: dict[str, Any] = dict(inputs)
    for step in segment.steps:
        made = STEPS[step.name](stage, step, data, *(values[name] for name in step.reads))
        values.update(zip(step.writes, made, strict=True))
        if LOSS in step.writes:
            return {LOSS: values[LOSS]}
    return {name: values[name] for name in segment.writes}


def embed(stage: DecoderStage, step: ChainStep, data: MicrobatchData) -> tuple[Tensor, ...]:
    """Rows of the tokens that are here: [B, S, E]."""
    assert stage.embedding is not None, "the first stage has it"
    return (stage.embedding(data.tokens_BS),)


def positions(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BsE: Tensor
) -> tuple[Tensor, ...]:
    """With learned positions, where the model has them."""
    return (stage.with_positions(x_BsE, data.documents, data.part),)


def same(stage: DecoderStage, step: ChainStep, data: MicrobatchData, x: Tensor) -> tuple[Tensor, ...]:
    """The residual stream as another stage gives or gets it."""
    return (x,)


def take_both(stage: DecoderStage, step: ChainStep, data: MicrobatchData, x: Tensor) -> tuple[Tensor, ...]:
    """Of a ladder residual the stream as another stage gives it, and the result that it lacks."""
    return apart(x)


def give_both(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, residual_BsE: Tensor, *late: Tensor
) -> tuple[Tensor, ...]:
    """The stream and the result that it lacks, which may be behind its bias already, for another stage."""
    results = [_result(stage, step, data, each) if step.of[0] else each for each in late]
    return (beside(residual_BsE, results[0] if results else None),)


def add_carried(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, residual_BsE: Tensor, carried_BsE: Tensor
) -> tuple[Tensor, ...]:
    """The result of a part of the stage before on the residual stream, or a branch's on the others'."""
    return (residual_BsE + carried_BsE,)


def finished(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, summed_BsE: Tensor
) -> tuple[Tensor, ...]:
    """The sum of branches with the bias of one of them."""
    return (_result(stage, step, data, summed_BsE),)


def add(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, residual_BsE: Tensor, summed_BsE: Tensor
) -> tuple[Tensor, ...]:
    """The result of half a block on the residual stream."""
    return (residual_BsE + _result(stage, step, data, summed_BsE),)


def _result(stage: DecoderStage, step: ChainStep, data: MicrobatchData, summed_BsE: Tensor) -> Tensor:
    """Of half a block: the bias behind the sum, dropout."""
    part, number = step.of
    block = block_of(stage, number)
    bias_E = None if part == "mlp" and block.mixture is not None else last_product(block, part).bias
    whole = summed_BsE if bias_E is None else biased(summed_BsE, bias_E)
    return block.dropped(whole, data.keys, part)


def attention_norm(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BsE: Tensor
) -> tuple[Tensor, ...]:
    """In front of attention."""
    return (block_of(stage, step.block).attention_norm(x_BsE),)


def attention(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BSE: Tensor
) -> tuple[Tensor, ...]:
    """This device's heads of whole sequences: a term of their sum."""
    block = block_of(stage, step.block)
    turn = stage.turn(data.length, x_BSE.dtype, x_BSE.device, data.documents)
    return (last_product(block, "attention").product(block.attended(x_BSE, turn, data.documents)),)


def qkv(stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BSE: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values of this device's heads."""
    block = block_of(stage, step.block)
    if block.latent_attention is None:
        return (block.heads(x_BSE),)
    turn = stage.turn(data.length, x_BSE.dtype, x_BSE.device, data.documents)
    assert turn is not None, "latent attention is of families with rotary positions"
    return (block.latent_attention.by_heads(x_BSE, turn),)


def causal_attention(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, qkv_BSW: Tensor
) -> tuple[Tensor, ...]:
    """Attention's core alone: of this device's heads of whole sequences."""
    block = block_of(stage, step.block)
    if block.latent_attention is not None:
        return (block.latent_attention.attend(qkv_BSW, data.documents),)
    turn = stage.turn(data.length, qkv_BSW.dtype, qkv_BSW.device, data.documents)
    return (block.attend(qkv_BSW, turn, data.documents),)


def mlp_norm(stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BsE: Tensor) -> tuple[Tensor, ...]:
    """In front of the MLP."""
    return (block_of(stage, step.block).mlp_norm(x_BsE),)


def mlp(stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BSE: Tensor) -> tuple[Tensor, ...]:
    """This device's inner units, of experts too: a term of their sum."""
    block = block_of(stage, step.block)
    if block.mixture is not None:
        return (block.mixture(x_BSE),)
    return (last_product(block, "mlp").product(block.inner(x_BSE)),)


def gate_up(stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BSE: Tensor) -> tuple[Tensor, ...]:
    """The first product of a dense MLP."""
    return (block_of(stage, step.block).gate_up(x_BSE),)


def down(stage: DecoderStage, step: ChainStep, data: MicrobatchData, inner: Tensor) -> tuple[Tensor, ...]:
    """Its activation and its last product: a term of a sum."""
    block = block_of(stage, step.block)
    return (last_product(block, "mlp").product(block.activated(inner)),)


def final_norm(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BsE: Tensor
) -> tuple[Tensor, ...]:
    """In front of the head."""
    assert stage.final_norm is not None, "the last stage has it"
    return (stage.final_norm(x_BsE),)


def head(stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BSE: Tensor) -> tuple[Tensor, ...]:
    """Logits of the rows here, and where these are not all the largest of each token."""
    assert stage.head is not None, "the last stage has it"
    logits_BSV = stage.head(x_BSE)
    if stage.parallel is None or "largest" not in step.writes:
        return (logits_BSV,)
    return logits_BSV, largest_logits(logits_BSV, stage.parallel.shard)


def cross_entropy(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, logits_BSV: Tensor
) -> tuple[Tensor, ...]:
    """This rank's share of the loss."""
    return (token_cross_entropy(logits_BSV, data.targets_BS, data.token_weight, is_consumed=True),)


def exponentials(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, logits_BSV: Tensor, maximum_T: Tensor
) -> tuple[Tensor, ...]:
    """Terms of the sums that the loss is made of."""
    assert stage.parallel is not None, "where one device has all rows there is nothing to sum"
    return (exponential_terms(logits_BSV, maximum_T, data.targets_BS, stage.parallel.shard),)


def summed_cross_entropy(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, sums_2T: Tensor, maximum_T: Tensor
) -> tuple[Tensor, ...]:
    """This rank's share of the loss, which every device of its group finds."""
    return (split_cross_entropy(sums_2T, maximum_T, data.targets_BS, data.token_weight),)


STEPS: Mapping[str, StepFunction] = {
    "embedding": embed,
    "positions": positions,
    "take": same,
    "give": same,
    "take_both": take_both,
    "give_both": give_both,
    "add_carried": add_carried,
    "add_branch": add_carried,
    "finished": finished,
    "add": add,
    "attention_norm": attention_norm,
    "attention": attention,
    "qkv": qkv,
    "causal_attention": causal_attention,
    "heads": parts.heads,
    "separate_heads": parts.separate_heads,
    "attention_core": parts.attention_core,
    "chunk_attention": parts.chunk_attention,
    "attention_output": parts.attention_output,
    "head_parts": parts.head_parts,
    "attention_of_heads": parts.attention_of_heads,
    "heads_of_group": parts.heads_of_group,
    "tokens_of_group": parts.tokens_of_group,
    "output_of_parts": parts.output_of_parts,
    "mlp_norm": mlp_norm,
    "mlp": mlp,
    "gate_up": gate_up,
    "down": down,
    "router": expert_steps.router,
    "dispatch": expert_steps.dispatch,
    "collected": expert_steps.collected,
    "forwarded": expert_steps.forwarded,
    "experts": expert_steps.experts,
    "spread": expert_steps.spread,
    "summed_rows": expert_steps.summed_rows,
    "shared_experts": expert_steps.shared_experts,
    "combine": expert_steps.combine_rows,
    "encoder_norm": halves.encoder_norm,
    "target_embedding": halves.embed_targets,
    "take_encoded": halves.take_encoded,
    "give_encoded": halves.give_encoded,
    "cross_norm": halves.cross_norm,
    "cross_attention": halves.cross_attention,
    "cross_query": halves.cross_query,
    "cross_key_value": halves.cross_key_value,
    "cross_core": halves.cross_core,
    "cross_output": halves.cross_output,
    "final_norm": final_norm,
    "head": head,
    "cross_entropy": cross_entropy,
    "exponentials": exponentials,
    "split_cross_entropy": summed_cross_entropy,
}
