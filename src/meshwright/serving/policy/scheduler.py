"""The scheduler: keeps the books of sequences and blocks, and gives out the batches that its policy chooses.

A batch that is given out counts as computed, so the next one may be chosen while it runs; what its tokens end is told
afterwards (`finish`). It reads no clock and holds no tensors.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

from meshwright.serving.block.block_pool import BlockPool
from meshwright.serving.policy.batch import Batch, Chunk
from meshwright.serving.policy.batch_lane import BatchLane
from meshwright.serving.policy.limits import Limits
from meshwright.serving.policy.policy import SchedulerPolicy
from meshwright.serving.policy.sequence import Sequence, Status
from meshwright.serving.policy.waiting_queue import WaitingQueue
from meshwright.serving.request.request import Request
from meshwright.specs.error import RequestRefused

COMPUTED = (Status.DECODING, Status.COMPLETE)  # their prompts are


class Scheduler:
    """What a policy sees and may do.

    Attributes:
        pool, host_pool: blocks of the engine, and those in host memory (None: nothing can be swapped out).
        waiting: who waits.
        lanes: who runs.
        batch: the batch that is being put together.
        limits: of one step, and of a request.
        num_proposed: tokens that a decoder proposes to each that decodes, at most. Then a lane's next batch is asked for when
            the one before it has run.
    """

    def __init__(
        self,
        policy: SchedulerPolicy,
        pool: BlockPool,
        limits: Limits,
        host_pool: BlockPool | None = None,
        num_lanes: int = 1,
        num_proposed: int = 0,
    ) -> None:
        self.num_proposed = num_proposed
        self.policy, self.pool, self.host_pool, self.limits = policy, pool, host_pool, limits
        self.lanes = [BatchLane(number, pool.block_tokens) for number in range(num_lanes)]
        self.waiting = WaitingQueue(policy.is_fair, policy.has_priorities)
        self.batch = Batch(0, 0)
        self._sequences: dict[str, list[Sequence]] = {}  # of requests that have not ended
        self._children: dict[Sequence, list[Sequence]] = {}  # of sequences whose prompt is not computed
        self._num_ever = self._num_batches = 0
        self._owed = Batch(0, 0)  # moves of blocks for lanes that then had no batch

    # -- requests come and go

    def add(self, request: Request, is_prefilled: bool = False) -> list[Sequence]:
        """Its sequences wait from now on. `is_prefilled`: another engine has computed its prompt and first token, and the
        blocks come from there.

        Raises RequestRefused where it can never run.
        """
        self.check(request)
        sequences = self._sequences[request.id] = []
        for output in range(request.num_outputs):
            parent = sequences[0] if sequences else None
            sequences.append(Sequence(request, output, self._num_ever, parent))
            self._num_ever += 1
        if is_prefilled:
            sequences[0].status = Status.SWAPPED
            sequences[0].num_tokens += 1
        self.waiting.push(sequences[0])
        if sequences[1:]:  # wait for its prompt
            self._children[sequences[0]] = sequences[1:]
        return sequences

    def next(self, now_s: float, lane: int = 0) -> Batch | None:
        """The next batch of a lane; None: it has nothing to do until something else happens."""
        at = self.lanes[lane]
        for sequence in at.complete():
            self._leave(sequence)
            sequence.status = Status.COMPLETE
        self.batch = batch = Batch(self._num_batches, lane)
        takes_decodes = self.policy.choose(now_s, self, at)
        if batch.preempted and not batch.chunks and not at.decoding:
            takes_decodes = self.policy.choose(
                now_s, self, at
            )  # who was alone and had to leave may come back at once
        if takes_decodes and at.decoding:
            batch.decodes, batch.decode_context = tuple(at.decoding), at.context
        batch.preempted = self._owed.preempted + batch.preempted
        batch.swap_out = self._owed.swap_out + batch.swap_out
        if not batch.chunks and not batch.decodes:
            self._owed = batch  # what left is to be told, and moved, before any lane's next step
            return None
        self._owed = Batch(0, 0)
        self._num_batches += 1
        self._give_out(batch, at)
        return batch

    def ran(self, batch: Batch, num_steps: int) -> None:
        """A batch ran `num_steps` times, at most its `repeats`; the first of them was counted when it was given out."""
        lane = self.lanes[batch.lane]
        for sequence in lane.due_during(num_steps - 1):
            sequence.blocks += self.pool.take(1)
        lane.advance(num_steps - 1)

    def settle(self, batch: Batch, accepted: Mapping[Sequence, int]) -> None:
        """A batch with proposals has run: who got more than one token is longer by so many; blocks of the others' places are
        given back."""
        lane = self.lanes[batch.lane]
        for sequence in batch.decodes:
            if sequence.status is not Status.DECODING:
                continue
            if num := accepted.get(sequence, 0):
                lane.lengthen(sequence, num)
                self.waiting.charge(sequence, num)
            kept = self.pool.blocks_for(lane.length(sequence) - 1)
            self.pool.give_back(sequence.blocks[kept:])
            del sequence.blocks[kept:]

    def finish(self, sequence: Sequence, keys: tuple[Hashable, ...] = ()) -> None:
        """A sequence has ended, or is ended. `keys`: of all its full blocks, where they are to be kept for others."""
        if sequence.status is Status.ENDED:
            return
        if sequence.status in (Status.WAITING, Status.SWAPPED):
            self.waiting.remove(sequence)
        else:
            self._stop(sequence)
        if keys and sequence.blocks:
            self.pool.keep(keys[: len(sequence.blocks)], sequence.blocks)
        self._forget_owed(sequence)
        self._release(sequence)
        sequence.status = Status.ENDED
        self._let_children_wait(sequence)  # it never got that far
        alive = self._sequences[sequence.request.id]
        alive.remove(sequence)
        if not alive:
            del self._sequences[sequence.request.id]

    def abort(self, request_id: str, output: int | None = None) -> list[Sequence]:
        """End all of a request that is not ended, or one of its outputs; returns what was."""
        alive = self._sequences.get(request_id, ())
        ended = [each for each in alive if output is None or each.output == output]
        for sequence in reversed(ended):  # children first: they would begin to wait
            self.finish(sequence)
        return ended

    def length(self, sequence: Sequence) -> int:
        """Prompt and generated tokens, those of steps given out among them."""
        if sequence.status is Status.DECODING:
            return self.lanes[sequence.lane].length(sequence)
        return sequence.num_tokens

    @property
    def num_running(self) -> int:
        """Sequences in all lanes."""
        return sum(lane.num_running for lane in self.lanes)

    def has(self, request_id: str) -> bool:
        """Is any of a request not ended?"""
        return request_id in self._sequences

    def sequences(self) -> Iterator[Sequence]:
        """All that have not ended."""
        for each in self._sequences.values():
            yield from each

    # -- what a policy may do

    def reserve_decodes(self, lane: BatchLane) -> bool:
        """Blocks for the next token of all that decode in a lane; False: there are not enough."""
        if len(lane.due()) > self.pool.num_free:
            return False
        self._grow(lane)
        return True

    def reserve_proposals(self, lane: BatchLane, budget: int) -> int:
        """Blocks for what is proposed to all that decode in a lane, as many tokens each as the step has left; how many."""
        if not self.num_proposed or not lane.decoding:
            return 0
        num = min(self.num_proposed, budget // len(lane.decoding) - 1)
        if num < 1:
            return 0
        missing: dict[Sequence, int] = {}
        for sequence in lane.decoding:
            # The last token of an output is not computed.
            tokens = min(lane.length(sequence) + num, sequence.most_tokens - 1)
            missing[sequence] = max(0, self.pool.blocks_for(tokens) - len(sequence.blocks))
        if sum(missing.values()) > self.pool.num_free:
            return 0
        for sequence, more in missing.items():
            sequence.blocks += self.pool.take(more)
        self.batch.num_proposed = num
        return num

    def admit(self, sequence: Sequence, lane: BatchLane, watermark: int) -> bool:
        """Who is first in the queue gets its blocks and joins a lane; False: it would leave fewer than `watermark`."""
        pool, num_tokens = self.pool, sequence.num_tokens
        known, copied = self._known(sequence)
        pool.share(known)
        need = pool.blocks_for(num_tokens) - len(known)
        if need + watermark > pool.num_free:
            pool.give_back(known)
            return False
        assert self.waiting.pop() is sequence
        sequence.blocks = known + pool.take(need)
        sequence.lane = lane.number
        if sequence.status is Status.SWAPPED:
            self._bring_back(sequence, lane)
            return True
        sequence.num_computed = len(known) * pool.block_tokens
        if copied is not None:
            self.batch.copies.append((copied, sequence.blocks[len(known)]))
            sequence.num_computed = num_tokens - 1
        if sequence.num_cached < 0:
            sequence.num_cached = sequence.num_computed
        sequence.status = Status.PREFILLING
        lane.prefilling[sequence] = None
        return True

    def prefill(self, sequence: Sequence, num_tokens: int) -> None:
        """At most so many tokens more of a prompt are in the batch."""
        start = sequence.num_computed
        num_tokens = min(num_tokens, sequence.num_tokens - start)
        sequence.num_computed = start + num_tokens
        is_last = sequence.num_computed == sequence.num_tokens
        self.batch.chunks.append(Chunk(sequence, start, num_tokens, is_last))
        self.batch.num_prefill_tokens += num_tokens
        self.waiting.charge(sequence, num_tokens)

    def preempt(self, sequence: Sequence, swaps: bool) -> None:
        """It gives back its blocks and waits again: to be computed anew, or with its blocks in host memory."""
        decodes = sequence.status is Status.DECODING
        self._stop(sequence)
        sequence.num_preemptions += 1
        sequence.status = Status.WAITING
        num = self.pool.blocks_for(sequence.num_tokens - 1)
        if swaps and decodes and self.host_pool is not None and self.host_pool.num_free >= num:
            sequence.host_blocks = self.host_pool.take(num)
            self.batch.swap_out += zip(sequence.blocks, sequence.host_blocks, strict=False)
            sequence.status = Status.SWAPPED
        self.pool.give_back(sequence.blocks)
        sequence.blocks = []
        self.batch.preempted.append(sequence)
        self.waiting.push(sequence)

    # -- the books

    def check(self, request: Request) -> None:
        """Raises RequestRefused where a request can never run."""
        if request.id in self._sequences:
            raise RequestRefused(f"request {request.id} is there already", next="give it another id")
        tokens = request.num_prompt_tokens + request.max_output_tokens
        if tokens > self.limits.max_model_tokens:
            raise RequestRefused(
                f"request {request.id} has {request.num_prompt_tokens} prompt tokens and may get {request.max_output_tokens}",
                allowed=f"together {self.limits.max_model_tokens}, the model's longest sequence",
            )
        # The last token of an output is not computed.
        num = self.pool.blocks_for(tokens - 1)
        if num > self.pool.num_blocks:
            raise RequestRefused(
                f"request {request.id} may need {num} blocks of {self.pool.block_tokens} tokens",
                allowed=f"{self.pool.num_blocks}, which the engine has in all",
            )
        if not self.policy.is_chunked and request.num_prompt_tokens > self.limits.max_batch_tokens:
            raise RequestRefused(
                f"request {request.id} has {request.num_prompt_tokens} prompt tokens, which go in one step",
                allowed=f"{self.limits.max_batch_tokens} tokens a step",
                next="prefill in chunks",
            )

    def _known(self, sequence: Sequence) -> tuple[list[int], int | None]:
        """Blocks of its beginning that are computed, and one more of which a part is, for it to copy. One token is always
        left to compute: its logits give the next."""
        if sequence.status is Status.SWAPPED:
            return [], None
        parent, size = sequence.parent, self.pool.block_tokens
        most = (sequence.num_tokens - 1) // size
        if parent is not None and parent.status in COMPUTED and not sequence.num_preemptions:
            copied = parent.blocks[most] if (sequence.num_tokens - 1) % size else None
            return parent.blocks[:most], copied
        keys = sequence.request.block_keys
        return (self.pool.match(keys)[:most] if keys else []), None

    def _bring_back(self, sequence: Sequence, lane: BatchLane) -> None:
        """From host memory, or from another engine; it decodes in this very step."""
        if sequence.host_blocks:
            assert self.host_pool is not None
            self.batch.swap_in += zip(sequence.host_blocks, sequence.blocks, strict=False)
            self.host_pool.give_back(sequence.host_blocks)
            sequence.host_blocks = []
        sequence.status = Status.DECODING
        lane.enter(sequence, lane.step)

    def _give_out(self, batch: Batch, lane: BatchLane) -> None:
        """Count a batch as computed."""
        if not batch.chunks:
            is_told = (
                self.num_proposed or len(self.lanes) > 1
            )  # what the next step is, this one says, or another lane
            batch.repeats = 1 if is_told else self._repeats(lane)
        if batch.decodes:
            lane.advance()
        for chunk in batch.chunks:
            if chunk.is_last:
                self._begin_decoding(chunk.sequence, lane)

    def _grow(self, lane: BatchLane) -> None:
        """A block more for all that need one at the next step; who has just come back has it already."""
        size = self.pool.block_tokens
        for sequence in lane.due():
            if len(sequence.blocks) * size < lane.length(sequence):
                sequence.blocks += self.pool.take(1)

    def _repeats(self, lane: BatchLane) -> int:
        """So many steps need no decision: in as many steps as a block has tokens everyone needs one block."""
        size, num = self.pool.block_tokens, len(lane.decoding)
        return max(1, self.pool.num_free // num * size)

    def _begin_decoding(self, sequence: Sequence, lane: BatchLane) -> None:
        """Its prompt is computed, and a token came out."""
        del lane.prefilling[sequence]
        sequence.num_tokens += 1
        sequence.status = Status.DECODING
        lane.enter(sequence, lane.step)
        request = sequence.request
        if request.block_keys:
            num = min(len(request.block_keys), request.num_prompt_tokens // self.pool.block_tokens)
            self.pool.keep(request.block_keys[:num], sequence.blocks[:num])
        self._let_children_wait(sequence)

    def _let_children_wait(self, sequence: Sequence) -> None:
        """Other outputs of a request come in behind its first one's prompt, of which they take a share."""
        for child in self._children.pop(sequence, ()):
            if child.status is not Status.ENDED:
                self.waiting.push(child)

    def _stop(self, sequence: Sequence) -> None:
        """It leaves its lane, where it is in one."""
        if sequence.status is Status.DECODING:
            self._leave(sequence)
        elif sequence.status is Status.PREFILLING:
            del self.lanes[sequence.lane].prefilling[sequence]
            sequence.num_computed, sequence.lane = 0, -1

    def _leave(self, sequence: Sequence) -> None:
        """One that decodes leaves its lane."""
        before = sequence.num_tokens
        self.lanes[sequence.lane].leave(sequence)
        self.waiting.charge(sequence, sequence.num_tokens - before)
        sequence.lane = -1

    def _forget_owed(self, sequence: Sequence) -> None:
        """Who has ended needs its blocks no more."""
        if sequence in self._owed.preempted:
            self._owed.preempted.remove(sequence)
            places = set(sequence.host_blocks)
            self._owed.swap_out = [pair for pair in self._owed.swap_out if pair[1] not in places]

    def _release(self, sequence: Sequence) -> None:
        self.pool.give_back(sequence.blocks)
        if sequence.host_blocks:
            assert self.host_pool is not None
            self.host_pool.give_back(sequence.host_blocks)
        sequence.blocks, sequence.host_blocks = [], []
