"""The steps of a decoder's chain: what a stage's modules compute between two exchanges.

Shapes: B samples, S tokens, s tokens of this device's part of the stream, E hidden size, V vocabulary, T tokens of all
samples, N rows of tokens for experts, K experts a token, P devices that share experts, X experts of one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import pad

from meshwright.executor.models.block import Block
from meshwright.executor.models.decoder import DecoderStage
from meshwright.executor.models.part.mixture import MixtureOfExperts
from meshwright.executor.models.tensor_parallel import (
    exponential_terms,
    largest_logits,
    split_cross_entropy,
)
from meshwright.executor.ops.attention.document_mask import DocumentMask
from meshwright.executor.ops.expert.dispatch import combine
from meshwright.executor.ops.linear import SplitLinear, biased
from meshwright.executor.ops.randomness import SampleKeys
from meshwright.executor.ops.token_cross_entropy import token_cross_entropy
from meshwright.stage.chain.chain import LOSS, ChainStep, Segment


@dataclass(frozen=True)
class MicrobatchData:
    """What steps know of the microbatch besides the values between them: tokens_BS and targets_BS of whole sequences, where
    documents begin, names of dropout's draws, and the weight of one token's loss."""

    tokens_BS: Tensor
    targets_BS: Tensor
    documents: DocumentMask | None
    keys: SampleKeys | None
    token_weight: float

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return self.tokens_BS.shape[1]


StepFunction = Callable[..., tuple[Tensor, ...]]


def run_segment(
    stage: DecoderStage, segment: Segment, data: MicrobatchData, inputs: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """All steps of a segment, from the values that it reads: those that others read, and the loss."""
    values: dict[str, Any] = dict(inputs)
    for step in segment.steps:
        made = STEPS[step.name](stage, step, data, *(values[name] for name in step.reads))
        values.update(zip(step.writes, made, strict=True))
        if LOSS in step.writes:
            return {LOSS: values[LOSS]}
    return {name: values[name] for name in segment.writes}


def _block(stage: DecoderStage, number: int) -> Block:
    found = stage.layers[str(number)]
    assert isinstance(found, Block), "a chain is of plain decoders"
    return found


def embed(stage: DecoderStage, step: ChainStep, data: MicrobatchData) -> tuple[Tensor, ...]:
    """Rows of the tokens that are here: [B, S, E]."""
    assert stage.embedding is not None, "the first stage has it"
    return (stage.embedding(data.tokens_BS),)


def positions(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BsE: Tensor
) -> tuple[Tensor, ...]:
    """With learned positions, where the model has them."""
    return (stage.with_positions(x_BsE, data.documents),)


def same(stage: DecoderStage, step: ChainStep, data: MicrobatchData, x: Tensor) -> tuple[Tensor, ...]:
    """The residual stream as another stage gives or gets it."""
    return (x,)


def add(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, residual_BsE: Tensor, summed_BsE: Tensor
) -> tuple[Tensor, ...]:
    """The result of half a block on the residual stream: the bias behind the sum, dropout, the addition."""
    part, number = step.of
    block = _block(stage, number)
    bias_E = None if part == "mlp" and block.mixture is not None else _last_product(block, part).bias
    whole = summed_BsE if bias_E is None else biased(summed_BsE, bias_E)
    return (residual_BsE + block.dropped(whole, data.keys, part),)


def _last_product(block: Block, part: str) -> SplitLinear:
    found = block.attention_output if part == "attention" else block.down
    assert isinstance(found, SplitLinear), "every matrix has a split backward"
    return found


def attention_norm(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BsE: Tensor
) -> tuple[Tensor, ...]:
    """In front of attention."""
    return (_block(stage, step.block).attention_norm(x_BsE),)


def attention(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BSE: Tensor
) -> tuple[Tensor, ...]:
    """This device's heads of whole sequences: a term of their sum."""
    block = _block(stage, step.block)
    turn = stage.turn(data.length, x_BSE.dtype, x_BSE.device, data.documents)
    return (_last_product(block, "attention").product(block.attended(x_BSE, turn, data.documents)),)


def mlp_norm(stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BsE: Tensor) -> tuple[Tensor, ...]:
    """In front of the MLP."""
    return (_block(stage, step.block).mlp_norm(x_BsE),)


def mlp(stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BSE: Tensor) -> tuple[Tensor, ...]:
    """This device's inner units, of experts too: a term of their sum."""
    block = _block(stage, step.block)
    if block.mixture is not None:
        return (block.mixture(x_BSE),)
    return (_last_product(block, "mlp").product(block.inner(x_BSE)),)


def _mixture(stage: DecoderStage, step: ChainStep) -> MixtureOfExperts:
    found = _block(stage, step.block).mixture
    assert found is not None, "the chain has experts where the model has"
    return found


def router(stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BsE: Tensor) -> tuple[Tensor, ...]:
    """Rows of this device's tokens for all experts, with what puts their results together, and how many go to each."""
    mixture = _mixture(stage, step)
    hidden_TE = x_BsE.flatten(0, 1)
    tokens_NE, gates_TK, order_N, counts_X = mixture.dispatched(hidden_TE[mixture.own_tokens(len(hidden_TE))])
    return tokens_NE, gates_TK, order_N, counts_X.view(mixture.num_devices, -1)


def experts(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, received_NE: Tensor, arrived_PX: Tensor
) -> tuple[Tensor, ...]:
    """What came through the experts here, in the order in which it came."""
    return (_mixture(stage, step).through_experts(received_NE, arrived_PX),)


def shared_experts(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BSE: Tensor
) -> tuple[Tensor, ...]:
    """This device's inner units of the experts that every token goes through: a term of their sum."""
    mixture = _mixture(stage, step)
    assert mixture.shared is not None, "the chain has shared experts where the model has"
    return (mixture.shared_part(x_BSE.flatten(0, 1), mixture.shared).view_as(x_BSE),)


def combine_rows(
    stage: DecoderStage,
    step: ChainStep,
    data: MicrobatchData,
    returned_NE: Tensor,
    gates_TK: Tensor,
    order_N: Tensor,
    *shared_BsE: Tensor,
) -> tuple[Tensor, ...]:
    """The sum over every token's experts, and of the shared ones; zero for tokens that another device looks after."""
    mixture, (num_samples, length) = _mixture(stage, step), data.tokens_BS.shape
    result_TE = combine(returned_NE, gates_TK, order_N)
    own = mixture.own_tokens(num_samples * length)
    if own != slice(None):
        result_TE = pad(result_TE, (0, 0, own.start, num_samples * length - own.stop))
    result_BsE = result_TE.view(num_samples, -1, result_TE.shape[1])
    return (sum(shared_BsE, result_BsE),)


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
    "add": add,
    "attention_norm": attention_norm,
    "attention": attention,
    "mlp_norm": mlp_norm,
    "mlp": mlp,
    "router": router,
    "experts": experts,
    "shared_experts": shared_experts,
    "combine": combine_rows,
    "final_norm": final_norm,
    "head": head,
    "cross_entropy": cross_entropy,
    "exponentials": exponentials,
    "split_cross_entropy": summed_cross_entropy,
}
