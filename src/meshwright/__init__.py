"""meshwright turns a model, a cluster and a workload into a plan, shows its cost, runs it, and compares the two.

    import meshwright as mw

    plans = mw.plan(mw.Model("Qwen3-32B"), mw.Cluster("32x8xH100"), global_batch=1024, seq=8192)
    predicted = mw.simulate(plans[0])

Every name here is imported when it is first used: `import meshwright` loads neither torch nor numpy.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

__version__ = "0.1.0"


@cache
def _places() -> dict[str, tuple[str, str]]:
    """Public name -> module and the name there, from the imports of `__init__.pyi`: types and runtime have one table."""
    import ast

    with open(f"{__file__}i", encoding="utf-8") as stub:
        imports = [node for node in ast.parse(stub.read()).body if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in imports
        for alias in node.names
    }


def __getattr__(name: str) -> Any:
    places = _places()
    if name == "__all__":
        value: Any = [*sorted(places), "__version__"]
    elif name in places:
        module, attribute = places[name]
        value = getattr(importlib.import_module(module), attribute)
    else:
        raise AttributeError(f"module 'meshwright' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*_places(), "__all__", "__doc__", "__version__"})
