"""Files of those who run servers: Kubernetes manifests of `meshwright serve`, and a configuration of Ray Serve."""

from __future__ import annotations

import re
from string import Template

from meshwright.interop.exported import Exported
from meshwright.interop.script_text import quoted
from meshwright.interop.serving.command import (
    ANYWHERE,
    FP8,
    ONLY_WHOLE,
    check_served,
    served_options,
    words_of,
)
from meshwright.interop.serving.serving_job import ServingExport, ServingJob

PORT = 8000
NAME_CHARACTERS = 50  # of a Deployment; Kubernetes allows 63 and adds its own to pods
DRAIN_S = 45  # `meshwright serve` takes up to 30 s for what runs, and 5 for last bytes
START_S, LOOK_S = 3600, 10  # in which weights may be loaded; between looks
PREFIX_ROUTER = "ray.serve.llm.request_router:PrefixCacheAffinityRouter"

# A pod is a host's worth of replicas, behind the front that routes among them.
KUBERNETES = Template(
    """#   kubectl apply -f $name.yaml
apiVersion: v1
kind: Service
metadata: {name: $name, labels: {app: $name}}
spec:
  selector: {app: $name}
  ports:
    - {name: http, port: $port, targetPort: http}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: $name, labels: {app: $name}}
spec:
  replicas: $pods
  selector: {matchLabels: {app: $name}}
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}
  template:
    metadata:
      labels: {app: $name}
      annotations: {prometheus.io/scrape: "true", prometheus.io/port: "$port", prometheus.io/path: /metrics}
    spec:
      terminationGracePeriodSeconds: $drain
      containers:
        - name: serve
          image: meshwright
          command: [meshwright, serve]
          args:
$arguments
          ports:
            - {name: http, containerPort: $port}
          resources: {limits: {nvidia.com/gpu: "$gpus"}}
          startupProbe: {httpGet: {path: /ready, port: http}, periodSeconds: $look, failureThreshold: $looks}
          readinessProbe: {httpGet: {path: /ready, port: http}, periodSeconds: $look, timeoutSeconds: 5}
          livenessProbe: {httpGet: {path: /health, port: http}, periodSeconds: $look, timeoutSeconds: 5, failureThreshold: 6}
          volumeMounts:
            - {name: models, mountPath: /models, readOnly: true}
            - {name: shm, mountPath: /dev/shm}
      volumes:
        - {name: models, persistentVolumeClaim: {claimName: models}}
        - {name: shm, emptyDir: {medium: Memory}}
"""
)
RAY = Template(
    """#   serve deploy $name.yaml
applications:
  - name: $name
    route_prefix: /
    import_path: ray.serve.llm:build_openai_app
    args:
      llm_configs:
        - model_loading_config: {model_id: $served, model_source: $model}
          accelerator_type: $gpu
          deployment_config:
            num_replicas: $replicas
$router          engine_kwargs:
$engine
"""
)


def export_kubernetes(job: ServingJob) -> Exported:
    """Service and Deployment: each pod has the replicas of one host behind the router."""
    export = ServingExport("k8s", job)
    check_served(export)
    each = min(job.replicas, max(1, job.num_gpus // job.num_each))
    while job.replicas % each:
        each -= 1
    pods = job.replicas // each
    if pods > 1:
        export.need(job.router == "least_loaded", "router", f"between {pods} pods a Service gives to any")
        export.left_open.append(f"a Service gives to any of {pods} pods; within one the router decides")
    model = job.model if "/" in job.model else f"/models/{job.model}"
    words = [model, *words_of([("host", ANYWHERE), ("port", PORT), *served_options(job, each)])]
    export.left_open += [
        "the image, which has meshwright and torch, and the claim `models`, where weights lie",
        "keys (MESHWRIGHT_API_KEYS, from a Secret) and TLS: the port is open to whoever reaches the Service",
    ]
    text = KUBERNETES.substitute(
        name=service_name(job), port=PORT, pods=pods, drain=DRAIN_S, gpus=each * job.num_each, look=LOOK_S,
        looks=START_S // LOOK_S, arguments="\n".join(f"            - {quoted(word)}" for word in words),
    )  # fmt: skip
    return export.finished(text, ".yaml")


def export_ray(job: ServingJob) -> Exported:
    """An application of Ray Serve, whose replicas are vLLM engines."""
    export = ServingExport("ray-serve", job)
    export.check_weights()
    export.need(
        job.attention_dp == 1, "attention_dp", "its replicas are engines of tensor and pipeline parallelism"
    )
    export.need(job.ep in (1, job.tp), "ep", ONLY_WHOLE)
    router = ""
    if job.replicas > 1:
        export.need(
            job.router != "round_robin", "router", "it has prefixes, or two at random and the less loaded one"
        )
        if job.router == "prefix_aware":
            router = f"            request_router_config: {{request_router_class: {quoted(PREFIX_ROUTER)}}}\n"
        elif job.router == "least_loaded":
            export.left_open.append("Ray takes two replicas at random, and the one with less to do")
    engine: dict[str, str | int | bool] = {
        "tensor_parallel_size": job.tp, "pipeline_parallel_size": job.pp, "max_model_len": job.max_model_tokens,
        "max_num_batched_tokens": job.max_batch_tokens, "max_num_seqs": job.max_sequences,
        "block_size": job.block_tokens,
        **({"quantization": "fp8"} if job.dtype == FP8 else {"dtype": job.dtype}),
        **({"enable_expert_parallel": True} if job.ep > 1 else {}),
    }  # fmt: skip
    export.left_open.append(
        "accelerator_type: the name that Ray has for the GPU; the nodes of the Ray cluster"
    )
    name = service_name(job)
    text = RAY.substitute(
        name=name, served=quoted(job.model.rstrip("/").split("/")[-1]), model=quoted(job.model), gpu=quoted(job.gpu),
        replicas=job.replicas, router=router,
        engine="\n".join(f"            {key}: {_plain(value)}" for key, value in engine.items()),
    )  # fmt: skip
    return export.finished(text, ".yaml")


def service_name(job: ServingJob) -> str:
    """A name that Kubernetes takes: the model's, in small letters, digits and dashes."""
    last = job.model.rstrip("/").split("/")[-1].lower()
    name = re.sub(r"[^a-z0-9]+", "-", last).strip("-")[:NAME_CHARACTERS].strip("-")
    return f"serve-{name}" if name else "serve"


def _plain(value: str | int | bool) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else quoted(value)
        if isinstance(value, str)
        else str(value)
    )
