"""One rank of a served model: `python -m meshwright.executor.serving.parallel.rank`.

Commands come as JSON lines on stdin, arrays in files that both ends map, reports leave on stdout (`WorkerPipe`). They are
obeyed one by one, in the order in which they came, which is the same on all ranks. What comes from the stage before is
awaited as soon as its step is known, and nobody waits for the next stage to take what it is sent, so stages work at
different steps. It ends by itself when stdin is closed.

Shapes: T tokens of a step, E hidden size, R rows whose logits are asked for, V vocabulary.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from meshwright.executor.rank.process_group import ProcessGroups
from meshwright.executor.serving.adapter.adapter_folder import AdapterFolder
from meshwright.executor.serving.paged_stage import PagedStage, StagePlace
from meshwright.executor.serving.parallel.message_sum import BACKEND, MessageSum
from meshwright.executor.serving.parallel.rank_place import RankPlace, link
from meshwright.executor.serving.parallel.shared_arrays import MappedArrays
from meshwright.executor.serving.runner_options import RunnerOptions
from meshwright.executor.serving.served_model import open_served
from meshwright.executor.team.freed_memory import keep_freed_memory
from meshwright.executor.team.worker_pipe import WorkerPipe, error_text
from meshwright.serving.engine.runner import StepInputs

Command = dict[str, Any]


class StageRank:
    """A stage of the model, or a part of it, and what it exchanges with the other ranks of a step."""

    def __init__(self, command: Command) -> None:
        options, folder = RunnerOptions.of(command["options"]), Path(command["folder"])
        rank, timeout_s = int(command["rank"]), float(command["timeout_s"])
        torch.set_num_threads(options.num_threads)
        device = _own_device(options.device, rank)
        served = open_served(command["model"])
        degrees = options.tp, options.pp, rank, options.ep
        self.place = RankPlace(served.model, *degrees, options.expert_slots)
        backend = "nccl" if device.type == "cuda" else "gloo"
        self.groups = ProcessGroups(rank, options.num_ranks, folder / "rendezvous", backend, timeout_s)
        self.groups.__enter__()  # left by the end of the process: peers may be gone by then
        self.groups.make(self.place.teams())
        self._sum: MessageSum | None = None
        if options.sums != BACKEND and options.tp > 1:
            group = self.groups.labelled(*self.place.tensor_team).group
            self._sum = MessageSum(group, options.sums, options.link_latency_s)
        place = StagePlace(
            self.place.layers, self.place.shard, self._total, self.place.has_embedding, self.place.has_head
        )
        self.stage = PagedStage(served, place, replace(options, device=str(device)))
        self._most = options.pp  # steps under way
        self._inputs = [MappedArrays(folder) for _ in range(self._most)]
        self._logits = [MappedArrays(folder) for _ in range(self._most)]
        self._expected: deque[tuple[Any, Tensor]] = deque()  # from the stage before, in the order of steps
        self._sent: deque[tuple[Any, Tensor]] = deque()

    def _total(self, term: Tensor) -> Tensor:
        """The sum of the tensor-parallel ranks' terms, the same bits on all."""
        if self.place.tp == 1:
            return term
        if self._sum is not None:
            return self._sum(term)
        transport = self.groups.labelled(*self.place.tensor_team)
        return transport.combining(term, is_maximum=False, in_place=True)()

    def expect(self, command: Command) -> None:
        """A step will come: be ready for what the stage before sends."""
        if self.place.has_embedding:
            return
        rank, source = self.place.rank, self.place.rank - self.place.tp
        _, (num_tokens,), _ = command["inputs"]["arrays"]["token_ids"]
        shape = (num_tokens, self.place.model.hidden_size)
        hidden_TE = torch.empty(shape, dtype=self.stage.dtype, device=self.stage.device)
        group = self.groups.labelled(*link(source, rank)).group
        self._expected.append((group.recv([hidden_TE], 0, command["number"]), hidden_TE))

    def step(self, command: Command) -> None:
        """Compute this stage of a step; the last one's logits go to their columns of the shared array."""
        slot, adapters = command["slot"], command["adapters"]
        given = self._inputs[slot].get(command["inputs"])
        step = self.stage.packed(StepInputs(**given, max_context=command["max_context"], adapters=adapters))
        result = self.stage.forward(step, None if self.place.has_embedding else self._received())
        if not self.place.has_head:
            self._send(result, command["number"])
            return
        low, high = self.place.shard.rows(self.place.model.vocabulary_size)
        columns = self._logits[slot].get(command["logits"])["logits"][:, low:high]
        np.copyto(columns, result[:, : high - low].to("cpu", torch.float32).numpy())

    def _received(self) -> Tensor:
        work, hidden_TE = self._expected.popleft()
        work.wait()
        return hidden_TE

    def _send(self, hidden_TE: Tensor, number: int) -> None:
        """Tags are numbers of commands, so that each step meets its own."""
        rank, target = self.place.rank, self.place.rank + self.place.tp
        hidden_TE = hidden_TE.contiguous()
        work = self.groups.labelled(*link(rank, target)).group.send([hidden_TE], 1, number)
        self._sent.append((work, hidden_TE))
        if len(self._sent) > self._most:  # the oldest has long been taken: no more steps are under way
            self._sent.popleft()[0].wait()


def _own_device(device: str, rank: int) -> torch.device:
    """Of CUDA devices that with the rank's number."""
    if torch.device(device).type != "cuda":
        return torch.device(device)
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def run(rank: StageRank, command: Command) -> dict[str, Any]:
    """One command of the parent, and what is told of it beyond that it is done."""
    if command["do"] == "tell_rows":
        return {"slot_rows": rank.stage.slot_rows()}
    if command["do"] == "step":
        rank.step(command)
    elif command["do"] == "move":
        rank.stage.blocks.move(*command["moves"])
    elif command["do"] == "load_adapter":
        rank.stage.load_adapter(command["adapter"], AdapterFolder(command["folder"], rank.stage.model))
    else:
        rank.stage.drop_adapter(command["adapter"])
    return {}


def in_order(rank: StageRank, commands: SimpleQueue[Command]) -> Iterator[Command]:
    """Commands as they come; all that have come are looked at before the first of them is given."""
    known: deque[Command] = deque()
    while True:
        while not known or not commands.empty():
            known.append(commands.get())
            if known[-1]["do"] == "step":
                rank.expect(known[-1])
        yield known.popleft()


def main() -> None:
    """Obey until stdin is closed. After an error the parent ends all ranks: its peers may wait in an exchange."""
    pipe = WorkerPipe()
    keep_freed_memory()
    pipe.send(ready=os.getpid())
    command = pipe.commands.get()
    logging.basicConfig(format=f"[rank {command['rank']}] %(levelname)s %(name)s: %(message)s", force=True)
    try:
        with torch.inference_mode():
            rank = StageRank(command)
            pipe.send(done=command["number"])
            for command in in_order(rank, pipe.commands):
                told = run(rank, command)
                pipe.send(done=command["number"], peak_weight_bytes=rank.stage.peak_weight_bytes, **told)
    except BaseException as error:  # noqa: B036 - every failure is reported, then this rank is over
        pipe.send(error=error_text(error))


if __name__ == "__main__":
    main()
