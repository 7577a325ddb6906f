"""What a quickstart leaves behind: the page, a Perfetto trace, both traces, the plan and the trained model."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwright.api import Training
from meshwright.cli.view.training_view import training_page
from meshwright.ir.judge import metrics
from meshwright.planner.search.plans import Plans
from meshwright.reports.page.html import write_report
from meshwright.reports.page.report import DataTable
from meshwright.reports.trace.perfetto import write_perfetto
from meshwright.specs.cluster.profile import Profile

TRAINED = "trained"  # the folder of the model

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reached:
    """What the training reached on text that it has not seen. ``entropy`` is the corpus' unigram entropy, in nats;
    ``sample`` what the model says when it is served; ``trained`` its checkpoints."""

    held_out_loss: float
    entropy: float
    sample: str
    num_files: int
    trained: Path


def typical_iteration(trace: Any) -> Any:
    """The iteration whose span is the median one, on a clock that begins with it: what pictures show."""

    spans = [metrics.span_s(trace, number) for number in range(trace.num_iterations)]
    order = sorted(range(len(spans)), key=spans.__getitem__)
    chosen = order[len(order) // 2]
    begin_s = trace.posted_s[chosen].min(initial=float("inf"))
    times = {
        name: getattr(trace, name)[chosen : chosen + 1] - begin_s for name in ("posted_s", "start_s", "end_s")
    }
    return replace(trace, **times)


def write_files(
    done: Training,
    typical: Any,
    comparison: Any,
    ranking: Plans,
    reached: Reached,
    profile: Profile,
    folder: Path,
) -> Mapping[str, Path]:
    """Report, Perfetto trace, both traces, the plan and the trained model; one warning and none of them where the folder
    cannot be written."""
    assert done.trace is not None, "the caller has looked"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        traces = {"predicted": done.predicted, "measured": typical}
        files = {
            "report": write_report(
                quickstart_page(done, typical, comparison, ranking, reached, profile), folder / "report.html"
            ),
            "perfetto": write_perfetto(traces, folder / "trace.perfetto.json"),
        }
        for name, trace in (("predicted", done.predicted), ("measured", done.trace)):
            files[f"{name} trace"] = folder / f"{name}.npz"
            trace.save(files[f"{name} trace"])
        files["plan"] = folder / "plan.toml"
        done.plan.save(files["plan"])
        files[TRAINED] = folder / TRAINED
        shutil.rmtree(files[TRAINED], ignore_errors=True)  # of a quickstart before
        shutil.copytree(reached.trained, files[TRAINED])
    except OSError as error:
        _log.warning("nothing was written: %s (%s)", folder, error.strerror)
        return {}
    return files


def quickstart_page(
    done: Training, typical: Any, comparison: Any, ranking: Plans, reached: Reached, profile: Profile
) -> Any:
    """The page: that of a training, with every plan, the held-out loss and where the numbers come from."""
    plans = [
        {
            "plan": c.description,
            "step": c.step.value,
            "tokens/s": c.tokens_per_s,
            "bubble": c.bubble,
            "peak": c.peak_bytes,
        }
        for c in ranking
    ]
    return training_page(
        done, comparison, "meshwright quickstart", measured=typical,
        held_out_loss=[(len(done.iterations), reached.held_out_loss)],
        loss_levels=[("unigram entropy", reached.entropy)],
        tables=[DataTable("Every plan, predicted", plans, "seconds, tokens a second, idle share, bytes")],
        provenance={"device": profile.device, "profile measured": profile.measured, "corpus files": reached.num_files},
    )  # fmt: skip
