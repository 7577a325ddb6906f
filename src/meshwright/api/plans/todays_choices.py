"""What is decided before the search for a job that runs today: by the user, by today's plan, by what its program can say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.api.plans.todays_plan import Todays
from meshwright.interop.target_limits import Region, regions
from meshwright.specs.error import PlanError
from meshwright.specs.plan.plan import OVERLAPS, Plan

# Number formats and attention are the training's own: another one is another training. A recipe of float8 and the
# software class may be tried.
DECIDED = ("dtype", "master_dtype", "reduction_dtype", "attention")
MAY_DIFFER = ("float8", "software")
# What the search calls otherwise than a plan does; today's plan is not held against it.
OF_THE_SEARCH = ("mesh_order", "recompute_blocks", "layers")


def decided(now: Todays, fix: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What is decided before the search: the user's word, then formats, attention and software of today."""
    plan, notes = now.plan, []
    todays: dict[str, Any] = {name: getattr(plan, name) for name in (*DECIDED, *MAY_DIFFER)}
    todays["reduction_dtype"] = plan.gradient_dtype
    for name, said in todays.items():
        given = fix.get(name, said)
        if given != said and name in DECIDED:
            raise PlanError(
                f"{name} is fixed to {given or 'nothing'}, {now.where} says {said or 'nothing'}",
                allowed="the number formats and the attention of the file, which are those of the training",
                next=f"leave {name} out of --fix, or change the file",
            )
        if given != said:
            notes.append(f"{name} is fixed to {given or 'nothing'}; today it is {said or 'nothing'}")
    if "tp" in plan.overlap:
        todays["overlap"] = tuple(name for name in OVERLAPS if name != "ep" or name in plan.overlap)
        notes.append("exchanges of tensor parallelism overlap as today")
    kept = {name: value for name, value in todays.items() if name not in fix}
    return {**todays, **fix}, (*notes, f"as today: {_told(kept)}")


def obeys(plan: Plan, fix: Mapping[str, Any], forbid: Sequence[str]) -> bool:
    """Whether a plan is as the user wants it."""
    from meshwright.planner.search.every_plan import is_forbidden

    if any(is_forbidden(plan, word) for word in forbid):
        return False
    return all(
        getattr(plan, name) == value or (name != "overlap" and getattr(plan, name) in _values(value))
        for name, value in fix.items()
        if name not in OF_THE_SEARCH
    )


def sayable_choices(now: Todays, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is wanted, within each region that the target can say and the search has. Raises PlanError for none."""
    return choices_within(regions(now.target, now.plan), wanted, now.target, "plan without --like")


def choices_within(
    parts: Sequence[Region], wanted: Mapping[str, Any], target: str, advice: str
) -> list[dict[str, Any]]:
    """What is wanted within each of a target's regions that the search has. Raises PlanError for none, with this advice."""
    found = [fix for part in parts if (fix := _within(part, wanted)) is not None]
    if not found:
        raise PlanError(
            f"{target} cannot say a plan with {_told(wanted)}",
            allowed="; or ".join(map(str, parts)),
            next=f"fix other choices, or {advice}",
        )
    return found


def _within(part: Region, wanted: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is fixed where a region and the user's wishes meet; None where they do not."""
    from meshwright.planner.space.axis import HANDED_ON, named

    names, found = named(), dict(wanted)
    for name, value in part.fix.items():
        if name in HANDED_ON:
            meets = wanted.get(name, value) == value
            found[name] = value
        else:
            given = _values(wanted.get(name, value))
            left = tuple(
                each for each in _values(value) if each in given and each in names.get(name, (each,))
            )
            meets = bool(left)
            found[name] = left[0] if len(left) == 1 else left
        if not meets:
            return None
    return found


def _values(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _told(choices: Mapping[str, Any]) -> str:
    """Choices for people: those that are not empty."""
    return ", ".join(
        f"{name}={'+'.join(map(str, _values(value)))}" for name, value in choices.items() if value
    )
