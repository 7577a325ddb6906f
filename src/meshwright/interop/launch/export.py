"""Writes the job that trains a plan with `meshwright train`: for Slurm, for torchrun on hosts by hand, for Kubernetes.

The text carries the plan itself, so one file is the job. Every process runs the same command and finds its place in what
srun or torchrun tell it (`executor.launch`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Template

from meshwright.interop.exported import Exported, plan_digest
from meshwright.interop.script_text import comment, quoted
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.plan.file import plan_text
from meshwright.specs.plan.plan import Plan
from meshwright.specs.slot import Reference

END = "MESHWRIGHT_PLAN"  # ends the plan's text in a script; no line of a TOML file is this word alone
NAME_CHARACTERS = 40  # of a job; Kubernetes allows 63 and adds its own
PORT = 29500  # torchrun's own default
OPTIONS = (
    "data, learning rate, length and all other options of `meshwright train`: given behind the script's name",
    "an environment with meshwright and torch on every host, and a folder for checkpoints that all hosts see",
)
LEFT_OPEN: Mapping[str, tuple[str, ...]] = {
    "slurm": (*OPTIONS, "account, partition and time limit: options of sbatch"),
    "torchrun": (*OPTIONS, "NODE_RANK and MASTER_ADDR: set on every host"),
    "k8s": (
        "the image, which has meshwright and torch, and the claim `data`, where text and checkpoints lie",
        "learning rate, length and all other options of `meshwright train`: in `args`",
    ),
}

SLURM = Template(
    """#!/bin/bash
$headline
#   sbatch $name.sh --data /shared/text --tokens 2e9
#SBATCH --job-name=$name
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=$each
$gpus#SBATCH --requeue
#SBATCH --open-mode=append
# Two minutes before the end of the time limit all ranks save and leave; the next start goes on from there.
#SBATCH --signal=TERM@120
set -eu
cd "$${SLURM_SUBMIT_DIR:-.}"
cat > $name-plan.toml <<'$end'
$plan$end
export OMP_NUM_THREADS="$${OMP_NUM_THREADS:-1}"
# Keys of the job's store begin with it: what else meets at this port by mistake does not disturb the job.
export MESHWRIGHT_TOKEN="$${MESHWRIGHT_TOKEN:-$$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')}"
srun --kill-on-bad-exit=1 meshwright train $name-plan.toml --checkpoints $name-runs --resume "$$@"
"""
)
TORCHRUN = Template(
    """#!/bin/sh
$headline
# On every host, with NODE_RANK from 0 to $last and MASTER_ADDR the name or number of the host with NODE_RANK 0:
#   NODE_RANK=0 MASTER_ADDR=host0 sh $name.sh --data /shared/text --tokens 2e9
set -eu
cat > $name-plan.toml <<'$end'
$plan$end
export OMP_NUM_THREADS="$${OMP_NUM_THREADS:-1}"
exec torchrun --nnodes $nodes --nproc-per-node $each --node-rank "$${NODE_RANK:-0}" \\
  --master-addr "$${MASTER_ADDR:-127.0.0.1}" --master-port "$${MASTER_PORT:-$port}" --no-python \\
  meshwright train $name-plan.toml --checkpoints $name-runs --resume "$$@"
"""
)
# An indexed Job numbers its pods, and with a headless service pod 0 has a name that the others know.
KUBERNETES = Template(
    """$headline
#   kubectl apply -f $name.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: $name}
data:
  plan.toml: $plan_json
---
apiVersion: v1
kind: Service
metadata: {name: $name}
spec:
  clusterIP: None
  selector: {job-name: $name}
---
apiVersion: batch/v1
kind: Job
metadata: {name: $name}
spec:
  completionMode: Indexed
  completions: $nodes
  parallelism: $nodes
  backoffLimit: 10
  template:
    spec:
      subdomain: $name
      restartPolicy: Never
      terminationGracePeriodSeconds: 120
      containers:
        - name: train
          image: meshwright
          command: ["/bin/sh", "-c"]
          args:
            - >-
              exec torchrun --nnodes $nodes --nproc-per-node $each --node-rank "$$JOB_COMPLETION_INDEX"
              --master-addr $name-0.$name --master-port $port --no-python
              meshwright train /plan/plan.toml --checkpoints /data/$name-runs --resume --data /data/text
          env:
            - {name: OMP_NUM_THREADS, value: "1"}
$resources          volumeMounts:
            - {name: plan, mountPath: /plan}
            - {name: data, mountPath: /data}
            - {name: shm, mountPath: /dev/shm}
      volumes:
        - {name: plan, configMap: {name: $name}}
        - {name: data, persistentVolumeClaim: {claimName: data}}
        - {name: shm, emptyDir: {medium: Memory}}
"""
)


def export_slurm(plan: Plan, cluster: ClusterSpec) -> Exported:
    """A batch script. Raises PlanError where the devices do not fill whole hosts."""
    gpus = f"#SBATCH --gpus-per-node={_per_host(cluster)}\n" if not cluster.machine.is_here else ""
    return _exported("slurm", SLURM, plan, cluster, ".sh", gpus=gpus)


def export_torchrun(plan: Plan, cluster: ClusterSpec) -> Exported:
    """A script that is run on every host. Raises PlanError where the devices do not fill whole hosts."""
    return _exported("torchrun", TORCHRUN, plan, cluster, ".sh")


def export_kubernetes(plan: Plan, cluster: ClusterSpec) -> Exported:
    """ConfigMap, Service and Job, one pod a host. Raises PlanError where the devices do not fill whole hosts."""
    limit = f'          resources: {{limits: {{nvidia.com/gpu: "{_per_host(cluster)}"}}}}\n'
    return _exported(
        "k8s", KUBERNETES, plan, cluster, ".yaml", resources=limit if not cluster.machine.is_here else ""
    )


def _exported(
    target: str, template: Template, plan: Plan, cluster: ClusterSpec, suffix: str, **more: str
) -> Exported:
    each = _per_host(cluster)
    nodes, rest = divmod(cluster.num_devices, each)
    if rest:
        raise PlanError(
            f"{cluster.num_devices} devices on hosts of {each}",
            allowed="whole hosts: every one starts as many processes",
            next="plan for a cluster of whole hosts",
        )
    digest, text = plan_digest(plan), plan_text(plan)
    headline = comment(f"meshwright train, plan {digest}: {plan.model.name}, {plan.product_text()} processes")
    filled = template.substitute(
        headline=headline, name=job_name(plan), nodes=nodes, each=each, last=nodes - 1, plan=text,
        plan_json=quoted(text), end=END, port=PORT, **more,
    )  # fmt: skip
    return Exported(target, filled, digest, suffix, (*LEFT_OPEN[target], *_code_of(plan)))


def _code_of(plan: Plan) -> tuple[str, ...]:
    """What is left to the user of a plan that names files of theirs: a script does not carry them, nor trust them."""
    files = dict.fromkeys(each.file for each in map(Reference.of, plan.references) if each.names_code)
    if not files:
        return ()
    return (
        f"the code that the plan names: {', '.join(files)} in the folder of the job on every host; and --trust for train",
    )


def job_name(plan: Plan) -> str:
    """A name that Slurm and Kubernetes take: the model's, in small letters, digits and dashes."""
    name = re.sub(r"[^a-z0-9]+", "-", plan.model.name.lower()).strip("-")[:NAME_CHARACTERS].strip("-")
    return f"train-{name}" if name else "train"


def _per_host(cluster: ClusterSpec) -> int:
    """Processes that one host starts."""
    return min(cluster.levels[0].num_devices, cluster.num_devices)
