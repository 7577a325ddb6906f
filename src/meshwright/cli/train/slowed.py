"""Options that slow links and processes of this machine on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from meshwright.specs.cluster.slowing import Slowing

SlowLink = Annotated[
    list[str] | None, typer.Option("--slow-link", help="Slow a link by a token bucket: 0-1=50MB/s.")
]
SlowProcess = Annotated[
    list[str] | None,
    typer.Option("--slow-process", help="Make computes of a process take longer: 1=2 (twice)."),
]


def slowing_of(links: Sequence[str] | None, processes: Sequence[str] | None) -> Slowing | None:
    """What the two options say, None where they say nothing."""
    from meshwright.specs.cluster.slowing import Slowing

    return Slowing.parse(links or (), processes or ()) if links or processes else None
