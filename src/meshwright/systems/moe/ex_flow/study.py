"""One all-to-all a layer here: four processes decode with tokens that stay where their expert is, and with tokens that come
home, beside one process that knows no caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from meshwright.executor import run_program
from meshwright.executor.job.pool import Pool
from meshwright.executor.rank.handler import ValueName
from meshwright.specs.routing.expert_placement import ExpertPlacement, GroupShape, RoundRobinExperts
from meshwright.specs.routing.routing_trace import RoutingTrace
from meshwright.systems.moe.ex_flow.decode_rows import GATHER, OUTPUTS, RETURN, SEND, decoding, of_prompt
from meshwright.systems.moe.ex_flow.mechanism import ExFlow
from meshwright.systems.moe.ex_flow.ops import (
    DecoderShape,
    chosen,
    expert_of,
    layer_weights,
    next_ids,
    normed,
    prompt_ids,
    token_tables,
)

RANKS, FLOAT64_BYTES = 4, 8
FITTED = {"sequences": 64, "steps": 0, "prompts": 1}  # the prompts that placements are fitted to are others
Devices = NDArray[np.int64]


class Decoded(NamedTuple):
    """Of every step (0: the prompt) the last tokens behind all layers [B, E], and bytes of all ranks by name."""

    outputs: list[Tensor]
    sent_bytes: Mapping[str, float]


def on_processes(shape: DecoderShape, devices_LX: Devices, stays: bool, pool: Pool | None = None) -> Decoded:
    """By four ranks; ``stays``: with one all-to-all a layer."""
    options = {"shape": asdict(shape), "devices": devices_LX.tolist(), "ranks": RANKS}
    program = decoding(RANKS, shape.layers, shape.steps, stays)
    result = run_program(program, keep=(OUTPUTS.name,), options=options, dtype="float64", pool=pool)
    outputs = []
    for step in range(1 + shape.steps):
        rows = torch.cat([rank[ValueName(OUTPUTS.name, part=step)] for rank in result.values])
        outputs.append(rows[rows[:, 0].argsort(), 1:])
    names = {name for rank in result.sent_bytes for name in rank}
    return Decoded(outputs, {name: sum(rank.get(name, 0.0) for rank in result.sent_bytes) for name in names})


def alone(shape: DecoderShape) -> tuple[list[Tensor], NDArray[np.int64]]:
    """Outputs by this process, which begins with the whole sequences in every step, and the experts of all tokens
    [B, P, L]."""
    ids_BP, outputs = prompt_ids(shape), []
    for step in range(1 + shape.steps):
        x_BPE, experts_BPL = _through_layers(shape, ids_BP)
        outputs.append(x_BPE[:, -1])
        if step < shape.steps:
            ids_BP = torch.cat([ids_BP, next_ids(shape, x_BPE[:, -1])[:, None]], 1)
    return outputs, experts_BPL.numpy()


def _through_layers(shape: DecoderShape, ids_BP: Tensor) -> tuple[Tensor, Tensor]:
    """Every token through every expert, of which its own counts."""
    tokens, positions = token_tables(shape)
    length, experts = ids_BP.shape[1], []
    x_BPE, later = tokens[ids_BP] + positions[:length], torch.ones(length, length).triu(1).bool()
    for layer in range(shape.layers):
        weights, n_BPE = layer_weights(shape, layer), normed(x_BPE)
        query = (n_BPE @ weights.query_EHD).view(-1, length, shape.heads, shape.head).transpose(1, 2)
        scores = query @ (n_BPE @ weights.key_ED)[:, None].transpose(-1, -2) / shape.head**0.5
        seen = scores.masked_fill(later, -torch.inf).softmax(-1) @ (n_BPE @ weights.value_ED)[:, None]
        x_BPE = x_BPE + seen.transpose(1, 2).flatten(2) @ weights.output_HDE
        gate_BP, expert_BP = chosen(shape, layer, x_BPE)
        made = torch.stack([expert_of(shape, layer, each, x_BPE) for each in range(shape.experts)])
        own = torch.nn.functional.one_hot(expert_BP, shape.experts).to(x_BPE.dtype)
        x_BPE = x_BPE + gate_BP[..., None] * torch.einsum("bpx,xbpe->bpe", own, made)
        experts.append(expert_BP)
    return x_BPE, torch.stack(experts, -1)


def expected_bytes(shape: DecoderShape, devices_LX: Devices, stays: bool) -> dict[str, float]:
    """What rows and contexts take by the closed form: a row for every move from one rank to another, and of contexts a row
    for every token, layer and other rank."""
    experts_BPL, row, packed = alone(shape)[1], 1 + shape.hidden, 1 + 2 * shape.head
    ranks_BPL = devices_LX[np.arange(shape.layers), experts_BPL]
    home_B = np.arange(shape.sequences) * RANKS // shape.sequences
    away_BPL = ranks_BPL != home_B[:, None, None]
    prompt, decoded = away_BPL[:, : shape.prompt].sum(), away_BPL[:, shape.prompt :].sum()
    found = {of_prompt(SEND).name: prompt * row, of_prompt(RETURN).name: prompt * row}
    if stays:
        path = ranks_BPL[:, shape.prompt :].reshape(shape.sequences, -1)  # of each sequence, step behind step
        moves = (np.concatenate([home_B[:, None], path[:, :-1]], 1) != path).sum()
        contexts = (RANKS - 1) * shape.sequences * shape.layers * packed
        found |= {SEND.name: moves * row, GATHER.name: contexts * shape.steps}
        found[of_prompt(GATHER).name] = contexts * shape.prompt
    else:
        found |= {SEND.name: decoded * row, RETURN.name: decoded * row}
    return {name: float(numbers * FLOAT64_BYTES) for name, numbers in found.items()}


def routing_of(shape: DecoderShape) -> RoutingTrace:
    """Where the tokens of a shape go."""
    experts = alone(shape)[1].reshape(-1, shape.layers, 1)
    return RoutingTrace(experts, shape.experts, tuple(range(shape.layers)), source="a drawn decoder")


def placements(shape: DecoderShape) -> dict[str, ExpertPlacement]:
    """By ExFlow, fitted to other prompts, and by turns."""
    trace = routing_of(replace(shape, **FITTED))
    return {
        "ex_flow": ExFlow()(trace, GroupShape(RANKS)),
        "round_robin": RoundRobinExperts()(trace, GroupShape(RANKS)),
    }


def decoded_difference(all_to_alls: int, seed: int, pool: Pool | None = None) -> float:
    """Largest difference of any output to one process, placed by ExFlow."""
    shape = DecoderShape(seed=seed)
    found = on_processes(shape, placements(shape)["ex_flow"].devices, all_to_alls == 1, pool)
    pairs = zip(found.outputs, alone(shape)[0], strict=True)
    return max(float((ours - theirs).abs().max()) for ours, theirs in pairs)


def bytes_over_formula(all_to_alls: int, seed: int, pool: Pool | None = None) -> float:
    """Of all exchanges of rows and contexts, the one that is farthest from its formula."""
    shape = DecoderShape(seed=seed)
    devices_LX = placements(shape)["ex_flow"].devices
    found = on_processes(shape, devices_LX, all_to_alls == 1, pool).sent_bytes
    expected = expected_bytes(shape, devices_LX, all_to_alls == 1)
    return max((found[name] / expected[name] for name in expected), key=lambda ratio: abs(ratio - 1))


def row_bytes(shape: DecoderShape, by: str, all_to_alls: int, pool: Pool | None = None) -> float:
    """What is sent of tokens in the steps behind the prompt."""
    sent = on_processes(shape, placements(shape)[by].devices, all_to_alls == 1, pool).sent_bytes
    return sent[SEND.name] + sent.get(RETURN.name, 0.0)


def placed_sends_less(seed: int, pool: Pool | None = None) -> float:
    """1 where tokens that stay are sent in fewer bytes with experts placed by ExFlow than by turns."""
    shape = DecoderShape(seed=seed)
    return float(row_bytes(shape, "ex_flow", 1, pool) < row_bytes(shape, "round_robin", 1, pool))
