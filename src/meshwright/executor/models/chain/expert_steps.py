"""Steps of a block whose experts are on several devices: router, experts, what all tokens go through, the sum.

Shapes: B samples, S tokens, s tokens of this device's part of the stream, E hidden size, T tokens of all samples, N rows of
tokens for experts, K experts a token, P devices that sent rows, X experts of one of them, F hidden units and gates; M tokens
of all devices that share sequences, each of which told C numbers of its own.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from meshwright.executor.models.chain.step_data import MicrobatchData, block_of
from meshwright.executor.models.decoder import DecoderStage
from meshwright.executor.models.part.mixture import Choices, MixtureOfExperts
from meshwright.executor.ops.expert.dispatch import by_expert, combine, inverse, reordered
from meshwright.executor.ops.expert.once import returned_once
from meshwright.executor.ops.expert.told_choices import ToldTokens
from meshwright.specs.sequence.sequence_part import SequencePart
from meshwright.stage.chain.chain import ChainStep


def _mixture(stage: DecoderStage, step: ChainStep) -> MixtureOfExperts:
    found = block_of(stage, step.block).mixture
    assert found is not None, "the chain has experts where the model has"
    return found


def router(stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BsE: Tensor) -> tuple[Tensor, ...]:
    """What `dispatch` makes of this device's tokens; or where devices share sequences, what they tell each other before."""
    mixture = _mixture(stage, step)
    own_TE, num_copies = _own_tokens(mixture, data, x_BsE)
    if "chosen" in step.writes:
        return mixture.told(own_TE, _told_tokens(mixture, data, x_BsE), num_copies)
    return _rows(mixture, step, own_TE, mixture.chosen(own_TE, num_copies))


def dispatch(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, x_BsE: Tensor, gates_TK: Tensor, all_chosen_MC: Tensor,
    shares_BX: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Rows of this device's tokens for all experts, with what puts their results together, and how many go to each; or where
    the step writes `choices`, once for all experts of a device. By what all have chosen who share the sequences."""
    mixture = _mixture(stage, step)
    own_TE, num_copies = _own_tokens(mixture, data, x_BsE)
    tokens = _told_tokens(mixture, data, x_BsE)
    agreed = mixture.agreed(gates_TK, all_chosen_MC, shares_BX, tokens, num_copies)
    return _rows(mixture, step, own_TE, agreed)


def _own_tokens(mixture: MixtureOfExperts, data: MicrobatchData, x_BsE: Tensor) -> tuple[Tensor, float]:
    """Tokens whose experts this device looks for, [T, E], and how many devices do."""
    hidden_TE = x_BsE.flatten(0, 1)
    own_TE = hidden_TE[mixture.own_tokens(len(hidden_TE))]
    degree = 1 if mixture.parallel is None else mixture.parallel.team.degree
    return own_TE, degree * len(own_TE) / data.tokens_BS.numel()


def _told_tokens(mixture: MixtureOfExperts, data: MicrobatchData, x_BsE: Tensor) -> ToldTokens:
    """Which tokens of the microbatch's sequences these are."""
    (num_samples, num_tokens), shard = data.tokens_BS.shape, mixture.shard
    part = SequencePart(data.length) if data.part is None else data.part
    assert isinstance(part, SequencePart), "choices of chunks and of packed sequences are not told"
    if x_BsE.shape[1] < num_tokens:
        assert mixture.parallel is not None, "sequence parallelism divides the stream"
        team = mixture.parallel.team
        return ToldTokens(part, num_samples, team.degree, team.number, is_within=True)
    return ToldTokens(part, num_samples, shard.token_degree, shard.token_number)


def _rows(mixture: MixtureOfExperts, step: ChainStep, own_TE: Tensor, choices: Choices) -> tuple[Tensor, ...]:
    if "choices" in step.writes:
        return tuple(mixture.sent_once(own_TE, choices))
    tokens_NE, gates_TK, order_N, counts_X = mixture.dispatched(own_TE, choices)
    shard = mixture.shard
    num_members = shard.near_degree if shard.near_degree > 1 else shard.degree
    return tokens_NE, gates_TK, order_N, counts_X.view(num_members, -1)


def collected(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, near_NE: Tensor, near_counts_PX: Tensor
) -> tuple[Tensor, ...]:
    """What neighbours sent here for this place in all groups of neighbours, sorted by group, then by who sent it."""
    counts_PGX = _of_groups(_mixture(stage, step), near_counts_PX)
    far_counts_GX = counts_PGX.transpose(0, 1).flatten(1).contiguous()
    return reordered(near_NE, by_expert(counts_PGX.sum(2))), far_counts_GX


def spread(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, results_NE: Tensor, near_counts_PX: Tensor
) -> tuple[Tensor, ...]:
    """What came back from all groups, sorted by whose it is."""
    counts_PGX = _of_groups(_mixture(stage, step), near_counts_PX)
    return (reordered(results_NE, inverse(by_expert(counts_PGX.sum(2)))),)


def forwarded(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, far_NF: Tensor, far_choices_NK: Tensor
) -> tuple[Tensor, ...]:
    """Of rows that came once to this group of neighbours, one for each neighbour that has any of their experts."""
    return tuple(_mixture(stage, step).forwarded(far_NF, far_choices_NK))


def summed_rows(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, near_results_NE: Tensor, near_order_TK: Tensor
) -> tuple[Tensor, ...]:
    """What neighbours made of each row that came once, added up before it goes back."""
    return (returned_once(near_results_NE, near_order_TK),)


def _of_groups(mixture: MixtureOfExperts, near_counts_PX: Tensor) -> Tensor:
    """Rows that neighbours sent, by sender, group of neighbours and expert of a device there: [P, G, X]."""
    num_groups = mixture.shard.degree // mixture.shard.near_degree
    return near_counts_PX.view(len(near_counts_PX), num_groups, -1)


def experts(
    stage: DecoderStage, step: ChainStep, data: MicrobatchData, rows_NE: Tensor, beside: Tensor
) -> tuple[Tensor, ...]:
    """What came through the experts here, in the order in which it came; where an expert's matrices are divided, terms of the
    results. `beside` the rows stand counts by device and expert, [P, X], or the choices of each, [N, K], that are here:
    then what comes back is the sum over these."""
    mixture = _mixture(stage, step)
    if step.reads[1].endswith("choices"):
        return (mixture.summed_here(rows_NE, beside),)
    by_device_PX = beside.reshape(-1, len(mixture.expert_down.weight))
    return (mixture.through_experts(rows_NE, by_device_PX),)


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
    *others: Tensor,
) -> tuple[Tensor, ...]:
    """The sum over every token's experts, by `gates` where these have not been summed where they are, in the `order` of the
    rows; and of the shared ones. Zero for tokens that another device looks after."""
    mixture, (num_samples, length) = _mixture(stage, step), data.tokens_BS.shape
    if "gates" in step.reads:
        gates_TK, order_N, *shared_BsE = others
        result_TE = combine(returned_NE, gates_TK, order_N)
    else:
        order_TK, *shared_BsE = others
        result_TE = returned_once(returned_NE, order_TK)
    own = mixture.own_tokens(num_samples * length)
    if mixture.shard.token_degree > 1:
        result_TE = pad(result_TE, (0, 0, own.start, num_samples * length - own.stop))
    result_BsE = result_TE.view(num_samples, -1, result_TE.shape[1])
    return (sum(shared_BsE, result_BsE),)
