"""Where the metrics of a training go: a file of lines, and the programs in which people look at many trainings."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.specs.option import option
from meshwright.specs.training.source import PathLike

LOOKING = "What is seen"
ROUTING_STEPS = (
    8  # the last ones: routers have learned most, and a few thousand tokens show how layers follow each other
)


@dataclass(frozen=True)
class Sinks:
    """Who is told every step; any of them, or none.

    Args:
        metrics: a file of JSON lines, one a step.
        tensorboard: a folder of event files.
        wandb: a project of Weights & Biases; kept on disk (`wandb sync` sends it) unless WANDB_API_KEY or WANDB_MODE is set.
        mlflow: a tracking server, or a folder, which then holds a database of its own.
        profiler: a folder of torch.profiler's traces, one a rank, of three steps behind the last, which are no part of the
            training.
        record_routing: a file of which experts the tokens of the last `routing_steps` steps went to (`specs.routing`), of
            every `routing_every`-th step.
    """

    metrics: PathLike | None = option(None, "A file of JSON lines, one a step.", panel=LOOKING)
    tensorboard: PathLike | None = option(None, "A folder of event files.", panel=LOOKING)
    wandb: str | None = option(
        None, "A W&B project; offline without WANDB_API_KEY.", panel=LOOKING, metavar="PROJECT"
    )
    mlflow: str | None = option(
        None, "An MLflow server's address, or a folder.", panel=LOOKING, metavar="URI|FOLDER"
    )
    profiler: PathLike | None = option(
        None,
        "A folder of torch.profiler's traces, of three steps behind the last.",
        panel=LOOKING,
        metavar="FOLDER",
    )
    record_routing: PathLike | None = option(
        None,
        "A file of the experts that tokens go to: .npz, .jsonl (Megatron-LM's), .npy (ExFlow's).",
        panel=LOOKING,
        metavar="FILE",
    )
    routing_steps: int = option(
        ROUTING_STEPS, "With --record-routing: of how many steps, the last ones.", panel=LOOKING, least=1
    )
    routing_every: int = option(
        1, "With --record-routing: only steps whose number this divides.", panel=LOOKING, least=1
    )
