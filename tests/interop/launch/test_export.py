"""Jobs for Slurm, torchrun and Kubernetes: they carry the plan, start as many processes as it has, and run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from meshwright.interop.export import LAUNCHERS, export_plan
from meshwright.interop.launch.export import job_name
from meshwright.specs import Cluster, ModelSpec, Plan, Workload, load_model
from meshwright.specs.error import PlanError

CLUSTER = Cluster("4x8xH100")
PLAN = Plan.of(load_model("llama-3.1-8b"), CLUSTER, Workload(64, 8192), pp=4, dp=8)
# A stand-in for srun: it starts what it is told as often as the script's header says, with Slurm's variables.
SRUN = """#!/bin/sh
shift
for i in 0 1; do
  SLURM_PROCID=$i SLURM_LOCALID=$i SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=127.0.0.1 SLURM_JOB_ID=$$ \\
    "$@" > rank$i.out 2> rank$i.err & eval "p$i=\\$!"
done
wait $p0 && wait $p1
"""


def plan_in(text: str) -> str:
    """The plan that a script writes to its file."""
    found = re.search(r"<<'MESHWRIGHT_PLAN'\n(.*?)MESHWRIGHT_PLAN\n", text, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("target", ["slurm", "torchrun"])
def test_a_script_is_one_and_carries_the_plan(target: str, tmp_path: Path) -> None:
    found = export_plan(PLAN, target, CLUSTER)
    assert found == export_plan(PLAN, target, CLUSTER) and found.suffix == ".sh"
    path = tmp_path / "plan.toml"
    path.write_text(plan_in(found.text))
    assert Plan.load(path) == PLAN
    script = tmp_path / "job.sh"
    script.write_text(found.text)
    subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.parametrize("target", LAUNCHERS)
def test_code_that_the_plan_names_is_left_to_the_user(target: str, tmp_path: Path) -> None:
    """The script carries neither the file nor the trust in it, and `train` refuses the plan without them."""
    (tmp_path / "mine.py").write_text(
        "def wave(p, m):\n    return [[f'F{k}' for k in range(m)] + [f'B{k}' for k in range(m)] for _ in range(p)]\n"
    )
    file = str(tmp_path / "mine.py")
    named = replace(PLAN, schedule=f"{file}:wave")
    (told,) = set(export_plan(named, target, CLUSTER).left_open) - set(
        export_plan(PLAN, target, CLUSTER).left_open
    )
    assert file in told and "--trust" in told


def test_slurm_starts_one_process_for_each_device() -> None:
    lines = export_plan(PLAN, "slurm", CLUSTER).text.splitlines()
    header = {
        line.split("=")[0]: line.split("=")[1] for line in lines if line.startswith("#SBATCH") and "=" in line
    }
    assert header["#SBATCH --nodes"] == "4" and header["#SBATCH --ntasks-per-node"] == "8"
    assert header["#SBATCH --gpus-per-node"] == "8"


def test_kubernetes_reads_it() -> None:
    config, service, job = yaml.safe_load_all(export_plan(PLAN, "k8s", CLUSTER).text)
    assert [part["kind"] for part in (config, service, job)] == ["ConfigMap", "Service", "Job"]
    spec: dict[str, Any] = job["spec"]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 4
    (container,) = spec["template"]["spec"]["containers"]
    (command,) = container["args"]
    assert "--nnodes 4 --nproc-per-node 8" in command and 'node-rank "$JOB_COMPLETION_INDEX"' in command
    name = config["metadata"]["name"]
    assert f"--master-addr {name}-0.{service['metadata']['name']} " in command
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"


def test_kubernetes_has_the_plan(tmp_path: Path) -> None:
    config = next(iter(yaml.safe_load_all(export_plan(PLAN, "k8s", CLUSTER).text)))
    (tmp_path / "plan.toml").write_text(config["data"]["plan.toml"])
    assert Plan.load(tmp_path / "plan.toml") == PLAN


def test_a_computer_without_gpus_asks_for_none() -> None:
    plan = Plan.of(ModelSpec.decoder(2, 16, 2, name="A b/C"), Cluster.detect(2), Workload(8, 16), dp=2)
    for target in LAUNCHERS:
        text = export_plan(plan, target, Cluster.detect(2)).text
        assert "gpu" not in text
    assert job_name(plan) == "train-a-b-c"


def test_hosts_that_are_not_whole_are_refused() -> None:
    cluster = Cluster("3x4xH100")
    uneven = type(cluster)("uneven", cluster.devices[:10], cluster.levels)
    plan = Plan.of(load_model("llama-3.1-8b"), uneven, Workload(10, 8192), dp=10)
    with pytest.raises(PlanError, match="10 devices on hosts of 4"):
        export_plan(plan, "slurm", uneven)


@pytest.mark.slow
def test_the_script_for_slurm_runs(tmp_path: Path) -> None:
    cluster = Cluster.detect(2)
    model = ModelSpec.decoder(2, 16, 2, max_sequence_length=16, name="tiny")
    plan = Plan.of(model, cluster, Workload(4, 16), pp=2, dp=1)
    (tmp_path / "job.sh").write_text(export_plan(plan, "slurm", cluster).text)
    (tmp_path / "text.txt").write_text("the same again. " * 500)
    (tmp_path / "srun").write_text(SRUN)
    (tmp_path / "srun").chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for steps in ("3", "5"):  # the second start goes on
        done = subprocess.run(
            ["bash", "job.sh", "--data", "text.txt", "--iterations", steps],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250,
        )  # fmt: skip
        assert done.returncode == 0, (done.stderr, (tmp_path / "rank0.err").read_text())
    assert "trained 2 steps from step 3 on" in (tmp_path / "rank0.out").read_text()
    assert (tmp_path / "train-tiny-runs" / "step-5").is_dir()
