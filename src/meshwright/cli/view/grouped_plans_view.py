"""`meshwright plan --sequence-groups`: plans whose sequences are in groups of ranks that change by step."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from meshwright import api
from meshwright.api.plans.request import PlanRequest
from meshwright.cli.frame.output import Output, Result, table_of
from meshwright.cli.view.grouping_view import explained, grouping_data, grouping_rows
from meshwright.prediction.description import describe
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.error import PlanError
from meshwright.specs.plan.file import plan_text
from meshwright.specs.units import format_seconds

NUM_SHOWN = 5
TAKEN = ("global_batch", "seq", "lengths", "fix", "dtype", "max_memory_bytes", "extrapolate", "profile")


def grouped_result(
    out: Output, model: str, cluster: ClusterSpec, names: Sequence[str], request: PlanRequest, top: int | None
) -> Result:
    """The best plans, of the first every algorithm. Raises PlanError for options that are of other searches."""
    out.check_form((".toml",))
    if others := sorted(request.keywords(*TAKEN)):
        raise PlanError(
            f"--sequence-groups with {', '.join(others)}",
            allowed=f"--sequence-groups with {', '.join(TAKEN)}, --top",
            next="leave the rest out",
        )
    found = api.plan_groups(model, cluster, names, seed=out.seed, **request.keywords())
    best = found[0]
    rows = [
        {
            "": place, "plan": describe(each.plan), "groups by": name, "step": format_seconds(one.mean_s),
            "+-": f"{one.error_s / one.mean_s:.1%}", "tokens/s": f"{each.mean_tokens / one.mean_s:,.0f}",
            "one degree": format_seconds(each.static.mean_s), "over bound": f"{one.mean_s / each.bound_s:.2f} x",
        }
        for place, each in enumerate(found[: top or NUM_SHOWN], 1) for name, one in (each.best,)
    ]  # fmt: skip
    drawn = f"{len(best.batches)} drawn batches of {len(best.batches[0]):,} sequences"
    head = f"{best.plan.model.name} on {cluster.name}, {drawn}"
    data = {
        "plans": [{"description": describe(each.plan), "plan": plan_text(each.plan), **grouping_data(each)} for each in found]
    }  # fmt: skip
    view = [
        Text(head, style="bold"),
        table_of(rows),
        Text("the first, by every algorithm"),
        table_of(grouping_rows(best)),
    ]
    return Result(data, view, {".toml": best.plan.save}, explanation=explained(best))
