"""What the page of `meshwright plan` rests on, sentence by sentence, and what to type where it is wrong."""

from __future__ import annotations

from collections.abc import Iterable

from meshwright.planner.advice.running_cost import price_per_hour_usd
from meshwright.reports.page.plan_page import NO_FLAG, Assumed
from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.units import format_bytes

# Words of a sentence -> what overrides it; the first that is found counts.
FLAGS: tuple[tuple[str, str], ...] = (
    ("nobody chose a dtype", "--fix dtype=float16"),
    ("in float32", "--fix dtype=bfloat16"),
    ("has a NIC of", "CLUSTER as a .toml file with its own levels"),
    ("the usual node of", "CLUSTER as NODESxDEVICESxKIND"),
    ("nodes of", "CLUSTER as NODESxDEVICESxKIND"),
    ("may fill", "--max-memory 72GB"),
    ("software '", "--fix software=NAME"),
    ("beside computes:", "--fix overlap=reduce+gather"),
    ("roofline of the data sheet", "CLUSTER of measured devices, without --extrapolate"),
    ("does not divide; give the padded one", "MODEL as a config.json with a padded vocabulary"),
    ("energy: every device draws", "--power 700W"),
    ("as today: ", "--fix NAME=VALUE"),
    ("is padded to", "the file of --like"),
    ("no price of", "--price 2.5"),
    ("cost: ", "--price 2.5"),
    ("failures come independently", "--mtbf, --checkpoint, --restart"),
    ("until `meshwright calibrate`", "meshwright calibrate"),
    ("checkpoints, evaluation", "--mtbf, --checkpoint, --restart; the rest: no flag"),
    ("kernels and messages: published", "no flag; meshwright compare PLAN LOG says how far off it is"),
    ("tokens go to experts evenly", "no flag; meshwright compare PLAN LOG says how far off it is"),
    ("between two steps", "no flag; meshwright compare PLAN LOG says how far off it is"),
)

NOTHING_TO_TYPE = "no flag"


def flag_of(sentence: str) -> str:
    """What to type for another assumption than this; NO_FLAG where nothing does."""
    return next((flag for words, flag in FLAGS if words in sentence), NO_FLAG)


def assumed(
    sentences: Iterable[str], cluster: ClusterSpec, max_memory_bytes: int | None = None
) -> list[Assumed]:
    """Each sentence once, behind what the cluster says by itself."""
    lines = dict.fromkeys((*_of_cluster(cluster, max_memory_bytes), *cluster.assumptions, *sentences))
    return [Assumed(line, flag_of(line)) for line in lines]


def told(each: Assumed) -> str:
    """The sentence, and in brackets what to type for another."""
    has_flag = each.flag != NO_FLAG and not each.flag.startswith(NOTHING_TO_TYPE)
    return f"{each.sentence} [{each.flag}]" if has_flag else each.sentence


def _of_cluster(cluster: ClusterSpec, max_memory_bytes: int | None) -> list[str]:
    """Nodes, memory, and that no price was given."""
    size = format_bytes(min(cluster.memory_bytes, max_memory_bytes or cluster.memory_bytes))
    if cluster.machine.is_here:
        return [f"a process has {size}"]
    lines = [f"tensors, driver and communicators of a device may fill {size}"]
    if len(cluster.levels) > 1 and not any("the usual node of" in line for line in cluster.assumptions):
        lines.insert(0, f"nodes of {cluster.levels[0].num_devices}")
    if price_per_hour_usd(cluster) is None:
        lines.append("no price of a device and hour was given: no dollars are told")
    return lines
