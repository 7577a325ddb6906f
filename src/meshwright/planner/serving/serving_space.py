"""Which ways there are to serve a model on a cluster: layouts of a replica, how many, what a step may have, who prefills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from typing import Any

from meshwright.serving.decoder.decoder import ONE_TOKEN, decoder_of
from meshwright.serving.fleet.serving_plan import ServingPlan
from meshwright.serving.simulated.forward_program import ACTIVATIONS
from meshwright.serving.simulated.parted.serving_step import WHOLE, step_named
from meshwright.serving.simulated.replica_layout import ReplicaLayout
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError, SpecError
from meshwright.specs.model.model import ModelSpec

LAYOUT = tuple(each.name for each in fields(ReplicaLayout))
CHOICES = tuple(each.name for each in fields(ServingPlan) if each.name != "layout")
NAMED = ("router", "weights", "sums", "step", "decoder")
BATCH_TOKENS, SEQUENCES = (512, 2048, 8192), (64, 256, 1024)  # that are tried: from latency to throughput
LOWERED_TOKENS = 16  # of the plan by which a layout is tried


def check_fixed(fix: Mapping[str, Any]) -> None:
    """Raise PlanError for what serving does not decide, and for a step that nobody knows."""
    if unknown := sorted(set(fix) - {*LAYOUT, *CHOICES}):
        raise PlanError(
            f"a plan that serves has no {', '.join(unknown)}", allowed=", ".join((*LAYOUT, *CHOICES, "dtype"))
        )
    for name, value in fix.items():
        if name not in NAMED and (type(value) is not int or value < (0 if name == "num_prefill" else 1)):
            raise PlanError(f"{name} is {value!r}", allowed="a whole number from 1")
    step_named(str(fix.get("step", WHOLE)))
    decoder_of(str(fix.get("decoder", ONE_TOKEN)))


def layouts(model: ModelSpec, cluster: ClusterSpec, fix: Mapping[str, Any]) -> list[ReplicaLayout]:
    """Layouts that divide the model, tensor parallelism within a node unless it is fixed; smallest replicas first.

    Raises PlanError, that of the last one tried, where there is none.
    """
    per_node = cluster.levels[0].num_devices
    refused: SpecError | PlanError | None = None
    found = []
    for tp in _fixed_or(fix, "tp", _doublings(per_node)):
        for pp in _fixed_or(
            fix, "pp", _doublings(cluster.num_devices // max(1, min(tp, cluster.num_devices)))
        ):
            has_experts = any(kind.experts for kind in model.kinds)
            has_latents = any(
                kind.attention.latent for kind in model.kinds
            )  # else every device has all of it
            degrees = product(
                _fixed_or(fix, "ep", (1, tp) if has_experts else (1,)),
                _fixed_or(fix, "attention_dp", (1, tp) if has_latents else (1,)),
            )
            for ep, attention_dp in degrees:
                layout = ReplicaLayout(tp, pp, ep, attention_dp)
                if layout.num_devices * int(fix.get("replicas", 1)) > cluster.num_devices:
                    continue
                try:
                    layout.plan(model, cluster, LOWERED_TOKENS, ACTIVATIONS)
                except (PlanError, SpecError) as error:
                    refused = error
                else:
                    found.append(layout)
    if not found:
        raise refused or PlanError(
            f"no replica of {dict(fix)} fits on {cluster.num_devices} devices",
            allowed="tp x pp x replicas of at most these",
        )
    return sorted(found, key=lambda each: (each.num_devices, -each.tp, each.ep, each.attention_dp))


def replica_counts(
    layout: ReplicaLayout, cluster: ClusterSpec, fix: Mapping[str, Any]
) -> Iterator[ServingPlan]:
    """A layout as often as the cluster has it, and by halves less often, with the usual limits."""
    most = cluster.num_devices // layout.num_devices
    chosen = {name: fix[name] for name in CHOICES if name in fix}
    counts = (int(fix["replicas"]),) if "replicas" in fix else dict.fromkeys((*_doublings(most), most))
    for number in counts:
        if number > int(fix.get("num_prefill", 0)):
            yield ServingPlan(layout, **{**chosen, "replicas": number})


def variants(plan: ServingPlan, fix: Mapping[str, Any]) -> Iterator[ServingPlan]:
    """The same devices with other limits of a step, and with prompts computed apart."""
    for tokens in _fixed_or(fix, "max_batch_tokens", BATCH_TOKENS):
        yield replace(plan, max_batch_tokens=tokens, max_sequences=min(plan.max_sequences, tokens))
    for number in _fixed_or(fix, "max_sequences", SEQUENCES):
        yield replace(plan, max_sequences=min(number, plan.max_batch_tokens))
    for number in _fixed_or(fix, "num_prefill", (1, plan.replicas // 2)):
        if 0 < number < plan.replicas:
            yield replace(plan, num_prefill=number)


def is_decided(fix: Mapping[str, Any]) -> bool:
    """Are the layout and the number of replicas fixed, so that nothing else is varied?"""
    return "tp" in fix and "replicas" in fix


def _fixed_or(fix: Mapping[str, Any], name: str, others: Sequence[int]) -> Sequence[int]:
    return (int(fix[name]),) if name in fix else tuple(dict.fromkeys(others))


def _doublings(most: int) -> tuple[int, ...]:
    return tuple(1 << power for power in range(max(most, 1).bit_length()))
