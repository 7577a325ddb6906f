"""Session: what was pasted or found, by a name made of its content; kept in memory, and nothing of it on a disk.

Each is kept with the text that says it, so that a link may carry it to the workbench of somebody else: the same text has the
same name there.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeVar

from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.file import plan_text
from meshwright.specs.plan.plan import Plan

MOST_KEPT = 256  # of each kind; what was not asked for the longest goes
PREFIX = "pasted-"
T = TypeVar("T", ModelSpec, ClusterSpec, Plan, "KeptText")


class KeptText(NamedTuple):
    """The text that says something kept: of what, by the path that takes it (`/api/model`), and the text."""

    what: Literal["model", "cluster", "import"]
    text: str


@dataclass
class Session:
    """Models, clusters and plans by their names, and the sources of all."""

    models: OrderedDict[str, ModelSpec] = field(default_factory=OrderedDict)
    clusters: OrderedDict[str, ClusterSpec] = field(default_factory=OrderedDict)
    plans: OrderedDict[str, Plan] = field(default_factory=OrderedDict)
    sources: OrderedDict[str, KeptText] = field(default_factory=OrderedDict)

    def keep_model(self, model: ModelSpec, source: KeptText) -> str:
        """The name under which a state may say it."""
        name = f"{PREFIX}{model.digest[:12]}"
        _keep(self.sources, name, source)
        return _keep(self.models, name, model)

    def keep_plan(self, plan: Plan) -> str:
        """The name of a plan that was found or read, whose choices the words of a state do not all say."""
        text = plan_text(plan)
        name = _named(text)
        _keep(self.sources, name, KeptText("import", text))
        return _keep(self.plans, name, plan)

    def keep_cluster(self, cluster: ClusterSpec, text: str) -> str:
        """The same for a cluster that this text says; plans of it name it so, too."""
        name = _named(text)
        _keep(self.sources, name, KeptText("cluster", text))
        return _keep(self.clusters, name, replace(cluster, name=name))


def _named(text: str) -> str:
    return PREFIX + hashlib.sha256(text.encode()).hexdigest()[:12]


def _keep(kept: OrderedDict[str, T], name: str, value: T) -> str:
    kept[name] = value
    kept.move_to_end(name)
    while len(kept) > MOST_KEPT:
        kept.popitem(last=False)
    return name
