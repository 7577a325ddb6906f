"""`serve --replicas N`: so many servers of a model on this machine, behind one address."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from socket import socket
from typing import Any

from meshwright.api.servings.adapter_options import AdapterOptions
from meshwright.api.servings.engine_choice import SIMULATED, EngineChoice
from meshwright.api.servings.opened_model import device_of, engine_of, folder_of, name_of
from meshwright.api.servings.replica import told_of
from meshwright.api.servings.serving import Announce, ServerOptions
from meshwright.serving.api.http.api_key import keys_of
from meshwright.serving.api.http.server import Address, answer_until_told
from meshwright.serving.api.limit import ServerLimits
from meshwright.serving.front.front import front_of
from meshwright.serving.front.replica_process import ReplicaPlace, ReplicaStart
from meshwright.serving.front.replicas import Replicas
from meshwright.serving.policy.continuous_batching import ContinuousBatching
from meshwright.serving.policy.limits import Limits
from meshwright.serving.routing.router import USUAL_ROUTER
from meshwright.specs.cluster.computer import available_cores
from meshwright.specs.error import SpecError

VISIBLE = "CUDA_VISIBLE_DEVICES"
QUIET_S = 10.0  # beyond its limits, after which a replica that says nothing is given up
FIGURES = ("num_requests", "num_prompt_tokens", "num_output_tokens", "num_open")


def places(model: Any, choice: EngineChoice, num: int) -> tuple[EngineChoice, tuple[ReplicaPlace, ...]]:
    """How each of `num` replicas is computed, and where: cores, or GPUs, of its own.

    Raises SpecError where there are fewer GPUs than replicas want, or one is named for all.
    """
    if choice.engine == SIMULATED:
        return choice, (ReplicaPlace(),) * num
    if engine_of(folder_of(model), choice) == "openvino" or device_of(choice.device).startswith("cpu"):
        if choice.num_threads:
            return choice, (ReplicaPlace(),) * num
        cores = available_cores()
        each = max(1, len(cores) // num)
        shares = (tuple(cores[(i * each + j) % len(cores)] for j in range(each)) for i in range(num))
        threads = max(1, each // (choice.tp * choice.pp))
        return replace(choice, num_threads=threads), tuple(ReplicaPlace(cores=share) for share in shares)
    if ":" in choice.device:
        raise SpecError(
            f"{num} replicas with device {choice.device}",
            allowed=f"cuda; {VISIBLE} says which GPUs there are",
        )
    return choice, tuple(ReplicaPlace({VISIBLE: ",".join(share)}) for share in _gpus(choice, num))


def _gpus(choice: EngineChoice, num: int) -> list[list[str]]:
    """The GPUs of each replica, by number."""
    said = os.environ.get(VISIBLE)
    visible = [str(gpu) for gpu in range(_num_gpus())] if said is None else said.split(",")
    each = choice.tp * choice.pp
    if num * each > len(visible):
        raise SpecError(
            f"{num} replicas of {each} GPU{'s' * (each > 1)} on {len(visible)}",
            allowed=f"{len(visible) // each} replicas",
        )
    return [visible[i * each : (i + 1) * each] for i in range(num)]


def _num_gpus() -> int:
    from meshwright.executor.serving.device_name import num_gpus

    return num_gpus()


def serve_replicas(
    model: str | Path, choice: EngineChoice, server: ServerOptions, limits: Limits, policy: ContinuousBatching,
    bounds: ServerLimits, adapting: AdapterOptions, address: Address, listening: socket, announce: Announce,
) -> dict[str, Any]:  # fmt: skip
    """`serve` with several replicas; their figures summed. Raises what the first one says that cannot serve."""
    keys = keys_of(server.api_keys, os.environ)
    chosen, found = places(model, adapting.engine(choice), server.replicas)
    behind = ServerOptions(
        name=server.name or name_of(model), api_keys=server.api_keys, max_queue=server.max_queue
    )
    groups = {"choice": chosen, "server": behind, "limits": limits, "policy": policy, "bounds": bounds}
    how = ReplicaStart("meshwright.api.servings.replica", told_of(model, groups, adapting), found)
    replicas = Replicas(
        how, server.router or USUAL_ROUTER, bounds.timeout_s + QUIET_S, bounds.drain_s + QUIET_S
    )
    served = front_of(replicas, bounds, keys)
    answer_until_told(served, address, listening, lambda url: announce(url, replicas.num_tokens))
    return {name: replicas.figures[name] for name in FIGURES}
