"""Spreads of stacks come back from stacks that were drawn with them, and intervals hold what they say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fit.fit_run_prior import draws_of, fitted, main, prior_of, quantile_of, surprise
from tests.evidence.training_sample import table_row, write_table

from meshwright.prediction.own_runs.prior import RunPriors
from meshwright.prediction.own_runs.run_table import KINDS, RunTable
from meshwright.prediction.own_runs.trait import TRAITS


def stacks(messages: float, scatter: float, seed: int = 0) -> dict[str, RunTable]:
    """Made stacks whose messages are off by a factor each, and their runs by scatter."""
    random = np.random.default_rng(seed)
    found = {}
    for number in range(4):
        shares = random.dirichlet(np.full(len(KINDS), 2.0), size=24)
        factors = np.ones(len(KINDS))
        factors[KINDS.index("messages")] = np.exp(messages * random.normal())
        missed = np.log(shares @ factors) + scatter * random.normal(size=24)
        found[f"stack {number}"] = RunTable(
            shares, random.integers(0, 4, (24, len(TRAITS))).astype(float), missed
        )
    return found


@pytest.mark.slow  # two searches of half a minute
def test_messages_that_differ_between_stacks_are_expected_to() -> None:
    """The more they differ, the wider the prior; what is likelier under it is told by the other rows."""
    narrow, wide = (fitted(draws_of(stacks(spread, 0.01)))[0] for spread in (0.03, 0.6))
    assert wide.spreads["messages"] > 2 * narrow.spreads["messages"]
    draws = draws_of(stacks(0.6, 0.01, seed=1))
    costs = [np.mean([surprise(prior, own) for own in draws.values()]) for prior in (wide, narrow)]
    assert costs[0] < costs[1]


def test_intervals_are_as_wide_as_rows_that_scatter_more_need() -> None:
    start = prior_of(np.log([0.085, 0.11, 0.17, 0.5, 0.17, 0.17, 0.01, 0.05, 0.025]))
    calm, rough = (quantile_of(start, draws_of(stacks(0.1, scatter))) for scatter in (0.01, 0.2))
    assert calm < rough


@pytest.mark.slow
def test_tables_become_the_packages_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a source that the constants know; one that they do not takes no part."""
    sizes = {n: {"gpus": 8 * 2**n, "global_batch_seqs": 64, "dp": 8 * 2**n} for n in range(3)}
    tables = [
        write_table(
            tmp_path / f"{source}.csv",
            [table_row(f"{source}-{n}", 2.0 + n, **size) for n, size in sizes.items()],
        )
        for source in ("internevo", "mosaic", "nobody")
    ]
    target = tmp_path / "priors.json"
    assert main([*map(str, tables), "-o", str(target)]) == 0
    found = RunPriors.from_dict(json.loads(target.read_text(encoding="utf-8")))
    assert set(found.left_out) == {"internevo", "mosaic"} and found.fit.quantile > 0
    assert "6 rows, 2 sources" in capsys.readouterr().err
