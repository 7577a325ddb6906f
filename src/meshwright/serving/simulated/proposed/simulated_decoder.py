"""SimulatedDecoder: what proposals add to a simulated step, and how many of them are accepted, by a share that is told.

Proposals are rows more of linear layers and of the head; they attend with the read of keys and values that their sequence's
last token needs anyway. A draft model computes prompts as the model does, and a step for every proposal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meshwright.serving.decoder.decoder import TokenDecoder
from meshwright.serving.policy.sequence import Sequence
from meshwright.serving.sampling.keyed_uniform import keyed_uniforms, stream_key
from meshwright.serving.simulated.batch_shape import BatchShape
from meshwright.serving.simulated.forward_program import ForwardProgram, StepTime
from meshwright.serving.simulated.parted.rounded_steps import RoundedSteps
from meshwright.serving.simulated.step_model import StepModel
from meshwright.serving.simulated.step_overhead import StepOverhead
from meshwright.specs.config.source import load_model
from meshwright.specs.error import PlanError

COUNTED = (
    'a server counts it: vllm:spec_decode_num_accepted_tokens_per_pos_total of position "0" over '
    "vllm:spec_decode_num_drafts_total"
)


@dataclass(frozen=True)
class SimulatedDecoder:
    """Of `num_tokens` proposals each that stands behind accepted ones is accepted with probability `acceptance`. `draft`: the
    steps of the model that proposes; None: there is none."""

    num_tokens: int
    acceptance: float
    draft: StepModel | None = None

    @classmethod
    def of(cls, decoder: TokenDecoder, draft: ForwardProgram | None = None) -> SimulatedDecoder | None:
        """None: a step gives one token. Raises PlanError where nobody says how much is accepted."""
        if not decoder.tokens:
            return None
        if not decoder.acceptance:
            raise PlanError(
                f"{decoder}: how much is accepted is not told",
                allowed="acceptance=0.7, or another share",
                next=COUNTED,
            )
        steps = None if draft is None else RoundedSteps(draft)
        return cls(decoder.tokens, decoder.acceptance, steps)

    @property
    def assumption(self) -> str:
        """What its steps rest on, for people."""
        return (
            f"of {self.num_tokens} proposed tokens each that stands behind accepted ones is accepted with probability "
            f"{self.acceptance:g}, as told"
        )

    def step(self, steps: StepModel, batch: BatchShape, num_proposed: int) -> StepTime:
        """Seconds of a batch, so many tokens proposed to each of its decodes."""
        more = num_proposed * batch.num_decodes
        whole = batch._replace(chunk_tokens=batch.chunk_tokens + more, num_chunks=batch.num_chunks + more)
        times = [steps.step(whole)]
        if self.draft is not None:
            decodes = BatchShape(num_decodes=batch.num_decodes, num_context=batch.num_context)
            times.append(self.draft.step(batch._replace(num_decodes=0, num_context=0)))
            times += [self.draft.step(decodes)] * num_proposed
        return StepTime(sum(each.latency_s for each in times), sum(each.period_s for each in times))

    def num_accepted(self, sequence: Sequence, length: int, num_proposed: int) -> int:
        """Of the proposals to a sequence with so many tokens: the same whenever it is asked."""
        if self.acceptance >= 1.0:
            return num_proposed
        key = np.array([stream_key(sequence.order, sequence.output, "accepted")], np.uint64)
        uniform = float(keyed_uniforms(key, np.array([length], np.uint64))[0])
        # At least n are accepted with probability acceptance^n.
        return min(num_proposed, int(math.log(1.0 - uniform) / math.log(self.acceptance)))


def draft_program(decoder: TokenDecoder, program: ForwardProgram) -> ForwardProgram | None:
    """The steps of a decoder's second model on the devices of a replica, without an engine's host between them; None: it has
    none. Raises PlanError where a replica has several stages."""
    if not decoder.draft:
        return None
    if program.layout.pp > 1:
        raise PlanError("a draft model beside a pipeline", allowed="pp = 1", next="take tp")
    return ForwardProgram(
        load_model(decoder.draft), program.cluster, program.layout, program.dtype, StepOverhead(host_s=0.0)
    )
