"""A block's mixture of experts: router, experts, and those that every token goes through.

Shapes: B samples, S tokens, E hidden size, T = B S tokens, X experts,
O outputs, I inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from meshwright.executor.layout.tensor_shard import ExpertShard
from meshwright.executor.models.tensor_parallel import TensorParallel
from meshwright.executor.ops.expert.capacity import RouterCapacity
from meshwright.executor.ops.expert.cosine_router import CosineRouter
from meshwright.executor.ops.expert.dispatch import combine, dispatch
from meshwright.executor.ops.expert.expert_mlp import ExpertBiases, expert_mlp
from meshwright.executor.ops.expert.once import NOT_THERE, RowsOnce, sent_once
from meshwright.executor.ops.expert.router_loss import RouterLoss, shares_of
from meshwright.executor.ops.expert.routing import gates_of
from meshwright.executor.ops.expert.told_choices import ToldTokens, experts_and_gates, told
from meshwright.executor.ops.gated_silu import gated_silu
from meshwright.executor.ops.linear import SplitLinear, linear
from meshwright.specs.model.block import Experts
from meshwright.specs.model.model import ModelSpec


class ExpertMatrices(nn.Module):
    """One matrix of every expert: [X, O, I]; and their biases, [X, O]."""

    def __init__(self, num_experts: int, num_outputs: int, num_inputs: int, has_bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_experts, num_outputs, num_inputs))
        self.bias = nn.Parameter(torch.empty(num_experts, num_outputs)) if has_bias else None


class SharedExpert(nn.Module):
    """The experts that every token goes through, as one gated MLP without biases."""

    def __init__(self, hidden_size: int, inner_size: int) -> None:
        super().__init__()
        self.gate_up = SplitLinear(hidden_size, 2 * inner_size, bias=False)
        self.down = SplitLinear(inner_size, hidden_size, bias=False)

    def forward(self, hidden_TE: Tensor) -> Tensor:
        """[T, E] -> [T, E]."""
        result_TE: Tensor = self.down(gated_silu(self.gate_up(hidden_TE)))
        return result_TE


class Choices(NamedTuple):
    """Gates and experts of every token, [T, K], and which of its choices are kept (None: all)."""

    gates_TK: Tensor
    experts_TK: Tensor
    kept_TK: Tensor | None


class MixtureOfExperts(nn.Module):
    """What a block with experts has in place of an MLP. Every token goes to its experts, none is dropped unless a training
    gives them a `capacity`; `losses` of a training may balance their load. A correction of choices has no gradient: it is
    read with the weights, and a constant unless a training steps it (`RouterCorrections`).

    With `parallel` a device has some experts, of each its part of the inner units (`TensorShard.experts`), and all of the
    router. Results are then parts of a sum, so what multiplies them, gates and router, has on every device a part of its
    gradient. Where other devices share experts than share the matrices of attention, rows come from them: `forward` is then
    cut where they are sent. Which experts of a layer are here is the shard's to say: router, gates, losses and what is
    recorded have experts' own numbers, only rows and matrices are by slot.
    """

    def __init__(
        self, model: ModelSpec, layer: int, experts: Experts, parallel: TensorParallel | None = None
    ) -> None:
        super().__init__()
        hidden, degree = model.hidden_size, 1 if parallel is None else parallel.team.degree
        shard = ExpertShard() if parallel is None else parallel.shard.experts
        inner = experts.intermediate_size // shard.inner_degree
        num_here, shared = experts.num_experts // shard.degree, experts.shared_intermediate_size // degree
        self.experts, self.parallel = experts, parallel
        self.sent_places = shard.sent_places(layer, experts.num_experts)
        self._places_X: dict[torch.device, Tensor] = {}
        self.losses: RouterLoss | None = None
        self.capacity: RouterCapacity | None = None
        self.routing = experts.routing_in(model.architecture)
        has_bias = model.has_expert_bias
        rank, num_experts = self.routing.cosine_rank, experts.num_experts
        self.router: nn.Linear | CosineRouter = (
            CosineRouter(hidden, rank, num_experts) if rank else nn.Linear(hidden, num_experts, bias=has_bias)
        )
        correction_X = torch.zeros(experts.num_experts) if self.routing.has_correction else None
        self.correction = nn.Buffer(correction_X) if correction_X is not None else None
        self.expert_gate_up = ExpertMatrices(num_here, 2 * inner, hidden, has_bias)
        self.expert_down = ExpertMatrices(num_here, hidden, inner, has_bias)
        self.num_terms = experts.intermediate_size // inner  # devices that have a term of an expert's results
        self.shared = SharedExpert(hidden, shared) if shared else None
        self.shared_gate = SplitLinear(hidden, 1, bias=False) if model.has_shared_gate else None
        self.listeners: list[Callable[[Tensor], None]] = []  # are told every choice of experts_TK

    @property
    def shard(self) -> ExpertShard:
        """Which experts are here, and which tokens are looked after."""
        return ExpertShard() if self.parallel is None else self.parallel.shard.experts

    def own_tokens(self, num_tokens: int) -> slice:
        """Of tokens that all devices of a tensor-parallel group have, those whose experts this one looks for."""
        number, degree = self.shard.token_number, self.shard.token_degree
        return slice(num_tokens * number // degree, num_tokens * (number + 1) // degree)

    def forward(self, x_BSE: Tensor) -> Tensor:
        """[B, S, E] -> [B, S, E]; with `parallel` a term of the sum over its devices."""
        hidden_TE = x_BSE.flatten(0, 1)
        result_TE = self.routed(hidden_TE)
        if self.shared is not None:
            result_TE = result_TE + self.shared_part(hidden_TE, self.shared)
        return result_TE.view_as(x_BSE)

    def routed(self, hidden_TE: Tensor) -> Tensor:
        """The sum over every token's own experts."""
        num_copies = 1 if self.parallel is None else self.parallel.team.degree
        tokens_NE, gates_TK, order_N, counts_X = self.dispatched(
            hidden_TE, self.chosen(hidden_TE, num_copies)
        )
        return combine(self.through_experts(tokens_NE, counts_X), gates_TK, order_N)

    def dispatched(self, hidden_TE: Tensor, choices: Choices) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rows [N, E] of tokens sorted by expert (`ExpertShard.sent_places`), of all experts; gates [T, K], the rows' order
        [N], rows of each [X], in that order."""
        gates_TK, experts_TK, kept_TK = choices
        num_experts = self.experts.num_experts
        tokens_NE, order_N, counts_X = dispatch(hidden_TE, self._sent(experts_TK), num_experts, kept_TK)
        return tokens_NE, gates_TK, order_N, counts_X

    def chosen(self, hidden_TE: Tensor, num_copies: float = 1) -> Choices:
        """What the router makes of tokens of whole sequences. ``num_copies``: devices that have these tokens."""
        gates_TK, experts_TK, logits_TX = self._scored(hidden_TE)
        if self.losses is not None:
            gates_TK = self.losses.attached(gates_TK, logits_TX, experts_TK, self._is_sigmoid, num_copies)
        kept_TK = None
        if self.capacity is not None:
            kept_TK = self.capacity.kept(gates_TK, experts_TK, self.experts.num_experts, num_copies)
        return Choices(gates_TK, experts_TK, kept_TK)

    def told(self, hidden_TE: Tensor, tokens: ToldTokens, num_copies: float) -> tuple[Tensor, Tensor, Tensor]:
        """Of ``tokens`` that are here: gates [T, K], what is told to who has others of their sequences, [T, F], and of every
        sequence the experts' shares of the scores here, [B, X]."""
        gates_TK, experts_TK, logits_TX = self._scored(hidden_TE)
        shares_BX = logits_TX.new_zeros(tokens.num_samples, self.experts.num_experts)
        if self.losses is not None:
            gates_TK = self.losses.with_size(gates_TK, logits_TX, num_copies)
            shares_BX = tokens.sums(shares_of(logits_TX, self._is_sigmoid))
        known = told(experts_TK) if self.capacity is None else self.capacity.told(gates_TK, experts_TK)
        return gates_TK, known, shares_BX

    def agreed(
        self, gates_TK: Tensor, all_MF: Tensor, shares_BX: Tensor, tokens: ToldTokens, num_copies: float
    ) -> Choices:
        """As `chosen`, of what all devices that share the sequences have told; ``tokens``: those that are here."""
        num_chosen, num_experts = gates_TK.shape[1], self.experts.num_experts
        of_all_TK, _ = experts_and_gates(tokens.sequences(all_MF), num_chosen)
        if self.losses is not None:
            gates_TK = self.losses.with_balance(gates_TK, shares_BX, of_all_TK, num_copies)
        kept_TK = None
        if self.capacity is not None:
            kept_TK = self.capacity.kept_of_told(all_MF, tokens, num_chosen, num_experts, num_copies)
        return Choices(gates_TK, tokens.own(of_all_TK), kept_TK)

    def _scored(self, hidden_TE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gates and experts of every token, [T, K], and the logits of all, [T, X]."""
        experts, routing = self.experts, self.routing
        logits_TX = self._logits(hidden_TE)
        gates_TK, experts_TK = gates_of(
            logits_TX, experts.num_experts_per_token, routing, self.correction, hidden_TE.dtype
        )
        for listener in self.listeners:
            listener(experts_TK)
        return gates_TK, experts_TK, logits_TX

    def _logits(self, hidden_TE: Tensor) -> Tensor:
        if isinstance(self.router, CosineRouter):
            logits_TX: Tensor = self.router(hidden_TE)
            return logits_TX
        return linear(hidden_TE, self.router.weight, self.router.bias)

    @property
    def _is_sigmoid(self) -> bool:
        return self.routing.scores == "sigmoid"

    def sent_once(self, hidden_TE: Tensor, choices: Choices) -> RowsOnce:
        """Every token once for each device, or where they are sent in two levels each group of neighbours, that has any of
        its experts; as of `dispatched`."""
        gates_TK, experts_TK, kept_TK = choices
        choices_TK = self._sent(experts_TK)
        choices_TK = choices_TK if kept_TK is None else choices_TK.masked_fill(~kept_TK, NOT_THERE)
        wide_TF = torch.cat((hidden_TE, gates_TK), 1)
        num_targets = (
            self.shard.degree // self.shard.near_degree if self.shard.near_degree > 1 else self.shard.degree
        )
        return sent_once(wide_TF, choices_TK, num_targets, self.experts.num_experts // num_targets)

    def forwarded(self, wide_NF: Tensor, choices_NK: Tensor) -> RowsOnce:
        """What came to this group of neighbours, to those of them that have its experts."""
        return sent_once(wide_NF, choices_NK, self.shard.near_degree, len(self.expert_down.weight))

    def summed_here(self, wide_NF: Tensor, choices_NK: Tensor) -> Tensor:
        """Of rows that came once, with gates and experts here, the sums of gate times result: [N, E]."""
        num_chosen = choices_NK.shape[1]
        hidden_NE, gates_NK = wide_NF[:, :-num_chosen], wide_NF[:, -num_chosen:]
        num_here = len(self.expert_down.weight)
        rows_ME, order_M, counts_X = dispatch(hidden_NE, choices_NK, num_here, choices_NK != NOT_THERE)
        return combine(self.through_experts(rows_ME, counts_X), gates_NK, order_M)

    def _sent(self, experts_TK: Tensor) -> Tensor:
        """Numbers by which rows for these experts are sorted."""
        if self.sent_places is None:
            return experts_TK
        device = experts_TK.device
        if device not in self._places_X:
            self._places_X[device] = torch.tensor(self.sent_places, device=device)
        return self._places_X[device][experts_TK]

    def through_experts(self, tokens_NE: Tensor, counts: Tensor) -> Tensor:
        """Rows of the experts here, [N, E] -> [N, E]; `counts` as of `expert_mlp`."""
        up, down, biases = self.expert_gate_up, self.expert_down, None
        if up.bias is not None and down.bias is not None:
            biases = ExpertBiases(up.bias, down.bias, 1 / self.num_terms)
        return expert_mlp(tokens_NE, counts, up.weight, down.weight, biases=biases)

    def shared_part(self, hidden_TE: Tensor, shared: SharedExpert) -> Tensor:
        """The shared experts' result, where there is a gate times its number for each token."""
        result_TE: Tensor = shared(hidden_TE)
        return result_TE if self.shared_gate is None else self.shared_gate(hidden_TE).sigmoid() * result_TE
