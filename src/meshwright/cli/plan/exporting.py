"""`meshwright export`: a plan in another program's words."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, ConsoleOptions, RenderResult

from meshwright import api
from meshwright.cli.frame.command import writes
from meshwright.cli.frame.output import Output, Result

FORMS = (".sh", ".toml", ".json", ".yaml")  # of -o: what the targets read


class Verbatim:
    """Text that a terminal shows as it is: other programs read it, so no line is broken or cut to the width."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Past the console's layout, to where it writes."""
        console.file.write(self.text)
        return []


@writes(*FORMS)
def export_plan(
    out: Output,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan (.toml).")],
    form: Annotated[
        str,
        typer.Option(
            "--to",
            help="megatron, torchtitan, deepspeed; slurm, torchrun, k8s. Of one that serves: "
            "vllm, sglang, meshwright, k8s, ray-serve.",
        ),
    ],
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="What it runs on, where the plan's own name is not known.")
    ] = None,
) -> Result:
    """Write a plan for Megatron-LM, torchtitan or DeepSpeed, or as a job that trains it; nothing is dropped silently.

    What the target cannot express is refused, all of it in one list. slurm, torchrun and k8s write the job that starts
    `meshwright train` on several hosts. A plan that serves (plan --requests .. -o plan.toml) is written for vllm, sglang or
    meshwright as a command, for k8s and ray-serve as YAML. -o writes .sh, .toml, .json or .yaml (the target's own text), .txt
    for any of them, in place of stdout.
    """
    found = api.export_plan(plan, form, cluster=cluster)
    for line in found.left_open:
        out.note(f"left to you: {line}")

    def write(path: Path) -> None:
        path.write_text(found.text, encoding="utf-8")

    return Result(
        found.to_dict(),
        [] if out.path else [Verbatim(found.text)],
        {found.suffix: write, ".txt": write},
        explanation=found.assumptions,
    )
