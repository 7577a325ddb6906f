"""torch's `context_parallel` beside a ring of ours: the same decoder, whose sequences two devices share, trained by turns.

torch's has no attention on CPU, and NCCL takes one rank a device: the part wants two devices, and is skipped where there are
fewer. Both begin with the same weights and tokens, so their first losses are equal up to the rounding of 16 bits. Seconds are
of forward, backward, reduction and AdamW; torch's sharding of the tokens before each step is not counted. Theirs: bfloat16
throughout, gradients averaged by DistributedDataParallel; ours: the plan's, with parameters in float32.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from benchmarks.plain_decoder import PlainDecoder
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import set_rotate_method
from torch.nn.parallel import DistributedDataParallel

from meshwright.api.trainings.place import Wanted
from meshwright.api.trainings.training import run_training
from meshwright.executor.models.decoder import build_model
from meshwright.executor.training.training_job import RandomTokens
from meshwright.specs.cluster.source import Cluster
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.plan import Plan
from meshwright.specs.plan.workload import Workload

from .part import Part

NUM_DEVICES = 2
NUM_TURNS, NUM_STEPS, NUM_WARM_UPS = 5, 6, 2
LOSS_TOLERANCE = 0.02  # relative, of a first step in bfloat16
ROTATIONS = ("allgather", "alltoall")  # how torch moves keys and values
# Heads of 64 with keys of their own: what torch's flash attention takes, sharded, in any version.
MODEL = ModelSpec.decoder(8, 1024, 16, vocabulary_size=8192, max_sequence_length=16_384, name="shared")
FORMATS: Mapping[str, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Shared:
    """What both train: ``degree`` devices share every sequence of the longest length that the model takes."""

    model: ModelSpec = MODEL
    num_samples: int = 1
    degree: int = NUM_DEVICES
    device: Wanted = "cuda"
    dtype: str = "bfloat16"
    num_steps: int = NUM_STEPS


@dataclass(frozen=True)
class Turn:
    """Of every step of a turn: the loss over all tokens, and seconds of the slower rank."""

    losses: Sequence[float]
    seconds: Sequence[float]

    @property
    def median_s(self) -> float:
        """Of a step behind those that warm up."""
        return statistics.median(self.seconds[NUM_WARM_UPS:])


def context(kind: str, num_devices: int) -> Part:
    """Every way of torch and ours, on the first two devices of this kind; ``num_devices``: how many there are."""
    if num_devices < NUM_DEVICES:
        line = f"{NUM_DEVICES} devices share a sequence, and PyTorch sees {num_devices} here."
        return Part("context", "skipped", lines=[line])
    shared = Shared()
    ways: dict[str, Callable[[], Turn]] = {
        f"torch, {rotation}": lambda rotation=rotation: theirs(shared, rotation)  # type: ignore[misc]
        for rotation in ROTATIONS
    }
    ways["meshwright, ring"] = lambda: ours(shared, Cluster(f"{NUM_DEVICES}x{kind}"))
    turns = [{name: run() for name, run in ways.items()} for _ in range(NUM_TURNS)]
    return compared({name: [turn[name] for turn in turns] for name in ways})


def compared(turns: Mapping[str, Sequence[Turn]]) -> Part:
    """By way: the median of a step and its share of ours, turn by turn; failed where first losses differ."""
    *_, (own, mine) = turns.items()
    lines = ["| | step | of ours | loss of the first step |", "|---|---|---|---|"]
    figures: dict[str, Any] = {}
    for name, each in turns.items():
        ratios = [a.median_s / b.median_s for a, b in zip(each, mine, strict=True)]
        low, ratio, high = statistics.quantiles(ratios, n=4)
        step_s, loss = statistics.median(turn.median_s for turn in each), each[0].losses[0]
        figures[name] = {"step_s": step_s, "ratio": ratio, "quartiles": [low, high], "first_loss": loss}
        lines.append(f"| {name} | {step_s:.4f} s | {ratio:.2f} ({low:.2f} to {high:.2f}) | {loss:.4f} |")
    expected = figures[own]["first_loss"]
    are_equal = all(abs(each["first_loss"] / expected - 1) < LOSS_TOLERANCE for each in figures.values())
    ran = sum(len(turn.losses) for each in turns.values() for turn in each)
    return Part("context", "passed" if are_equal else "failed", ran, lines, figures)


def ours(shared: Shared, cluster: Any) -> Turn:
    """A ring in a zigzag, as a plan has it."""
    workload = Workload(shared.num_samples, shared.model.max_sequence_length)
    plan = Plan.of(
        shared.model, cluster, workload, cp=shared.degree, microbatch_size=shared.num_samples, dtype=shared.dtype
    )  # fmt: skip
    done = run_training(
        plan, data="random", iterations=shared.num_steps, device=shared.device, measures_memory=False
    )
    return Turn(done.result.losses, [each.seconds for each in done.iterations])


def theirs(shared: Shared, rotation: str = "") -> Turn:
    """torch's, in processes of their own; with a degree of 1 nothing is shared."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (shared, rotation, folder), nprocs=shared.degree)
        found = json.loads((Path(folder) / "turn.json").read_text(encoding="utf-8"))
    return Turn(found["losses"], found["seconds"])


def _rank(rank: int, shared: Shared, rotation: str, folder: str) -> None:
    """One process: joins, trains, and the first writes what was found."""
    is_cuda = shared.device == "cuda"
    device = torch.device("cuda", rank) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if is_cuda else "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=shared.degree
    )  # fmt: skip
    try:
        mesh = init_device_mesh(device.type, (shared.degree,), mesh_dim_names=("cp",))
        if rotation:
            set_rotate_method(rotation)
        turn = _trained(shared, mesh, device)
    finally:
        dist.destroy_process_group()
    if rank == 0:
        found = {"losses": turn.losses, "seconds": turn.seconds}
        (Path(folder) / "turn.json").write_text(json.dumps(found), encoding="utf-8")


def _trained(shared: Shared, mesh: DeviceMesh, device: torch.device) -> Turn:
    """Steps of AdamW. Tokens and the tables of rotary angles are cut by torch, in the same order."""
    plain = PlainDecoder(shared.model)
    plain.load_state_dict(build_model(shared.model).state_dict())
    plain.to(device, FORMATS[shared.dtype])
    # buffers of ranks differ: each has angles of its own tokens
    module = DistributedDataParallel(plain, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    tables = [plain.get_buffer("cos"), plain.get_buffer("sin")]
    losses, seconds = [], []
    for step in range(shared.num_steps):
        samples = range(shared.num_samples)
        drawn = RandomTokens(shared.model.vocabulary_size).batch(
            0, step, samples, shared.model.max_sequence_length
        )
        tokens_BS, targets_BS = (each.to(device) for each in drawn)
        shares = (
            context_parallel(mesh, buffers=[tokens_BS, targets_BS, *tables], buffer_seq_dims=[1, 1, 0, 0])
            if shared.degree > 1
            else contextlib.nullcontext()
        )
        with shares:
            begin_s = _now_s(device)
            logits_BSV = module(tokens_BS)
            loss = F.cross_entropy(logits_BSV.flatten(0, 1).float(), targets_BS.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            slowest_s = torch.tensor(_now_s(device) - begin_s, device=device)
        dist.all_reduce(slowest_s, dist.ReduceOp.MAX)
        losses.append(_mean(loss))
        seconds.append(float(slowest_s))
    return Turn(losses, seconds)


def _now_s(device: torch.device) -> float:
    """The clock, when the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _mean(loss: Tensor) -> float:
    """Over ranks, which have as many tokens each."""
    total = loss.detach().clone()
    dist.all_reduce(total)
    return float(total) / dist.get_world_size()
