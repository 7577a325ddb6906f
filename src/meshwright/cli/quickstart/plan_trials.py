"""`meshwright quickstart --compare`: every plan in interleaved rounds, and whether the predicted order holds."""

from __future__ import annotations

from meshwright import api
from meshwright.api.trainings.trial import CLEAR_DIFFERENCE, ordering, run_trials, trial_rows
from meshwright.cli.frame.output import Output, Result, table_of
from meshwright.cli.frame.progress import live_line
from meshwright.planner.search.plans import Plans
from meshwright.reports.chart.quantity import quantity
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.cluster.profile import Profile
from meshwright.specs.units import interval_text


def run_every_plan(
    out: Output, ranking: Plans, cluster: ClusterSpec, profile: Profile, rounds: int
) -> Result:
    """Every plan, interleaved: predicted beside measured of each, and whether the order holds."""
    from meshwright.executor.job.pool import Pool

    out.note(f"running {len(ranking)} plans in {rounds} interleaved rounds")
    with live_line(out) as line, Pool(cluster.num_devices) as pool:
        trials = run_trials(
            tuple(ranking), api.subject, rounds=rounds,
            pool=pool, seed=out.seed, progress=line.share,
        )  # fmt: skip
    order = ordering(trials)
    rows = [
        {
            "plan": ("-> " if place == 0 else "   ") + trial.candidate.description,
            "predicted": quantity(trial.candidate.step.value, "s"),
            "interval": interval_text(
                quantity(trial.candidate.step.low, "s"), quantity(trial.candidate.step.high, "s")
            ),
            "measured": quantity(trial.step_s, "s"),
            "ratio": f"{trial.ratio:.2f}x",
        }
        for place, trial in enumerate(trials)
    ]
    share = "no pair" if order.share is None else f"{100 * order.share:.0f} % of {order.num_pairs} pairs"
    sentence = (
        f"{share} that are predicted to differ by more than {100 * CLEAR_DIFFERENCE:.0f} % are ordered alike by "
        f"measurement; the picked plan takes {100 * order.regret:.1f} % longer than the best"
    )
    data = {
        "rounds": len(trials[0].measured_s),
        "plans": trial_rows(trials),
        "num_pairs": order.num_pairs,
        "num_agreeing": order.num_agreeing,
        "regret": order.regret,
    }
    title = f"{len(trials)} plans, median of {len(trials[0].measured_s)} interleaved rounds"
    return Result(data, [table_of(rows, title), sentence], explanation=["-> is the plan that was picked"])
