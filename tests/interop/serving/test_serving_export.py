"""Plans that serve in the words of servers: golden texts, and every choice that a server has no words for by name."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from meshwright.interop.exported import ExportError
from meshwright.interop.serving.export import SERVERS, export_serving
from meshwright.interop.serving.manifest import PORT
from meshwright.interop.serving.serving_job import ServingJob
from meshwright.specs.error import UnknownNameError

JOB = ServingJob(
    model="org/Llama-8B", is_preset=False, gpu="H100", num_gpus=8, dtype="bfloat16", max_model_tokens=8192, tp=2, pp=1,
    ep=1, attention_dp=1, replicas=4, num_prefill=0, max_batch_tokens=2048, max_sequences=128, block_tokens=16,
    router="least_loaded", weights="resident", usual_weights="resident",
)  # fmt: skip
ALONE = replace(JOB, replicas=1)
VLLM = """#!/bin/sh
# meshwright serving plan {digest}: org/Llama-8B, 4 x tp2 pp1, bfloat16, H100
exec vllm serve org/Llama-8B \\
  --tensor-parallel-size 2 \\
  --pipeline-parallel-size 1 \\
  --data-parallel-size 4 \\
  --dtype bfloat16 \\
  --max-model-len 8192 \\
  --max-num-batched-tokens 2048 \\
  --max-num-seqs 128 \\
  --block-size 16 \\
  "$@"
"""
RAY = """# meshwright serving plan {digest}: org/Llama-8B, 4 x tp2 pp1, bfloat16, H100
#   serve deploy serve-llama-8b.yaml
applications:
  - name: serve-llama-8b
    route_prefix: /
    import_path: ray.serve.llm:build_openai_app
    args:
      llm_configs:
        - model_loading_config: {{model_id: "Llama-8B", model_source: "org/Llama-8B"}}
          accelerator_type: "H100"
          deployment_config:
            num_replicas: 4
          engine_kwargs:
            tensor_parallel_size: 2
            pipeline_parallel_size: 1
            max_model_len: 8192
            max_num_batched_tokens: 2048
            max_num_seqs: 128
            block_size: 16
            dtype: "bfloat16"
"""


def words(job: ServingJob, target: str) -> list[str]:
    """Of the command that a script runs."""
    return shlex.split(export_serving(job, target).text.replace("\\\n", ""), comments=True)


def manifests(job: ServingJob) -> tuple[dict[str, Any], dict[str, Any]]:
    service, deployment = yaml.safe_load_all(export_serving(job, "k8s").text)
    return service, deployment


@pytest.mark.parametrize(("target", "text"), [("vllm", VLLM), ("ray-serve", RAY)])
def test_the_text_is_this(target: str, text: str) -> None:
    assert export_serving(JOB, target).text == text.format(digest=JOB.digest)


@pytest.mark.parametrize("target", ["vllm", "sglang", "meshwright"])
def test_scripts_are_some_and_take_more_options(target: str, tmp_path: Path) -> None:
    """Run with a stand-in for the server, which says what it was told."""
    name = words(JOB, target)[1]
    (tmp_path / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / name).chmod(0o755)
    script = tmp_path / "job.sh"
    script.write_text(export_serving(replace(JOB, model="a model; $HOME"), target).text)
    ran = subprocess.run(
        ["sh", script, "--port", "9"],
        text=True,
        capture_output=True,
        env={"PATH": f"{tmp_path}:/bin:/usr/bin"},
    )
    said = ran.stdout.splitlines()
    assert ran.returncode == 0 and "a model; $HOME" in said and said[-2:] == ["--port", "9"]


def test_sglang_has_a_router_where_there_are_several() -> None:
    several = words(replace(JOB, router="prefix_aware"), "sglang")
    assert several[3] == "sglang_router.launch_server"
    assert several[several.index("--router-policy") + 1] == "cache_aware"
    assert several[several.index("--dp-size") + 1] == "4"
    alone = words(replace(ALONE, tp=8, attention_dp=4), "sglang")
    assert alone[3] == "sglang.launch_server" and "--enable-dp-attention" in alone
    assert alone[alone.index("--dp-size") + 1] == "4" and "--router-policy" not in alone


def test_formats_and_experts() -> None:
    job = replace(ALONE, dtype="float8", ep=2)
    assert "--quantization fp8" in export_serving(job, "vllm").text
    assert "--dtype" not in export_serving(job, "vllm").text
    assert words(job, "vllm")[-2] == "--enable-expert-parallel"
    assert "--tp 2 \\\n  --pp 1 \\\n  --ep 2 \\" in export_serving(replace(ALONE, ep=2), "meshwright").text
    assert "--ep" not in export_serving(ALONE, "meshwright").text
    engine = yaml.safe_load(export_serving(job, "ray-serve").text)["applications"][0]["args"]["llm_configs"][
        0
    ]
    assert (
        engine["engine_kwargs"]["quantization"] == "fp8" and engine["engine_kwargs"]["enable_expert_parallel"]
    )


def test_a_pod_has_the_replicas_of_a_host_behind_one_front() -> None:
    service, deployment = manifests(replace(JOB, router="prefix_aware"))
    spec = deployment["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert spec["replicas"] == 1 and container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    told = container["args"]
    assert told[told.index("--replicas") + 1] == "4" and told[told.index("--router") + 1] == "prefix_aware"
    assert all(isinstance(each, str) for each in told)
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "http"}
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    labels = spec["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == spec["selector"]["matchLabels"] == labels
    assert service["spec"]["ports"][0]["port"] == PORT == container["ports"][0]["containerPort"]


def test_more_replicas_than_a_host_has_room_for_are_more_pods() -> None:
    """Twelve of two GPUs: three pods of four; six of four: three of two; seven of eight: one each."""
    for tp, replicas, pods, each in ((2, 12, 3, 4), (4, 6, 3, 2), (8, 7, 7, 1), (2, 7, 7, 1)):
        job = replace(JOB, tp=tp, replicas=replicas)
        _, deployment = manifests(job)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert (deployment["spec"]["replicas"], container["resources"]["limits"]["nvidia.com/gpu"]) == (
            pods,
            str(each * tp),
        )
        assert any("Service" in line for line in export_serving(job, "k8s").left_open)


@pytest.mark.parametrize(
    ("target", "change", "choice"),
    [
        ("vllm", {"router": "prefix_aware"}, "router = prefix_aware"),
        ("vllm", {"replicas": 8}, "replicas = 8"),
        ("vllm", {"attention_dp": 2}, "attention_dp = 2"),
        ("vllm", {"ep": 2}, "ep = 2"),
        ("sglang", {"attention_dp": 2}, "replicas = 4"),
        ("sglang", {"tp": 16, "replicas": 1}, "tp = 16"),
        ("meshwright", {"dtype": "float8"}, "dtype = float8"),
        ("k8s", {"router": "prefix_aware", "replicas": 8}, "router = prefix_aware"),
        ("ray-serve", {"router": "round_robin"}, "router = round_robin"),
        *((target, {"num_prefill": 1}, "num_prefill = 1") for target in SERVERS),
        *((target, {"others": (("step", "nano"),)}, "step = nano") for target in SERVERS),
        *((target, {"weights": "window"}, "weights = window") for target in ("vllm", "sglang", "ray-serve")),
    ],
)
def test_what_cannot_be_said_is_refused_by_name(target: str, change: dict[str, Any], choice: str) -> None:
    with pytest.raises(ExportError) as refused:
        export_serving(replace(JOB, **change), target)
    assert [each.choice for each in refused.value.refusals] == [choice]


def test_our_own_server_takes_what_it_has() -> None:
    assert words(replace(ALONE, weights="window"), "meshwright")[-3:-1] == ["--weights", "window"]
    assert "--replicas" not in words(ALONE, "meshwright")
    with pytest.raises(UnknownNameError, match="vllm"):
        export_serving(JOB, "vlm")
    preset = export_serving(replace(JOB, is_preset=True), "vllm")
    assert any("preset" in line for line in preset.left_open)
