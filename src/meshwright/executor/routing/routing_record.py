"""Recording of routing: which experts the tokens of the last steps went to, of every rank, put together as one trace.

A rank has the layers of its stages, and its own tokens: those of its data, and where devices of a tensor-parallel group look
for experts of a part each, of that part. Ranks that differ along the pipeline only have other layers of the same tokens.

Shapes: T tokens of a part of a microbatch on one rank, K experts a token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from meshwright.executor.models.block import Block
from meshwright.executor.models.decoder import DecoderStage
from meshwright.ir.program import Program
from meshwright.specs.bound.bound import MOST_ARRAY_BYTES
from meshwright.specs.error import ExecutionError
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.routing.routing_trace import RoutingTrace, TraceRun

INDEX_DTYPE, INDEX_BYTES = torch.int16, 2  # of a number of an expert, as it is kept
Place = tuple[int, int, int]  # microbatch, part, layer


class RecordedChoice(NamedTuple):
    """What one rank's router chose for a part of a microbatch in a layer: `experts_TK`."""

    step: int
    microbatch: int
    part: int
    layer: int
    experts_TK: Tensor


class RoutingRecord:
    """The choices of a rank's routers in its last `num_steps` steps; a forward that is repeated says the same again.

    ``number``: this rank's, in its tensor-parallel group; of tokens that all of a group look for, the first one's count.
    ``every``: only steps whose number it divides.
    """

    def __init__(self, num_steps: int, number: int, every: int = 1) -> None:
        self.number, self.every = number, every
        self._steps: deque[tuple[int, dict[Place, Tensor]]] = deque(maxlen=num_steps)
        self._now: dict[Place, Tensor] | None = None
        self._at = (0, 0)
        self._num_tokens = 0

    def watch(self, stages: Iterable[DecoderStage]) -> None:
        """Be told the choices of these stages' routers."""
        for stage in stages:
            for layer, block in stage.layers.items():
                if isinstance(block, Block) and block.mixture is not None:
                    block.mixture.listeners.append(partial(self._chosen, int(layer)))

    def begin(self, step: int) -> None:
        """What follows is of this step."""
        if step % self.every:
            self.end()
            return
        self._now = {}
        self._steps.append((step, self._now))

    def end(self) -> None:
        """What follows is of no step: a held-out loss."""
        self._now = None

    def at(self, microbatch: int, part: int, num_tokens: int) -> None:
        """What follows is of this part of a microbatch, with so many tokens on the devices of a tensor-parallel group."""
        self._at, self._num_tokens = (microbatch, part), num_tokens

    def _chosen(self, layer: int, experts_TK: Tensor) -> None:
        is_anothers = len(experts_TK) == self._num_tokens and self.number > 0
        if self._now is not None and not is_anothers:
            self._now[*self._at, layer] = experts_TK.detach().to(INDEX_DTYPE)

    def choices(self) -> list[RecordedChoice]:
        """All of them, on the host."""
        return [
            RecordedChoice(step, *place, chosen.cpu())
            for step, found in self._steps
            for place, chosen in found.items()
        ]


def check_recordable(model: ModelSpec, num_tokens: int, num_steps: int, every: int = 1) -> None:
    """Raise ExecutionError where nothing is routed, or so many steps of so many tokens are more than a trace holds."""
    kinds = [block.experts for block in model.layers if block.experts is not None]
    if not kinds:
        raise ExecutionError(
            f"routing of {model.name}, which has no experts",
            allowed="a model with experts",
            next="leave --record-routing out",
        )
    if model.num_encoder_layers:
        raise ExecutionError(
            f"routing of {model.name}, whose halves have different tokens", allowed="a decoder with experts"
        )
    if len({(kind.num_experts, kind.num_experts_per_token) for kind in kinds}) > 1:
        raise ExecutionError(
            f"routing of {model.name}, whose layers have different numbers of experts",
            allowed="layers with as many experts each",
        )
    if num_steps < 1:
        raise ExecutionError(f"routing of {num_steps} steps", allowed="1 or more")
    if every < 1:
        raise ExecutionError(f"routing of every {every}th step", allowed="1 or more")
    num_bytes = num_steps * num_tokens * len(kinds) * kinds[0].num_experts_per_token * INDEX_BYTES
    if num_bytes > MOST_ARRAY_BYTES:
        fit = MOST_ARRAY_BYTES * num_steps // num_bytes
        raise ExecutionError(
            f"routing of {num_steps} steps of {num_tokens:,} tokens has {num_bytes:,} bytes",
            allowed=f"up to {MOST_ARRAY_BYTES:,}: {fit} steps",
            next="record fewer steps: --routing-steps",
        )


def joined(
    program: Program, model: ModelSpec, rows: Sequence[Sequence[Sequence[Any]]], source: str
) -> RoutingTrace | None:
    """One trace of what all ranks recorded, in the order of steps, ranks and microbatches; None where nothing was.

    A token's layers are put together from all ranks that differ along the pipeline only. Its rank is the one of its part of
    the data on the pipeline's first device.
    """
    found: dict[tuple[Any, ...], dict[int, Tensor]] = {}
    for rank, own in enumerate(rows):
        replica = _along_others(program, rank)
        for choice in (RecordedChoice(*row) for row in own):
            key = (choice.step, replica, choice.microbatch, choice.part)
            found.setdefault(key, {})[choice.layer] = choice.experts_TK
    layers = tuple(number for number, block in enumerate(model.layers) if block.experts is not None)
    whole = {key: own for key, own in sorted(found.items()) if len(own) == len(layers)}
    if not whole:
        return None
    runs: dict[tuple[int, int], int] = {}
    for (step, replica, *_), chosen in whole.items():
        runs[step, replica] = runs.get((step, replica), 0) + len(chosen[layers[0]])
    stacked = [torch.stack([chosen[layer] for layer in layers], 1).numpy() for chosen in whole.values()]
    experts = model.experts
    assert experts is not None, "layers with experts are there"
    named = tuple(TraceRun(step, rank, count) for (step, rank), count in runs.items())
    return RoutingTrace(np.concatenate(stacked), experts.num_experts, layers, named, source)


def _along_others(program: Program, rank: int) -> int:
    """The rank with these coordinates on the first device of the pipeline."""
    coordinates: Mapping[str, int] = program.coordinates(rank)
    number = 0
    for axis in program.axes:
        place = 0 if axis.name == program.axes[0].name else coordinates.get(axis.name, 0)
        number = number * axis.size + place
    return number
