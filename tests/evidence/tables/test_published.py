"""Papers and repositories are found in a row's columns; their settings go before the software's, its words before both."""

from __future__ import annotations

import pytest
from tests.evidence.training_sample import table_row

from meshwright.evidence.tables.published import (
    NOTHING_KNOWN,
    PUBLISHED,
    day_of,
    published_of,
    traits_of_row,
)
from meshwright.evidence.tables.table import TrainingRow, training_row


def row(**fields: object) -> TrainingRow:
    """A row of a source that nobody knows."""
    values = table_row(
        "ours-1", 1.0, **{"extras": "", "schedule": "", "source_repo": "", "note": "", **fields}
    )
    return training_row({name: str(value) for name, value in values.items()}, "ours.csv, line 2", "ours")


def test_a_row_that_names_nobody_follows_general_rules() -> None:
    assert published_of(row()) is NOTHING_KNOWN and traits_of_row(row()).stack == ""


@pytest.mark.parametrize(
    ("fields", "day"),
    [
        ({"note": "line 3, 2022-02-26; after the fix of 2022-02-25"}, "2022-02-26"),
        ({"note": "arXiv 2205.05198 Table 5"}, "2022-05-10"),
        ({"note": "arXiv 2311.00001"}, "2023-11"),
        ({"source_path": "images/cases_april2021.png"}, "2021-04-09"),
        ({"note": "MFU 41-48%"}, ""),
    ],
)
def test_when_a_row_ran(fields: dict[str, str], day: str) -> None:
    assert day_of(row(**fields)) == day


def test_settings_of_a_repositorys_scripts_go_before_the_softwares_own() -> None:
    plain, bridge = (
        traits_of_row(row(source_repo=name))
        for name in ("somebody/Megatron-LM", "NVIDIA-NeMo/Megatron-Bridge")
    )
    assert plain.stack == bridge.stack == "Megatron-LM"
    assert (plain.overlaps, bridge.overlaps) == (("reduce", "gather"), ("reduce", "gather", "tp"))
    assert (plain.reduces_in, bridge.reduces_in) == ("float32", "bfloat16")


def test_what_a_row_says_of_its_software_goes_before_who_published_it() -> None:
    assert traits_of_row(row(source_repo="MooreThreads/SimuMax")).stack == "Megatron-LM"
    assert traits_of_row(row(source_repo="MooreThreads/SimuMax", extras="torchtitan")).stack == "torchtitan"


def test_the_same_software_by_other_words_has_the_same_traits() -> None:
    by_extras, by_schedule = row(extras="nanotron; async"), row(schedule="1f1b of nanotron")
    assert (
        traits_of_row(by_extras) == traits_of_row(by_schedule) == traits_of_row(row(note="run with nanotron"))
    )


def test_who_published_is_told_apart() -> None:
    assert len({each.named_by for each in PUBLISHED}) == len(PUBLISHED)
    assert all(len(each.reference) > 10 for each in PUBLISHED)
