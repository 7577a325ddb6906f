"""Compares the planner's fastest plans with published recipes and Megatron-LM's rules of thumb, on the jobs of jobs.toml.

For every job the search plans (it is given neither recipes nor rules), and each recipe and the plan of the rules are
predicted by the same model of a step on the same cluster, batch, number formats and software. The gain is their predicted
seconds over those of our plan: above 1 ours is faster. Where a recipe's time was published, the prediction (by constants
that were fitted without its source) is compared with it; a recipe that is missed by more than 15 % is listed, and its
gain is not counted. The claim: at least three quarters are within 15 %. A recipe that does not fit by our memory estimate
is listed with what it misses; its gain counts, as it ran.

Run: python benchmarks/plan_gains.py [--docs docs] [--only WORDS] [--skip WORDS ...] [--save FILE]
or:  python benchmarks/plan_gains.py --saved FILE [--docs docs]
Prints the blocks of docs/gains.md, or writes them between their marks (`<!-- NAME -->` ... `<!-- end NAME -->`) with
--docs. --save keeps the numbers as JSON, job by job; --saved reads them and predicts nothing. Exit status 3 where the claim
fails. A change must make neither the share within 15 % nor the median gain worse.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes share the cores

import numpy as np
from jobs import Job, Recipe, load_jobs

from meshwright.planner.search.search import NUM_SIMULATED, search
from meshwright.prediction.description import describe
from meshwright.prediction.memory_estimate import estimate_memory
from meshwright.prediction.memory_limit import estimated_rejection
from meshwright.prediction.predicted import Predicted, predict
from meshwright.schedules import registered
from meshwright.specs.error import MeshwrightError, OutOfMemoryError, PlanError
from meshwright.specs.plan.plan import Plan
from meshwright.specs.units import format_bytes
from meshwright.systems.planning.megatron_rules.mechanism import plan_of

PAGE = "gains.md"
TOLERANCE, SHARE_ASKED = 0.15, 0.75  # of a published time; of all recipes that have one
NUM_PROCESSES = 2
RULES = "rules of thumb"
QUARTILES = (0, 25, 50, 75, 100)


@dataclass(frozen=True)
class Rival:
    """A plan that ours is compared with. `predicted_s` knows all sources, `checked_s` not the one that published it."""

    by: str
    source: str
    description: str
    predicted_s: float
    checked_s: float
    published_s: float | None
    missing_bytes: float

    @property
    def error(self) -> float | None:
        """Predicted over published, less one."""
        return None if self.published_s is None else self.checked_s / self.published_s - 1

    @property
    def is_known(self) -> bool:
        """Is its prediction not known to be far off?"""
        return self.error is None or abs(self.error) <= TOLERANCE


@dataclass(frozen=True)
class Outcome:
    """One job: our plan, or why there is none, and what it is compared with. `search_s` of the processor, without start."""

    number: int
    name: str
    num_parameters: int
    num_devices: int
    is_moe: bool
    description: str
    seconds: float
    num_candidates: int
    num_simulated: int
    failure: str
    rivals: tuple[Rival, ...]
    rules: Rival | None
    rules_failure: str
    search_s: float

    def gain(self, rival: Rival) -> float:
        """Above 1: ours is faster."""
        return rival.predicted_s / self.seconds


def main() -> int:
    """Blocks on stdout or in the page; 3 where fewer than three quarters are within the tolerance."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--docs", type=Path, help=f"the folder of {PAGE}; it is changed in place")
    parser.add_argument("--only", default="", help="jobs whose names have these words")
    parser.add_argument(
        "--skip", nargs="*", default=[], help="jobs whose names have any of these are left out"
    )
    parser.add_argument("--num-simulated", type=int, default=NUM_SIMULATED)
    parser.add_argument("--processes", type=int, default=NUM_PROCESSES)
    parser.add_argument("--save", type=Path, help="a file that keeps the numbers")
    parser.add_argument("--saved", type=Path, help="such a file, in place of predicting")
    chosen = parser.parse_args()
    if chosen.saved:
        outcomes = saved_outcomes(chosen.saved)
    else:
        begun = time.perf_counter()
        outcomes = all_outcomes(chosen.only, chosen.skip, chosen.num_simulated, chosen.processes, chosen.save)
        print(f"{len(outcomes)} jobs in {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    blocks = blocks_of(outcomes)
    if chosen.docs is None:
        for name, text in blocks.items():
            print(f"## {name}\n", text, "", sep="\n")
    else:
        rewrite(chosen.docs / PAGE, blocks)
    within, number = num_within(outcomes)
    return 3 if number and within < SHARE_ASKED * number else 0


def all_outcomes(
    only: str, skip: Sequence[str], num_simulated: int, num_processes: int, save: Path | None
) -> list[Outcome]:
    """Of the chosen jobs, in their order; the smallest are begun first, and what is done is saved."""
    jobs = load_jobs()
    names = [job.name for job in jobs]
    chosen = [n for n, name in enumerate(names) if only in name and not any(words in name for words in skip)]
    ordered = sorted(chosen, key=lambda n: jobs[n].cluster.num_devices)
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(outcome, num_simulated, n) for n in ordered]):
            outcomes.append(done.result())
            outcomes.sort(key=lambda each: each.number)
            if save:
                save.write_text(json.dumps([asdict(each) for each in outcomes], indent=1), encoding="utf-8")
    return outcomes


def saved_outcomes(path: Path) -> list[Outcome]:
    """What --save kept."""
    outcomes = []
    for each in json.loads(path.read_text(encoding="utf-8")):
        rules = None if each["rules"] is None else Rival(**each["rules"])
        rivals = tuple(Rival(**rival) for rival in each["rivals"])
        outcomes.append(Outcome(**{**each, "rules": rules, "rivals": rivals}))
    return outcomes


def outcome(num_simulated: int, number: int) -> Outcome:
    """Search for one job, and predict what it is compared with."""
    job = load_jobs()[number]
    begun = time.process_time()
    best, num_candidates, num_simulated, failure = planned(job, num_simulated)
    searched = time.process_time()
    rules, rules_failure = by_rules(job)
    rivals = tuple(rival_of(job, recipe) for recipe in job.recipes)
    taken = f"{searched - begun:.1f} s of search, {time.process_time() - searched:.1f} s of the others"
    print(f"{job.name}: {failure or describe_seconds(best)} ({taken})", file=sys.stderr, flush=True)
    return Outcome(
        number, job.name, job.model.num_parameters, job.cluster.num_devices, job.model.num_experts > 0,
        "" if best is None else best.description, float("nan") if best is None else best.step.value,
        num_candidates, num_simulated, failure, rivals, rules, rules_failure, searched - begun,
    )  # fmt: skip


def planned(job: Job, num_simulated: int) -> tuple[Predicted | None, int, int, str]:
    """Our fastest plan, the numbers of candidates and of those that were simulated; or why there is none."""
    try:
        found = search(job.model, job.cluster, job.workload, fix=job.fixed, num_simulated=num_simulated)
    except (OutOfMemoryError, PlanError) as error:
        return None, 0, 0, str(error).splitlines()[0]
    return found[0], found.num_candidates, len(found), ""


def describe_seconds(best: Predicted | None) -> str:
    """For the progress."""
    return "" if best is None else f"{best.step.value:.3f} s, {best.description}"


def by_rules(job: Job) -> tuple[Rival | None, str]:
    """The plan of the rules, or why there is none."""
    try:
        plan = plan_of(job.model, job.cluster, job.workload, **job.fixed)
    except MeshwrightError as error:
        return None, str(error).splitlines()[0]
    seconds = predict(plan, job.cluster).step.value
    return Rival(RULES, "", describe(plan), seconds, seconds, None, 0.0), ""


def rival_of(job: Job, recipe: Recipe) -> Rival:
    """A recipe, predicted."""
    seconds = predict(recipe.plan, job.cluster).step.value
    checked = seconds
    if recipe.left_out:
        checked = predict(recipe.plan, job.cluster, left_out=recipe.left_out).step.value
    missing = missing_bytes(job, recipe.plan)
    return Rival(
        recipe.by, recipe.source, describe(recipe.plan), seconds, checked, recipe.published_s, missing
    )


def missing_bytes(job: Job, plan: Plan) -> float:
    """What the fullest device lacks by our estimate; 0 where the plan fits."""
    memory = estimate_memory(plan, job.cluster, registered()[plan.schedule])
    rejection = estimated_rejection(plan, memory, job.cluster.memory_bytes)
    return 0.0 if rejection is None else rejection.excess_bytes


def num_within(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """Recipes within the tolerance of their published time, and all that have one."""
    errors = [rival.error for each in outcomes for rival in each.rivals if rival.error is not None]
    return sum(abs(error) <= TOLERANCE for error in errors), len(errors)


def blocks_of(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """What stands between the marks of the page."""
    return {
        "gains": "\n".join(distribution(outcomes)),
        "gains by job": "\n".join(job_table(outcomes)),
        "published times": "\n".join(published_table(outcomes)),
        "not counted": "\n".join(exceptions(outcomes)),
    }


def distribution(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Least, quartiles and largest of both gains."""
    recipes = [each.gain(rival) for each in found(outcomes) for rival in each.rivals if rival.is_known]
    rules = [each.gain(each.rules) for each in found(outcomes) if each.rules is not None]
    yield "| our plan against | n | least | first quartile | median | third quartile | largest | ours slower |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for name, gains in (("published recipes", recipes), ("Megatron-LM's rules of thumb", rules)):
        if gains:
            cells = " | ".join(f"{value:.3f}" for value in np.percentile(gains, QUARTILES))
            yield f"| {name} | {len(gains)} | {cells} | {sum(gain < 1 - 1e-9 for gain in gains)} |"
    within, number = num_within(outcomes)
    yield ""
    if number:
        yield (
            f"{within} of {number} published times ({within / number:.0%}) are predicted within {TOLERANCE:.0%}; "
            f"{SHARE_ASKED:.0%} are asked."
        )
    searched, tried = (
        sum(getattr(each, name) for each in outcomes) for name in ("num_candidates", "num_simulated")
    )
    seconds = sum(each.search_s for each in outcomes)
    yield f"{len(outcomes)} jobs, {searched:,} candidates, {tried:,} of them simulated; searches took {seconds:.0f} s of"
    yield "processor time."


def found(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Jobs for which the search found a plan."""
    return [each for each in outcomes if not each.failure]


def job_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Every job with its gains."""
    yield "| job | parameters | our plan | step | over recipes | over the rules |"
    yield "|---|---:|---|---:|---|---:|"
    for each in outcomes:
        size = f"{each.num_parameters / 1e9:,.1f}B"
        if each.failure:
            yield f"| {each.name} | {size} | none: {each.failure} | | | |"
            continue
        recipes = ", ".join(f"{each.gain(rival):.3f}{mark(rival)} ({rival.by})" for rival in each.rivals)
        rules = "nothing fits" if each.rules is None else f"{each.gain(each.rules):.3f}"
        yield f"| {each.name} | {size} | {each.description} | {each.seconds:.3f} s | {recipes} | {rules} |"
    yield ""
    yield "\\* not counted: the recipe's published time is missed by more than 15 %."
    yield "† The recipe does not fit by our estimate."


def mark(rival: Rival) -> str:
    """What is to be known of a gain."""
    return ("" if rival.is_known else "\\*") + ("†" if rival.missing_bytes else "")


def published_table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Predicted and published steps."""
    yield "| job | recipe | predicted | published | error | source |"
    yield "|---|---|---:|---:|---:|---|"
    for each in outcomes:
        for rival in each.rivals:
            if rival.published_s is not None and rival.error is not None:
                yield (
                    f"| {each.name} | {rival.description} | {rival.checked_s:.3f} s | {rival.published_s:.3f} s "
                    f"| {100 * rival.error:+.1f} % | {rival.source} |"
                )


def exceptions(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Recipes that are not counted, recipes that do not fit, jobs without a plan."""
    for each in outcomes:
        for rival in each.rivals:
            if rival.error is not None and not rival.is_known:
                yield f"- Not counted: {each.name}, {rival.by}: predicted {100 * rival.error:+.1f} % of what was published."
            if rival.missing_bytes:
                missing = format_bytes(rival.missing_bytes)
                yield f"- Does not fit by our estimate: {each.name}, {rival.by}: {missing} too much on the fullest device."
        if each.failure:
            yield f"- The search finds nothing: {each.name}: {each.failure}."
        if each.rules_failure:
            yield f"- The rules find nothing: {each.name}: {each.rules_failure}."


def rewrite(page: Path, blocks: Mapping[str, str]) -> None:
    """What stands between the marks of a block is replaced by the block."""
    text = page.read_text(encoding="utf-8")
    for name, block in blocks.items():
        first, last = f"<!-- {name} -->\n", f"<!-- end {name} -->"
        if text.count(first) != 1 or text.count(last) != 1:
            raise SystemExit(f"{page} does not have {first.strip()} and {last} once each")
        head, rest = text.split(first)
        text = f"{head}{first}\n{block}\n\n{last}{rest.split(last)[1]}"
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
