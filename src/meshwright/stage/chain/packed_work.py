"""The works of segments for sequences of different lengths that are packed one behind the other, on one rank of a group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from meshwright.ir.table import Work
from meshwright.specs.plan.plan import Plan
from meshwright.specs.sequence.packed_part import PackedPart, padded_length
from meshwright.stage.chain.chain import Chain
from meshwright.stage.chain.segment_work import works_of_shape
from meshwright.stage.operator.stage import PASSES
from meshwright.stage.work import microbatch_shape


def packed_works(
    plan: Plan, chain: Chain, part: PackedPart, passes: Collection[str] = PASSES
) -> Iterator[dict[str, Work]]:
    """The work of these passes of every segment, of a plan of one rank (`plan_of_rank`): products and all else of a token
    are of all tokens of the rank at once, attention is of each sequence, divided by as many ranks as share it."""
    shape = microbatch_shape(plan)._replace(sequence_length=part.num_tokens)
    lengths = Counter(padded_length(each, part.degree) for each in part.lengths)
    attended = tuple(
        shape._replace(num_sequences=count, sequence_length=length, cp=part.degree, in_pieces=part.degree > 1)
        for length, count in sorted(lengths.items())
    )
    share = part.num_tokens / plan.tokens_per_microbatch
    return works_of_shape(plan, chain, share, shape, (1, part.num_tokens), attended, passes)
