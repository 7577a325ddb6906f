"""`meshwright checkpoint inspect`, `verify` and `convert`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from meshwright import api
from meshwright.api.trainings.checkpointing import CheckpointContents
from meshwright.cli.frame.output import DONE, REFUSED, Output, Result, table_of
from meshwright.reports.chart.quantity import quantity
from meshwright.specs.model.model import ModelSpec

NUM_SHOWN = 40  # tensors in the table of a terminal; --json has all
Folder = Annotated[
    Path,
    typer.Argument(metavar="FOLDER", help="One checkpoint (runs/step-40, runs/best), or a folder of them."),
]


def inspect(
    out: Output,
    folder: Folder,
    all_tensors: Annotated[
        bool, typer.Option("--all", help="List every tensor, the optimizer's state, too.")
    ] = False,
) -> Result:
    """Show what a checkpoint holds: step, data, plan, tensors and bytes."""
    found = api.inspect_checkpoint(folder)
    return Result(found.to_dict(), _contents_view(found, all_tensors))


def _model_text(fields: Mapping[str, Any] | None) -> str:
    """The model in one line; "" where the checkpoint says none."""
    if fields is None:
        return "not known"
    model = ModelSpec.from_dict(fields)
    return f"{model.name}: {model.num_layers} layers of width {model.hidden_size}, vocabulary {model.vocabulary_size:,}"


def _contents_view(found: CheckpointContents, all_tensors: bool) -> list[Any]:
    info = found.info
    facts = {
        "step": f"{info.step:,}",
        "samples": f"{info.samples:,}",
        "tokens": f"{info.tokens:,}",
        "loss": "" if info.loss is None else f"{info.loss:.4f} nats a token",
        "held out": "" if info.held_out_loss is None else f"{info.held_out_loss:.4f} nats a token",
        "model": _model_text(info.training.get("model")),
        "seed": str(info.seed),
        "data": info.data_digest or "not known",
        "written by": ", ".join(f"{name} {version}" for name, version in info.versions.items()),
        "files": f"{found.num_files} from {info.num_ranks} ranks, {quantity(found.size_bytes, 'B')}",
        "in its folder": ", ".join(
            f"step {step}{' (best)' * (step == found.best_step)}" for step in found.steps
        ),
    }
    names = [n for n in found.tensors if all_tensors or "/" not in n]
    shown = names if all_tensors else names[:NUM_SHOWN]
    tensors = [
        {"tensor": n, "dtype": t.dtype, "shape": " x ".join(map(str, t.shape)), "bytes": f"{t.size_bytes:,}"}
        for n, t in ((name, found.tensors[name]) for name in shown)
    ]
    kinds = [
        {"kind": row["kind"], "tensors": row["num_tensors"], "bytes": f"{row['size_bytes']:,}"}
        for row in found.kinds
    ]
    rest = [f"and {len(names) - len(shown)} more; --all lists them"] if len(names) > len(shown) else []
    return [
        Text(str(found.path), style="bold"),
        table_of([{"what": name, "is": value} for name, value in facts.items() if value]),
        table_of(kinds),
        table_of(tensors),
        *rest,
    ]


def verify(out: Output, folder: Folder) -> Result:
    """Read every file of a checkpoint, or of all in a folder, and compare it with its SHA-256.

    Exit code 3 where one is not whole; the file is named.
    """
    found = api.verify_checkpoint(folder)
    rows = [
        {"checkpoint": str(path), "is": "; ".join(wrong) or "whole"} for path, wrong in found.problems.items()
    ]
    view = [table_of(rows), f"{quantity(found.size_bytes, 'B')} were read"]
    return Result(found.to_dict(), view, exit_code=DONE if found.is_whole else REFUSED)


def convert(
    out: Output,
    folder: Folder,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A new folder.")],
    form: Annotated[
        str, typer.Option("--format", help="hugging_face, or safetensors (our own names).")
    ] = "hugging_face",
    dtype: Annotated[
        str, typer.Option("--dtype", help="float32, bfloat16, ... (the checkpoint's own).")
    ] = "",
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="A folder whose tokenizer is copied, too.")
    ] = None,
) -> Result:
    """Write the parameters of a checkpoint for other programs, such as a folder that transformers loads."""
    done = api.convert_checkpoint(folder, to, format=form, dtype=dtype, tokenizer=tokenizer)
    sentence = f"{done.num_tensors} parameters of {done.checkpoint} are in {done.target}"
    return Result(done.to_dict(), [sentence])
