"""What an annotation, an operator or a kernel of torch.profiler is called as an instruction; what nobody knows is OTHER.

Names that are known, and whose they are: our executor's (`PP:1F3 | 17 F COMPUTE`, a row of its program);
torch.distributed.pipelining's (`PP:1F3`, `Forward 3`), torch's optimizers, DistributedDataParallel, FSDP, autograd;
Megatron-LM's functions where stacks were recorded, and names of its timers; `## forward ##` as TorchRec writes it; process
groups' collectives (`nccl:all_reduce`) and kernels of NCCL and RCCL.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from meshwright.ir.core_vocabulary import CORE
from meshwright.ir.stored.row_annotation import RowAnnotation
from meshwright.ir.table import Kind

OTHER = "OTHER"
FORWARD, BACKWARD, RECOMPUTE, STEP = "F", "B", "R", "STEP"
BY_ANNOTATION, BY_AUTOGRAD, BY_KERNEL, BY_NOBODY = "annotation", "autograd", "kernel", ""


class Naming(NamedTuple):
    """An instruction's name. `stage` and `microbatch`: -1 where nobody says. `is_instruction`: it is one whole row of a
    program; `source`: who said so; `place`: of a row that our executor ran, in the list of its rank, else -1."""

    name: str
    kind: Kind = Kind.COMPUTE
    stage: int = -1
    microbatch: int = -1
    is_instruction: bool = False
    source: str = BY_ANNOTATION
    place: int = -1


UNKNOWN = Naming(OTHER, source=BY_NOBODY)
# An instruction as torch spells it: stage, name, microbatch. Larger numbers are no stage and no microbatch of anybody.
_ACTION = re.compile(r"PP:(\d{1,4})([A-Za-z][A-Za-z_]*?)(\d{0,6})$")
_COUNTED = re.compile(r"(Forward|Backward) (\d{1,6})$")
_WORDS = {
    "forward": FORWARD, "forward_step": FORWARD, "forward-compute": FORWARD, "forward_compute": FORWARD,
    "backward": BACKWARD, "backward_step": BACKWARD, "backward-compute": BACKWARD, "backward_compute": BACKWARD,
    "optimizer": STEP, "optimizer_step": STEP, "optimizer-step": STEP, "optimizer.step": STEP,
}  # fmt: skip
_FRAMES = re.compile(r"pipeline_parallel/schedules\.py\(\d+\): (forward_step|backward_step)$")
_BEGINNINGS = (
    ("Optimizer.step#", STEP), ("DistributedDataParallel.forward", FORWARD),
    ("FullyShardedDataParallel.forward", FORWARD),
)  # fmt: skip
_SHARDING = (("FSDP::all_gather", "UNSHARD"), ("FSDP::post_backward_reduce", "SCATTER_GRAD"))
AUTOGRAD = "autograd::engine::evaluate_function"
# What is in a name of a collective without underscores, the first that is; kinds of those that are not collectives.
_EXCHANGES = {
    "reducescatter": "REDUCE_SCATTER", "allreduce": "ALL_REDUCE", "allgather": "ALL_GATHER",
    "alltoall": "ALL_TO_ALL", "broadcast": "BROADCAST", "sendrecv": "SEND_RECEIVE", "send": "SEND", "recv": "RECV",
    "barrier": "BARRIER", "reduce": "REDUCE", "gather": "GATHER", "scatter": "SCATTER_FROM_ONE",
}  # fmt: skip
_EXCHANGE_KINDS = {"SEND": Kind.SEND, "RECV": Kind.RECEIVE}
_GROUP = re.compile(r"(?:nccl|gloo|mpi|ucc|xccl|hccl):(\w+)")
# Ends of all members of these are the same moment, so that clocks can be set by them.
TOGETHER = ("ALL_REDUCE", "ALL_GATHER", "REDUCE_SCATTER", "ALL_TO_ALL", "BARRIER")
# Work of kernels, by the names of `prediction`'s parts, the first that matches: attention, products, all that streams memory.
_WORKS = (
    ("attention", re.compile(r"flash|fmha|attention|sdpa", re.I)),
    (
        "matmul",
        re.compile(r"gemm|cutlass|cublas|nvjet|Cijk_|_mma_|wgmma|xmma|triton_tem_|\bgemv|splitK", re.I),
    ),
    (
        "stream",
        re.compile(
            r"elementwise|reduce_kernel|layer_?norm|rms_?norm|softmax|multi_tensor|adam|dropout|embedding|cross_entropy|"
            r"CatArray|triton_(?:poi|red|per)_|nll_loss|index_|gather_kernel|Functor",
            re.I,
        ),
    ),
)


@cache
def annotation(name: str) -> Naming | None:
    """What a record_function, or a Python function where stacks were recorded, is; None where nobody knows it."""
    row = RowAnnotation.read(name)
    if row is not None:
        return Naming(row.name, row.kind, row.stage, row.microbatch, is_instruction=True, place=row.place)
    action = _ACTION.match(name)
    if action is not None:
        return _instruction(*action.groups())
    counted = _COUNTED.match(name)
    if counted is not None:
        return Naming(
            FORWARD if counted[1] == "Forward" else BACKWARD,
            microbatch=int(counted[2]),
            is_instruction=True,
        )
    frame = _FRAMES.search(name)
    if frame is not None:
        return Naming(_WORDS[frame[1]])
    word = _WORDS.get(name.strip("# ").lower())
    found = word or next((said for start, said in _BEGINNINGS if name.startswith(start)), None)
    return None if found is None else Naming(found)


def _instruction(stage: str, name: str, microbatch: str) -> Naming:
    known = CORE.names.get(name)
    kind = Kind.COMPUTE if known is None else known.effect.kind
    return Naming(name, kind, int(stage), int(microbatch) if microbatch else -1, is_instruction=True)


@cache
def sharding(name: str) -> str:
    """What FSDP says that the collectives inside are for; empty where it says nothing."""
    return next((said for start, said in _SHARDING if name.startswith(start)), "")


@cache
def group_call(name: str) -> Naming | None:
    """A process group's own annotation of a collective."""
    found = _GROUP.match(name)
    return None if found is None else exchange(found[1])


@cache
def exchange(text: str) -> Naming | None:
    """The exchange that a name of a collective or of its kernel says; None where it says none."""
    plain = text.replace("_", "").lower()
    name = next((said for word, said in _EXCHANGES.items() if word in plain), None)
    if name is None:
        return None
    return Naming(name, _EXCHANGE_KINDS.get(name, Kind.COLLECTIVE), source=BY_KERNEL)


def is_exchange_kernel(name: str) -> bool:
    """Is a kernel NCCL's or RCCL's?"""
    return "nccl" in name[:16].lower()


@cache
def work_of(kernel: str) -> str:
    """What a compute kernel does, by its name: matmul, attention, stream, or other."""
    return next((work for work, pattern in _WORKS if pattern.search(kernel)), "other")


@cache
def copy_of(name: str) -> Naming:
    """A copy between memories: to the device, to the host, or within."""
    kind = Kind.LOAD if "HtoD" in name else Kind.STORE if "DtoH" in name else Kind.COPY
    return Naming(kind.name, kind, source=BY_KERNEL)
