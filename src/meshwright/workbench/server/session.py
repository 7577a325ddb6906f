"""Session: what was pasted or found, by a name made of its content; kept in memory, and nothing of it on a disk.

Each has a text that says it, so that a link may carry it to the workbench of somebody else: the same text has the same name
there.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeVar

from meshwright.specs.cluster.cluster import ClusterSpec
from meshwright.specs.model.model import ModelSpec
from meshwright.specs.plan.file import plan_text
from meshwright.specs.plan.plan import Plan

MOST_KEPT = 256  # of each kind; what was not asked for the longest goes
PREFIX = "pasted-"
MOST_LETTERS = 24  # of a cluster's own name in the one it has here
T = TypeVar("T", ModelSpec, ClusterSpec, Plan, "Script", "KeptText", str)


class Script(NamedTuple):
    """A configuration of another program: which, its text, and the plan that it says."""

    form: str
    text: str
    plan: Plan


class KeptText(NamedTuple):
    """The text that says something kept: of what, by the path that takes it (`/api/model`), and the text."""

    what: Literal["model", "cluster", "import"]
    text: str


@dataclass
class Session:
    """Models, clusters, plans and scripts by their names. What was pasted keeps its text; that of a plan follows from
    the plan."""

    models: OrderedDict[str, ModelSpec] = field(default_factory=OrderedDict)
    clusters: OrderedDict[str, ClusterSpec] = field(default_factory=OrderedDict)
    plans: OrderedDict[str, Plan] = field(default_factory=OrderedDict)
    scripts: OrderedDict[str, Script] = field(default_factory=OrderedDict)
    model_sources: OrderedDict[str, KeptText] = field(default_factory=OrderedDict)
    cluster_texts: OrderedDict[str, str] = field(default_factory=OrderedDict)

    def keep_model(self, model: ModelSpec, source: KeptText) -> str:
        """The name under which a state may say it."""
        name = f"{PREFIX}{model.digest[:12]}"
        _keep(self.model_sources, name, source)
        return _keep(self.models, name, model)

    def keep_plan(self, plan: Plan) -> str:
        """The name of a plan that was found or read, whose choices the words of a state do not all say."""
        return _keep(self.plans, _named(plan_text(plan)), plan)

    def keep_script(self, script: Script) -> str:
        """The name of a configuration of another program, in whose words changes are told."""
        return _keep(self.scripts, _named(script.text), script)

    def keep_cluster(self, cluster: ClusterSpec, text: str) -> str:
        """The same for a cluster that this text says, with its own name in it; plans of it name it so, too."""
        own = re.sub(r"[^A-Za-z0-9]+", "-", cluster.name)[:MOST_LETTERS].strip("-")
        name = f"{PREFIX}{own}-{_digest(text)[:8]}"
        _keep(self.cluster_texts, name, text)
        return _keep(self.clusters, name, replace(cluster, name=name))

    def source(self, name: str) -> KeptText | None:
        """The text that says what has this name; None where nothing has."""
        if name in self.plans:
            return KeptText("import", plan_text(self.plans[name]))
        if name in self.scripts:
            return KeptText("import", self.scripts[name].text)
        if name in self.clusters:
            return KeptText("cluster", self.cluster_texts[name])
        return self.model_sources.get(name)


def _named(text: str) -> str:
    return PREFIX + _digest(text)[:12]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _keep(kept: OrderedDict[str, T], name: str, value: T) -> str:
    kept[name] = value
    kept.move_to_end(name)
    while len(kept) > MOST_KEPT:
        kept.popitem(last=False)
    return name
