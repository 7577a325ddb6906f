"""Tests of benchmarks/fit/fit_collectives.py and collective_table.py: constants come back, splits hold, errors stay small."""

import csv
import json
import math
import statistics
from pathlib import Path

import pytest
from fit import fit_rccl
from fit.collective_constant import Constant, fit_constants
from fit.collective_table import (
    AICONFIGURATOR_CHIPS,
    CollectiveRow,
    is_fitted,
    is_fitted_row,
    read_collectives,
    read_experts,
    read_ratios,
)
from fit.fit_collectives import (
    MOST_ROWS_PER_SERIES,
    expert_s,
    fit_chip,
    is_fitted_expert,
    is_fitted_ratio,
    main,
    predicted_s,
    ratio_predicted,
    score,
    thinned,
)

from meshwright.costs.collective.profile import (
    LARGE_BYTES,
    PROFILE_FILE,
    CollectiveProfile,
    packaged_profile,
)
from meshwright.specs.error import SpecError


def measured(chip: str, scale: float = 1.0) -> list[CollectiveRow]:
    """Rows that the packaged curve of `chip` would give, times `scale`."""
    curve = packaged_profile().chips[chip].curve
    rows = [
        CollectiveRow("made up", chip, operation, "float16", 2.0**power, members, 1, 1.0)
        for operation in ("all_reduce", "all_gather", "all_to_all")
        for power in range(10, 30, 3)
        for members in (2, 4, 8)
    ]
    return [row._replace(seconds=scale * predicted_s(curve, row)) for row in rows]


def test_constants_come_back_from_rows_that_follow_them():
    constants = (Constant("a", 1.0, 0.01, 100.0, "s", ""), Constant("b", 1.0, 0.1, 2.0, "s", ""))
    fit = fit_constants(constants, lambda v: [math.log(v["a"] / 7.0), math.log(v["b"] / 5.0)])
    assert fit.values["a"] == pytest.approx(7.0, rel=1e-3)
    assert fit.at_edge == ("b",)  # 5 lies outside its range, and the fit says so


def test_a_chip_is_fitted_to_its_own_curve():
    rows = measured("A100")
    curve, _ = fit_chip("A100", rows)
    assert score([(predicted_s(curve, row), row.seconds) for row in rows]).median < 0.02


def test_a_series_is_thinned_by_rank_of_size():
    row = measured("H100")[0]
    rows = [row._replace(num_bytes=float(size)) for size in range(1, 995)]
    kept = thinned(rows)
    assert len(kept) <= MOST_ROWS_PER_SERIES
    assert kept[0].num_bytes == 1 and kept[-1].num_bytes > 900


def test_a_score_tells_bias_from_error():
    scored = score([(1.1, 1.0), (0.9, 1.0), (1.2, 1.0)])
    assert scored.median == pytest.approx(0.1) and scored.bias == pytest.approx(0.1)
    assert scored.num_rows == 3 and scored.percentile_80 > 0.1


def test_the_split_is_fixed_and_keeps_a_point_on_one_side():
    assert [is_fitted("all_reduce", 1024, n) for n in (2, 4, 8)] == [
        is_fitted("all_reduce", 1024, n) for n in (2, 4, 8)
    ]
    halves = [is_fitted(i) for i in range(2000)]
    assert 0.45 < statistics.mean(halves) < 0.55
    row = measured("H100")[5]
    others = (row._replace(dtype="int8"), row._replace(source="other"), row._replace(seconds=9.0))
    assert {is_fitted_row(other) for other in others} == {is_fitted_row(row)}


def test_a_missing_table_is_named(tmp_path):
    with pytest.raises(SpecError, match="aiconfigurator_nccl"):
        read_collectives(tmp_path)


def write(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_tables(folder: Path) -> None:
    """Small tables of the published shapes, from the packaged curves."""
    for system, chip in AICONFIGURATOR_CHIPS.items():
        entries = [
            {
                "op_name": row.operation.replace("all_to_all", "alltoall"),
                "nccl_dtype": "half",
                "num_gpus": row.num_members,
                "bytes": int(row.num_bytes),
                "latency_ms": row.seconds * 1e3,
            }
            for row in measured(chip)
        ]
        write(folder / f"aiconfigurator_nccl_{system}.csv", entries)
    apex = {"op": "sendrecv", "num_nodes": 1, "num_gpus_per_node": 2, "dtype": "half"}
    write(
        folder / "apexplus_H100-SXM-80GB.csv",
        [{**apex, "size(kb)": k, "time(us)": 12 + k / 350} for k in (0, 512, 8192)],
    )
    vidur = {
        "num_workers": 2,
        "devices_per_node": 1,
        "size_bytes": 2048,
        "collective": "send_recv",
        "median_ms": 0.02,
    }
    write(folder / "vidur_a100_dgx.csv", [vidur])
    ratios = [
        {"Size": 2**power, "2Node-16GPU(NIC )": 0.5 + power / 100, "4Node-32GPU(NIC)": 0.4 + power / 100}
        for power in range(24, 36)
    ]
    empty = {f"{n}Node-{8 * n}GPU(NIC)": "" for n in (8, 16, 32, 64, 128)}
    for table in ("nic", "ata"):
        write(folder / f"simai_{table}_ratio.csv", [{**row, **empty} for row in ratios])
    experts = [
        {
            "node_num": 1,
            "hidden_size": 7168,
            "num_token": tokens,
            "num_topk": 8,
            "num_experts": 256,
            "dispatch_sms": sms,
            "combine_sms": sms,
            **{f"{kernel}_transmit_us": 30 + tokens / sms for kernel in ("dispatch", "combine")},
        }
        for tokens in (64, 512, 4096, 32768)
        for sms in (4, 8, 24)
    ]
    write(folder / "aiconfigurator_h100_sxm_wideep_deepep_normal_perf.csv", experts)


def test_the_command_writes_a_profile_that_loads(tmp_path):
    write_tables(tmp_path)
    assert main([str(tmp_path), "-o", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / PROFILE_FILE).read_text(encoding="utf-8")
    profile = CollectiveProfile.from_document(json.loads(text))
    assert profile.chips["B200"].spread.large < 0.10  # the rows follow a curve of this very form


@pytest.fixture(scope="module")
def tables(shared_data) -> Path:
    return shared_data / "calibration" / "collectives"


def test_held_out_points_above_one_mebibyte_are_within_the_target(tables):
    """The issue's limit: at most 10 % in the median, here for every source and every chip by itself."""
    profile = packaged_profile()
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in read_collectives(tables):
        if row.num_nodes == 1 and row.num_bytes > LARGE_BYTES and not is_fitted_row(row):
            pair = predicted_s(profile.chips[row.chip].curve, row), row.seconds
            groups.setdefault((row.source, row.chip), []).append(pair)
    assert len(groups) == 5
    for name, pairs in groups.items():
        assert score(pairs).median <= 0.10, name


def test_held_out_ratios_and_experts_are_near(tables):
    profile = packaged_profile()
    node = profile.chips["H100"].curve
    ratios = [row for row in read_ratios(tables) if not is_fitted_ratio(row)]
    network = profile.networks["infiniband"].curve
    assert score([(ratio_predicted(network, node, row), row.ratio) for row in ratios]).median <= 0.10
    for kernel, curve in profile.expert.items():
        rows = [row for row in read_experts(tables) if row.kernel == kernel and not is_fitted_expert(row)]
        assert score([(expert_s(curve, row), row.seconds) for row in rows]).median <= 0.10


def test_the_package_carries_what_the_tables_give(tables):
    """A chip fitted again on its half gives the packaged rates to a few percent."""
    known = packaged_profile().chips["H100"].curve
    rows = [row for row in read_collectives(tables) if row.chip == "H100" and is_fitted_row(row)]
    curve, _ = fit_chip("H100", rows)
    assert curve.ring_bulk.bytes_per_s == pytest.approx(known.ring_bulk.bytes_per_s, rel=0.05)


def test_the_packaged_collectives_of_mi300x_are_those_fitted_on_eight_of_them():
    packaged, again = packaged_profile().chips["MI300X"], fit_rccl.fitted_chip()
    assert again.curve.ring_bulk.bytes_per_s == pytest.approx(packaged.curve.ring_bulk.bytes_per_s, rel=1e-3)
    assert again.curve.ring_bulk.hop_s == pytest.approx(packaged.curve.ring_bulk.hop_s, rel=1e-2)
    assert again.spread.large == pytest.approx(packaged.spread.large, rel=1e-2)
    tried = {row.num_members for row in fit_rccl.rows() if row.by != "fitted_us"}
    assert tried == {2, 4, 8} and sum(row.by == "fitted_us" for row in fit_rccl.rows()) == 12
