"""`meshwright import`: a plan from another program's configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from meshwright import api
from meshwright.cli.frame.command import writes
from meshwright.cli.frame.output import Output, Result, table_of
from meshwright.interop.imported import Imported, Option
from meshwright.specs.error import SpecError
from meshwright.specs.plan.file import plan_text
from meshwright.specs.units import format_count, parse_sequence, parse_whole


@writes(".toml")
def import_file(
    out: Output,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A script or configuration of another program.")
    ],
    form: Annotated[str, typer.Option("--from", help="megatron, torchtitan or deepspeed.")],
    model: Annotated[
        str | None,
        typer.Option("--model", help="The model, where the file does not say it: a name or config.json."),
    ] = None,
    cluster: Annotated[
        str, typer.Option("--cluster", help="What it runs on: 8x8xH100, H100, or a .toml file.")
    ] = "",
    gpus: Annotated[int | None, typer.Option("--gpus", help="How many devices the job has.")] = None,
    seq: Annotated[
        int | None, typer.Option("--seq", help="Tokens of a sequence: 8192, 8k.", parser=parse_sequence)
    ] = None,
    global_batch: Annotated[
        int | None, typer.Option("--global-batch", help="Sequences of a step.", parser=parse_whole)
    ] = None,
    micro_batch: Annotated[
        int | None, typer.Option("--micro-batch", help="Sequences of a microbatch.")
    ] = None,
    vocab: Annotated[
        int | None, typer.Option("--vocab", help="Tokens of the tokenizer, before padding.")
    ] = None,
    variables: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="NAME=VALUE of a variable that is set outside the script; may be repeated."
        ),
    ] = None,
) -> Result:
    """Read a Megatron-LM script, a torchtitan TOML or a DeepSpeed JSON as a plan; no option is dropped silently.

    -o writes .toml (the plan), which `compare PLAN LOG` sets beside the log of its run.
    """
    found = api.import_plan(
        file, form, model=model, cluster=cluster, gpus=gpus, seq=seq, global_batch=global_batch,
        micro_batch=micro_batch, vocab=vocab, variables=variables_of(variables or ()),
    )  # fmt: skip
    forms = {".toml": lambda path: path.write_text(plan_text(found.plan), encoding="utf-8")}
    return Result(
        {**_plan_facts(found), **found.to_dict()}, _view(found), forms, explanation=found.assumptions
    )


def variables_of(pairs: Sequence[str]) -> Mapping[str, str]:
    """--set NAME=VALUE, each a variable. Raises SpecError for anything else."""
    for pair in pairs:
        if "=" not in pair[1:]:
            raise SpecError(f"--set {pair!r}", allowed="NAME=VALUE")
    return {pair.partition("=")[0]: pair.partition("=")[2] for pair in pairs}


def _plan_facts(found: Imported) -> dict[str, Any]:
    plan = found.plan
    return {
        "model": plan.model.name,
        "num_parameters": plan.model.num_parameters,
        "cluster": plan.cluster,
        "num_devices": plan.num_devices,
        "mesh": dict(plan.mesh),
        "ep": plan.ep,
        "schedule": plan.schedule,
        "num_chunks": plan.num_chunks,
        "layers_per_stage": list(plan.layers_per_stage),
        "global_batch": plan.workload.global_batch,
        "sequence_length": plan.workload.sequence_length,
        "microbatch_size": plan.microbatch_size,
        "recompute": plan.recompute,
        "recompute_blocks": list(plan.num_recomputed_blocks),
        "sharding": plan.sharding,
        "dtype": plan.dtype,
        "float8": plan.float8,
        "model_digest": plan.model_digest,
    }


def _view(found: Imported) -> list[Any]:
    """What the plan is, then the lists; what is unknown comes last, where it is seen."""
    plan = found.plan
    head = (
        f"{plan.model.name} ({format_count(plan.model.num_parameters)} parameters) on "
        f"{plan.cluster}: {plan.product_text()}, ep {plan.ep}, {plan.schedule}, {plan.recompute} recompute, {plan.sharding}"
    )
    said = [
        {
            "trait": trait.name,
            "value": trait.value,
            "said by": ", ".join(trait.said_by) or f"as {found.stack} does",
        }
        for trait in found.traits
    ]
    irrelevant = ", ".join(option.name for option in found.irrelevant) or "none"
    parts: list[Any] = [Text(head, style="bold"), table_of(said, f"what {found.stack} does here")]
    parts += [_table(found.understood, "understood")]
    parts += [Text(f"do not matter for a plan ({len(found.irrelevant)}): {irrelevant}", overflow="fold")]
    parts += [Text(f"assumed: {line}", overflow="fold") for line in found.assumptions]
    if found.unknown:
        return [*parts, Text(""), _table(found.unknown, "NOT understood, the plan is without them")]
    return [*parts, Text("every option was understood or does not matter")]


def _table(options: Sequence[Option], title: str) -> Any:
    rows = [{"option": option.name, "value": option.value, "meaning": option.meaning} for option in options]
    return table_of(rows, f"{title} ({len(options)})")
