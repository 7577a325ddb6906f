"""Commands that start servers: vLLM's, SGLang's, and our own.

Names of options: vllm/engine/arg_utils.py (0.11), sglang/srt/server_args.py and sglang_router (0.5).
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.interop.exported import Exported
from meshwright.interop.script_text import shell_word
from meshwright.interop.serving.serving_job import ServingExport, ServingJob

Option = tuple[str, str | int]  # a name and a value; "": a switch
FP8 = "float8"
SGLANG_ROUTERS = {"round_robin": "round_robin", "prefix_aware": "cache_aware", "least_loaded": "power_of_two"}
SERVED_DTYPES = ("float32", "bfloat16")
SHELL = "#!/bin/sh\n"
ONLY_WHOLE = "it divides experts over all devices of tp, or none"
ANYWHERE = "0.0.0.0"  # a container's own address; its Service says who may come


def export_vllm(job: ServingJob) -> Exported:
    """A script for `vllm serve`; its own coordinator gives a request to the replica with the least to do."""
    export = ServingExport("vllm", job)
    export.check_weights()
    export.fits_a_host()
    export.need(
        job.attention_dp == 1, "attention_dp", "its data-parallel attention divides other layers otherwise"
    )
    export.need(job.ep in (1, job.tp), "ep", ONLY_WHOLE)
    if job.replicas > 1:
        export.need(
            job.router == "least_loaded",
            "router",
            "its coordinator gives to the replica with the least to do",
        )
        export.need(job.ep == 1, "ep", "with several replicas it would divide experts over all of them")
        all_of_it = job.replicas * job.num_each
        export.need(all_of_it <= job.num_gpus, "replicas", f"{all_of_it} GPUs are more than one host has")
    options: list[Option] = [
        ("tensor-parallel-size", job.tp), ("pipeline-parallel-size", job.pp), ("data-parallel-size", job.replicas),
        *_format(job), ("max-model-len", job.max_model_tokens), ("max-num-batched-tokens", job.max_batch_tokens),
        ("max-num-seqs", job.max_sequences), ("block-size", job.block_tokens),
        *([("enable-expert-parallel", "")] if job.ep > 1 else []),
    ]  # fmt: skip
    return export.finished(_script(["vllm", "serve", job.model], options), ".sh", SHELL)


def export_sglang(job: ServingJob) -> Exported:
    """A script for SGLang's server, or for its router where there are several replicas."""
    export = ServingExport("sglang", job)
    export.check_weights()
    export.fits_a_host()
    starts = ["python", "-m", "sglang.launch_server"]
    options: list[Option] = [
        ("model-path", job.model), ("tp-size", job.tp), ("pp-size", job.pp), ("ep-size", job.ep), *_format(job),
        ("context-length", job.max_model_tokens), ("chunked-prefill-size", job.max_batch_tokens),
        ("max-prefill-tokens", job.max_batch_tokens), ("max-running-requests", job.max_sequences),
        ("page-size", job.block_tokens), ("enable-mixed-chunk", ""),
    ]  # fmt: skip
    if job.attention_dp > 1:
        export.need(
            job.replicas == 1, "replicas", "dp-size says how many groups attend, or how many replicas"
        )
        options += [("dp-size", job.attention_dp), ("enable-dp-attention", "")]
    elif job.replicas > 1:
        all_of_it = job.replicas * job.num_each
        export.need(all_of_it <= job.num_gpus, "replicas", f"{all_of_it} GPUs are more than one host has")
        starts = ["python", "-m", "sglang_router.launch_server"]
        options += [("dp-size", job.replicas), ("router-policy", SGLANG_ROUTERS[job.router])]
        if job.router == "least_loaded":
            export.left_open.append("its router takes two replicas at random, and the one with less to do")
    return export.finished(_script(starts, options), ".sh", SHELL)


def export_meshwright(job: ServingJob) -> Exported:
    """A script for `meshwright serve` on one host."""
    export = ServingExport("meshwright", job)
    check_served(export)
    all_of_it = job.replicas * job.num_each
    export.need(all_of_it <= job.num_gpus, "replicas", f"{all_of_it} GPUs are more than one host has")
    return export.finished(
        _script(["meshwright", "serve", job.model], served_options(job, job.replicas)), ".sh"
    )


def check_served(export: ServingExport) -> None:
    """What our own server does not do is refused."""
    job = export.job
    export.fits_a_host()
    export.need(job.dtype in SERVED_DTYPES, "dtype", f"it serves in {' or '.join(SERVED_DTYPES)}")
    export.need(job.attention_dp == 1, "attention_dp", "its attention is divided by tp")
    export.left_open.append(f"blocks have the engine's own size in place of {job.block_tokens} tokens")


def served_options(job: ServingJob, replicas: int) -> list[Option]:
    """Of `meshwright serve` with so many replicas."""
    several: list[Option] = [("replicas", replicas), ("router", job.router)]
    whole: list[Option] = [("ep", job.ep)] if job.ep > 1 else []
    return [
        ("tp", job.tp), ("pp", job.pp), *whole, ("dtype", job.dtype), *(several if replicas > 1 else []),
        ("max-batch-tokens", job.max_batch_tokens), ("max-sequences", job.max_sequences),
        ("max-model-tokens", job.max_model_tokens),
        *([("weights", job.weights)] if job.weights != job.usual_weights else []),
    ]  # fmt: skip


def words_of(options: Sequence[Option]) -> list[str]:
    """As they are typed."""
    return [word for name, value in options for word in (f"--{name}", str(value)) if word]


def _format(job: ServingJob) -> list[Option]:
    return [("quantization", "fp8")] if job.dtype == FP8 else [("dtype", job.dtype)]


def _script(start: Sequence[str], options: Sequence[Option]) -> str:
    lines = [f"--{name} {shell_word(str(value))}" if value != "" else f"--{name}" for name, value in options]
    return " \\\n  ".join(["exec " + " ".join(map(shell_word, start)), *lines, '"$@"']) + "\n"
