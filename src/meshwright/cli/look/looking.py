"""`meshwright show`: anything in words or as JSON."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from meshwright import api, catalog
from meshwright.api import Subject
from meshwright.cli.frame.command import writes
from meshwright.cli.frame.output import Output, Result, table_of
from meshwright.cli.look.routing_view import ROUTING_FORMS, routing_result
from meshwright.cli.view.length_view import length_result
from meshwright.cli.view.profile_trace_view import profile_view
from meshwright.cli.view.trace_view import TRACE_FORMS, trace_result
from meshwright.ir.judge import metrics
from meshwright.ir.program import Program
from meshwright.ir.text import to_text, to_torch_csv
from meshwright.ir.trace import Trace
from meshwright.reports.trace.terminal import timeline_view
from meshwright.schedules.order import Schedule
from meshwright.specs import ClusterSpec, DeviceSpec, ModelSpec, Plan
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.cluster.text import cluster_text
from meshwright.specs.plan.file import plan_text
from meshwright.specs.record import plain
from meshwright.specs.routing.routing_trace import RoutingTrace
from meshwright.specs.sequence.length_distribution import LengthDistribution
from meshwright.specs.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_flops_per_s,
    format_seconds,
    parse_sequence,
)

PROGRAM_FORMS = (".program", ".csv")  # of -o
Facts = dict[str, Any]


@writes(".toml", *PROGRAM_FORMS, *ROUTING_FORMS, *TRACE_FORMS)
def show(
    out: Output,
    what: Annotated[str, typer.Argument(metavar="ANYTHING", help="A name, or a file of any kind.")],
    seq: Annotated[
        int | None,
        typer.Option(
            "--seq",
            help="Sequence length: count attention in a model's FLOPs, cut documents at it.",
            parser=parse_sequence,
        ),
    ] = None,
) -> Result:
    """Show anything: a model, plan, program, trace, profile, schedule, device, cluster or pass; how long sequences are, or
    to which experts tokens went.

    -o of a routing trace writes .npz, .jsonl (Megatron-LM's), .npy (ExFlow's), .svg (a heat map).
    """
    found = api.find(what)

    showers: Mapping[type, Callable[[Any], Result]] = {
        ModelSpec: lambda model: _model(model, seq),
        Plan: _plan,
        Program: _program,
        Trace: _trace,
        Profile: _profile,
        Schedule: _schedule,
        DeviceSpec: _device,
        ClusterSpec: _cluster,
        RoutingTrace: routing_result,
        LengthDistribution: lambda lengths: length_result(lengths, seq),
        list: lambda lists: _program(api.subject(lists).program),
    }
    shower = next((shower for kind, shower in showers.items() if isinstance(found, kind)), _pass)
    return shower(found)


def _model(model: Any, sequence_length: int | None) -> Result:
    data = {
        "kind": "model",
        "name": model.name,
        "num_parameters": model.num_parameters,
        "num_active_parameters": model.num_active_parameters,
        "num_layers": model.num_layers,
        "train_flops_per_token": model.train_flops_per_token(sequence_length),
        "architecture": model.architecture,
        **{key: plain(value) for key, value in model.dimensions().items() if key != "num_layers"},
        "source": model.source,
        "digest": model.digest,
    }
    explained = [
        "parameters are those that AutoModelForCausalLM holds; a tied table counts once",
        "training FLOPs of a token: 6 for each parameter of a matrix product (the lookup is none)"
        + (
            f", and causal attention over {sequence_length} tokens"
            if sequence_length
            else "; --seq adds attention"
        ),
    ]
    shown = {**data, "num_parameters": f"{model.num_parameters} ({format_count(model.num_parameters)})"}
    return Result(data, [_facts(shown)], explanation=explained)


def _plan(plan: Any) -> Result:
    program = api.lower(plan)
    data = {
        "kind": "plan",
        "model": plan.model.name,
        "model_digest": plan.model_digest,
        "cluster": plan.cluster,
        "num_devices": plan.num_devices,
        "mesh": dict(plan.mesh),
        "schedule": plan.schedule,
        "num_chunks": plan.num_chunks,
        "layers_per_stage": list(plan.layers_per_stage),
        "global_batch": plan.workload.global_batch,
        "sequence_length": plan.workload.sequence_length,
        "microbatch_size": plan.microbatch_size,
        "num_microbatches": plan.num_microbatches,
        "recompute": plan.recompute,
        "recompute_blocks": list(plan.num_recomputed_blocks),
        "split_backward": plan.split_backward or catalog.find_schedule(plan.schedule).splits_backward,
        "dtype": plan.dtype,
        "num_instructions": program.num_rows,
        "parameter_bytes": [group.bytes for group in program.tables.groups],
        "digest": program.digest(),
    }
    shown = {**data, "parameter_bytes": ", ".join(format_bytes(size) for size in data["parameter_bytes"])}
    forms = {".toml": lambda path: path.write_text(plan_text(plan), encoding="utf-8")}
    return Result(data, [_facts(shown)], {**forms, **_program_forms(program)})


def _program(program: Any) -> Result:
    counts: dict[str, int] = {}
    for number in program.columns.effect.tolist():
        name = program.tables.effects[number].name
        counts[name] = counts.get(name, 0) + 1
    data = {
        "kind": "program",
        "axes": {axis.name: axis.size for axis in program.axes},
        "num_devices": program.num_devices,
        "num_lists": program.num_lists,
        "num_microbatches": len(program.tables.microbatches),
        "num_instructions": program.num_rows,
        "instructions": counts,
        "streams": list(program.tables.streams),
        "digest": program.digest(),
    }
    text = Text(to_text(program).rstrip(), overflow="fold")
    return Result({**data, "text": to_text(program)}, [_facts(data), text], _program_forms(program))


def _trace(trace: Any) -> Result:
    label = str(trace.metadata.get("label") or trace.metadata.get("plan") or "trace")
    made = trace_result(trace, Subject(label, trace.program))
    data = {
        "kind": "trace",
        **made.data,
        "num_iterations": trace.num_iterations,
        "seconds_by_name": metrics.seconds_by_name(trace),
    }
    profile = trace.metadata.get("profile")
    if profile is None:
        return Result(data, made.view, made.forms, made.report, made.explanation)
    view = [*made.view, *profile_view(profile)]
    return Result(
        {**data, "profile": profile}, view, made.forms, made.report, [*profile["notes"], *made.explanation]
    )


def _profile(profile: Any) -> Result:
    data = {
        "kind": "profile",
        "device": profile.device,
        "dtype": profile.dtype,
        "num_processes": profile.num_processes,
        "measured": profile.measured,
        "source": profile.source,
        "constants": dict(profile.constants),
        "num_samples": {name: len(samples) for name, samples in profile.tables.items()},
        "num_passes": len(profile.passes),
        "num_runs": len(profile.runs),
    }
    return Result(data, [_facts(data)])


def _schedule(schedule: Any) -> Result:
    subject = api.subject(schedule)
    data = {
        "kind": "schedule",
        "name": schedule.name,
        "summary": schedule.summary,
        "num_chunks": schedule.num_chunks,
        "splits_backward": schedule.splits_backward,
    }

    return Result(data, [_facts(data), timeline_view(api.simulate(subject))])


def _device(device: Any) -> Result:
    data = {
        "kind": "device",
        "name": device.name,
        "memory_bytes": device.memory_bytes,
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth_bytes_per_s,
        "flops_per_s": dict(device.flops_per_s),
        "host": device.host,
        "source": device.source,
        "note": device.note,
    }
    shown = {
        **data,
        "memory_bytes": format_bytes(device.memory_bytes),
        "memory_bandwidth_bytes_per_s": format_bandwidth(device.memory_bandwidth_bytes_per_s),
        "flops_per_s": ", ".join(
            f"{dtype} {format_flops_per_s(rate)}" for dtype, rate in device.flops_per_s.items()
        ),
    }
    return Result(data, [_facts(shown)])


def _cluster(cluster: Any) -> Result:
    levels = [
        {
            "name": level.name, "num_devices": level.num_devices, "bandwidth_bytes_per_s": level.bandwidth_bytes_per_s,
            "latency_s": level.latency_s, "attached": level.attached, "is_shared": level.is_shared, "wiring": level.wiring,
            "fabric": level.fabric,
        }
        for level in cluster.levels
    ]  # fmt: skip
    data = {
        "kind": "cluster",
        "name": cluster.name,
        "num_devices": cluster.num_devices,
        "device": cluster.devices[0].name,
        "memory_bytes": cluster.memory_bytes,
        "levels": levels,
        "num_links": len(cluster.links),
        "assumptions": list(cluster.assumptions),
    }
    shown = [
        {
            "level": level["name"], "devices": level["num_devices"],
            "bandwidth": format_bandwidth(level["bandwidth_bytes_per_s"]), "latency": format_seconds(level["latency_s"]),
            "attached": f"{level['attached']}{', shared' * level['is_shared']}", "wiring": level["wiring"],
            "fabric": level["fabric"] if level is not levels[0] else "",
        }
        for level in levels
    ]  # fmt: skip
    facts = {key: value for key, value in data.items() if key not in ("levels", "num_links")}
    facts["memory_bytes"] = format_bytes(cluster.memory_bytes)
    if cluster.links:
        facts["num_links"] = len(cluster.links)
    forms = {".toml": lambda path: path.write_text(cluster_text(cluster), encoding="utf-8")}
    return Result(data, [_facts(facts), table_of(shown)], forms, explanation=cluster.assumptions)


def _pass(found: Any) -> Result:
    data = {
        "kind": "pass",
        "name": found.name,
        "summary": inspect.getdoc(type(found)),
        "options": asdict(found),
    }
    return Result(data, [_facts(data)])


def _program_forms(program: Any) -> dict[str, Any]:
    return {
        ".program": lambda path: path.write_text(to_text(program), encoding="utf-8"),
        ".csv": lambda path: path.write_text(to_torch_csv(program), encoding="utf-8"),
    }


def _facts(data: Mapping[str, Any]) -> Any:
    """Name and value, one a line; what is empty is left out."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in data.items():
        if value not in (None, "", [], {}):
            table.add_row(words(name), _short(value))
    return table


def _short(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_short(entry)}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_short(entry) for entry in value)
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def words(name: str) -> str:
    """A field's name for people: "num_layers" is "layers"."""
    for suffix in ("_bytes_per_s", "_flops_per_s", "_bytes", "_per_s", "_s"):
        name = name.removesuffix(suffix)
    return name.removeprefix("num_").replace("_", " ")
