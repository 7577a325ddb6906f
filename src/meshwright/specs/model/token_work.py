"""What one token costs a model: the parameters it uses, and the FLOPs that training spends on it."""

from __future__ import annotations

from meshwright.specs.model.adaptation import adapted_train_flops
from meshwright.specs.model.block import BlockSpec, attended_pairs
from meshwright.specs.model.parameter import Parameter, block_parameters, num_parameters
from meshwright.specs.model.shape import ModelShape

# One multiply and one add forward, twice that backward (input and weight gradient).
TRAIN_FLOPS_PER_MATMUL_PARAMETER = 6


def num_active_parameters(model: ModelShape) -> int:
    """Parameters that one token uses: of the experts those it goes to; in a dense model all of them."""
    inactive = sum(
        count * (parameter.num_elements - _num_active(block, parameter))
        for first, block, count in model.runs()
        for parameter in block_parameters(model, first)
    )
    return num_parameters(model) - inactive


def num_matmul_parameters(model: ModelShape) -> int:
    """Parameters that one token meets in a matrix product: of the blocks' matrices and the vocabulary head."""
    blocks = sum(
        count * _num_active(block, parameter)
        for first, block, count in model.runs()
        for parameter in block_parameters(model, first)
        if parameter.is_matmul
    )
    return blocks + model.num_head_parameters


def _num_active(block: BlockSpec, parameter: Parameter) -> int:
    """Elements one token uses; a tensor of experts has them in its first dimension."""
    if not (parameter.is_expert and block.experts):
        return parameter.num_elements
    return parameter.num_elements // block.experts.num_experts * block.experts.num_experts_per_token


def _seen_pairs(block: BlockSpec, num_tokens: int) -> float:
    """Pairs of a query and a key that it sees, of the tokens of one sequence that go through a block: an encoder's see all, a
    decoder's those before them, and behind an encoder all of that."""
    if block.half == "encoder":
        return float(num_tokens * num_tokens)
    crossed = num_tokens * num_tokens if block.half == "decoder" else 0
    return attended_pairs(num_tokens, block.attention.window) + crossed


def train_flops_per_token(model: ModelShape, sequence_length: int | None = None) -> float:
    """Model FLOPs (forward and backward, no recompute) that training spends on one token.

    6 per active parameter of a matrix product (the embedding lookup is no product); with `sequence_length`
    S also causal attention: for each block a product of 2 * query_size and one of 2 * result_size FLOPs
    with each key, of which a query sees (S + 1) / 2 on average (fewer through a window), three times for
    the backward. Norms, activations, routing: left out. Of a frozen matrix there is no weight gradient: 4 per
    parameter, also where no gradient passes. A token of an encoder-decoder is in one half of its window, and goes through
    the blocks of that half.
    """
    flops = float(TRAIN_FLOPS_PER_MATMUL_PARAMETER * num_matmul_parameters(model)) / model.num_halves
    if model.is_adapted:
        flops += adapted_train_flops(model)
    if sequence_length is None:
        return flops
    keys = sum(
        count
        * (block.attention.query_size + block.attention.result_size)
        * _seen_pairs(block, sequence_length // model.num_halves)
        / sequence_length
        for block, count in model.blocks
    )
    return flops + TRAIN_FLOPS_PER_MATMUL_PARAMETER * keys
