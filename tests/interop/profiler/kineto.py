"""Writes traces as Kineto does: what a host launched, and kernels, annotations and collectives with the fields they have.

The fields are those of traces that PyTorch 2.1 to 2.13 wrote (of V100, A100, MI250 and CPUs).
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAIN, ENGINE = 100, 101  # threads of the host: the program, and autograd


@dataclass
class Kineto:
    """One rank's trace; times in microseconds."""

    rank: int | None = 0
    num_ranks: int = 1
    base_ns: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)

    def event(self, category: str, name: str, ts: float, dur: float, thread: int = MAIN, **args: Any) -> None:
        self.rows.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 7,
                "tid": thread,
                "ts": ts,
                "dur": dur,
                "args": args,
            }
        )

    def annotate(self, name: str, ts: float, dur: float, thread: int = MAIN) -> None:
        self.event("user_annotation", name, ts, dur, thread)

    def operator(self, name: str, ts: float, dur: float, thread: int = MAIN, forward: bool = False) -> None:
        self.event("cpu_op", name, ts, dur, thread)
        if forward:
            flow = {
                "ph": "s",
                "cat": "fwdbwd",
                "name": "fwdbwd",
                "id": len(self.rows),
                "pid": 7,
                "tid": thread,
            }
            self.rows.append({**flow, "ts": ts})

    def kernel(
        self, name: str, launched: float, ts: float, dur: float, stream: int = 7, thread: int = MAIN,
        category: str = "kernel", **args: Any,
    ) -> None:  # fmt: skip
        number = len(self.rows)
        self.event("cuda_runtime", "cudaLaunchKernel", launched, 1.0, thread, correlation=number)
        told = {"device": 0, "stream": stream, "correlation": number, **args}
        self.rows.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 0,
                "tid": stream,
                "ts": ts,
                "dur": dur,
                "args": told,
            }
        )

    def held(self, ts: float, total: int, kind: int = 1, device: int = 0) -> None:
        """An allocation, or something given back; `kind`: 0 in the host's memory, 1 on a GPU."""
        told = {"Total Reserved": total, "Total Allocated": total, "Bytes": 1, "Addr": 1, "Ev Idx": 1}
        self.rows.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": "[memory]",
                "pid": 7,
                "tid": MAIN,
                "ts": ts,
                "args": {**told, "Device Type": kind, "Device Id": device},
            }
        )

    def data(self) -> dict[str, Any]:
        info = (
            {} if self.rank is None else {"rank": self.rank, "world_size": self.num_ranks, "backend": "nccl"}
        )
        return {
            "schemaVersion": 1, "distributedInfo": info, "baseTimeNanoseconds": self.base_ns,
            "displayTimeUnit": "ms", "traceEvents": self.rows,
        }  # fmt: skip

    def save(self, folder: Path) -> Path:
        path = folder / f"rank{self.rank}.pt.trace.json.gz"
        path.write_bytes(gzip.compress(json.dumps(self.data()).encode()))
        return path


FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(Flash_fwd_params)"
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off"
GELU = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>(int)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>()"


def data_parallel_job(
    folder: Path, num_steps: int = 4, slow: float = 0.0, behind_us: float = 0.0
) -> list[Path]:
    """Two ranks of a data-parallel job on GPUs; rank 1 computes `slow` us longer backward, its clock is `behind_us` late.

    A step takes 1000 us: forward 200 (attention 50, products 150), backward 400, of which the last 100 pass beside an
    all-reduce of 300 that ends at 800, optimizer 100 from 800; the host launches it all in 300.
    """
    return [_rank(rank, num_steps, slow * rank, behind_us * rank).save(folder) for rank in range(2)]


def _rank(rank: int, num_steps: int, slow: float, behind: float) -> Kineto:
    made = Kineto(rank, 2)
    for step in range(num_steps):
        at = 5000.0 + 1000 * step - behind
        made.annotate(f"ProfilerStep#{step + 3}", at, 990)
        made.annotate("DistributedDataParallel.forward", at + 10, 80)
        made.kernel(FLASH, at + 20, at + 100, 50)
        made.kernel(GEMM, at + 30, at + 150, 150)
        made.operator("autograd::engine::evaluate_function: MmBackward0", at + 110, 40, ENGINE)
        made.kernel(GEMM, at + 120, at + 300 - slow, 300 + slow, thread=ENGINE)
        made.operator("autograd::engine::evaluate_function: GeluBackward0", at + 160, 40, ENGINE)
        made.kernel(GELU, at + 170, at + 600, 100, thread=ENGINE)
        made.annotate("nccl:all_reduce", at + 180, 5, ENGINE)
        group = {"Collective name": "allreduce", "Process Group Ranks": "[0, 1]", "Group size": 2}
        made.kernel(ALL_REDUCE, at + 181, at + 500 + slow, 300 - slow, stream=20, thread=ENGINE, **group)
        made.annotate("Optimizer.step#AdamW.step", at + 210, 50)
        made.kernel(ADAM, at + 220, at + 800, 100)
        made.kernel("Memcpy DtoH (Device -> Pinned)", at + 270, at + 905, 5, category="gpu_memcpy")
        made.kernel("void mine::fused(float*)", at + 280, at + 910, 40)
    return made
