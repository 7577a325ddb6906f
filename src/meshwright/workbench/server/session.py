"""Session: what was pasted or found, by a name made of its content; kept in memory, and nothing of it on a disk."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TypeVar

from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.file import plan_text
from meshwright.specs.plan.plan import Plan

MOST_KEPT = 256  # of each kind; what was not asked for the longest goes
PREFIX = "pasted-"
T = TypeVar("T", ModelSpec, ClusterSpec, Plan)


@dataclass
class Session:
    """Models, clusters and plans by their names."""

    models: OrderedDict[str, ModelSpec] = field(default_factory=OrderedDict)
    clusters: OrderedDict[str, ClusterSpec] = field(default_factory=OrderedDict)
    plans: OrderedDict[str, Plan] = field(default_factory=OrderedDict)

    def keep_model(self, model: ModelSpec) -> str:
        """The name under which a state may say it."""
        return _keep(self.models, f"{PREFIX}{model.digest[:12]}", model)

    def keep_plan(self, plan: Plan) -> str:
        """The name of a plan that was found or read, whose choices the words of a state do not all say."""
        return _keep(self.plans, PREFIX + hashlib.sha256(plan_text(plan).encode()).hexdigest()[:12], plan)

    def keep_cluster(self, cluster: ClusterSpec, text: str) -> str:
        """The same for a cluster that this text says; plans of it name it so, too."""
        name = PREFIX + hashlib.sha256(text.encode()).hexdigest()[:12]
        return _keep(self.clusters, name, replace(cluster, name=name))


def _keep(kept: OrderedDict[str, T], name: str, value: T) -> str:
    kept[name] = value
    kept.move_to_end(name)
    while len(kept) > MOST_KEPT:
        kept.popitem(last=False)
    return name
