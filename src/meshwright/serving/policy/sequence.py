"""A sequence: one output of a request under way, and the blocks that hold its keys and values."""

from __future__ import annotations

from enum import Enum

from meshwright.serving.request.request import Request


class Status(Enum):
    """Where a sequence is."""

    WAITING = "waiting"  # holds nothing
    SWAPPED = "swapped"  # its blocks are in host memory
    PREFILLING = "prefilling"
    DECODING = "decoding"
    COMPLETE = "complete"  # all tokens that it may have are given out; holds its blocks until the last of them is told
    ENDED = "ended"


class Sequence:
    """One output of a request.

    Attributes:
        output: which output of the request, from 0.
        order: its place among all that ever came.
        num_tokens: prompt and generated tokens, as far as steps are given out; of one that decodes see `BatchLane.length`.
        num_computed: tokens whose keys and values are in `blocks` once the steps given out have run, while it prefills.
        blocks, host_blocks: in order.
        num_cached: tokens that it found computed when it was admitted first; -1 before.
        entered: the step of its lane at which it began to decode, when it had `num_tokens`.
        lane: which lane it runs in; -1: none.
    """

    __slots__ = (
        "blocks", "entered", "host_blocks", "lane", "num_cached", "num_computed", "num_preemptions", "num_tokens", "order",
        "output", "parent", "request", "status",
    )  # fmt: skip

    def __init__(self, request: Request, output: int, order: int, parent: Sequence | None = None) -> None:
        self.request, self.output, self.order, self.parent = request, output, order, parent
        self.status = Status.WAITING
        self.num_tokens, self.num_computed = request.num_prompt_tokens, 0
        self.blocks: list[int] = []
        self.host_blocks: list[int] = []
        self.num_cached, self.num_preemptions = -1, 0
        self.entered, self.lane = 0, -1

    @property
    def most_tokens(self) -> int:
        """Prompt and output, as long as it may become."""
        return self.request.num_prompt_tokens + self.request.max_output_tokens

    def __repr__(self) -> str:
        return f"<{self.request.id}/{self.output} {self.status.value}, {self.num_tokens} tokens>"
