"""What the card claims from, and its `Use:` on a model, a cluster and a load that it does not know."""

from __future__ import annotations

import pytest
from tests.cli.running import Runner, runner
from tests.executor.serving.paged_case import SIZES, their_model

import meshwright as mw
from meshwright.serving.request.request import Request
from meshwright.systems.serving.tpi_llm import card


def test_a_row_that_a_rate_is_taken_from_says_itself() -> None:
    """And claims nothing."""
    assert card._token_s("llama-2-13b", "windowed", 1, "llama-2-13b") == pytest.approx(18.0, rel=1e-3)
    assert card.shared_s("yi-34b") == pytest.approx(14.0, rel=1e-3)
    fitted = {"windowed_s": "llama-2-13b", "shared_s": "yi-34b", "times_quicker": "llama-2-7b"}
    for claim in card.CLAIMS:
        for arguments, _ in claim["cases"]:
            assert arguments.get("model", "") != fitted.get(claim["by"])


def test_the_nearest_row_is_another_ones() -> None:
    assert card.windowed_row("llama-2-7b") == 12.0 and card.windowed_row("yi-34b") == 18.0
    assert card.shared_row("llama-2-3b") == 3.0


def test_the_window_is_nearly_all_of_a_process() -> None:
    """Without what a process has anyway it is 2.6 of 3.0 GB; all blocks of the master are 36 GB."""
    assert card.peak_gb("llama-2-70b", 8) - card.PROCESS_BYTES / 1e9 == pytest.approx(2.6215, abs=1e-3)
    assert card.master_bytes(card._model("llama-2-70b"), 8) / 1e9 == pytest.approx(36.3, abs=0.05)


@pytest.mark.slow
def test_two_processes_say_what_one_says(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path_factory.mktemp("models") / "bytes"
    their_model({"model_type": "llama", **SIZES, "vocab_size": 256}, folder)
    run: Runner = runner(capsys)
    asked = (
        "generate",
        folder,
        "--prompt",
        "Once",
        "--max-tokens",
        12,
        "--engine",
        "torch",
        "--dtype",
        "float32",
    )
    small = ("--blocks", 32, "--threads", 1, "--device", "cpu", "--json")
    fetched = ("--tp", 2, "--weights", "tpi_llm(window=2)", "--sums", "star")
    found = [run(*asked, *small), run(*asked, *fetched, *small)]
    assert [each.code for each in found] == [0, 0], found[1].stderr
    assert found[0].data["outputs"] == found[1].data["outputs"]


def test_a_load_is_planned_for_devices_at_home() -> None:
    """A model of 12.9 GB on eight devices of 4 GB; what its blocks take to come is what a token takes."""
    load = [Request("a", 30, 6, num_output_tokens=6)]
    fix = {
        "tp": 8,
        "replicas": 1,
        "dtype": "float32",
        "sums": "quickest",
        "weights": "tpi_llm(disk_bytes_per_s=1e9)",
    }
    (found,) = mw.plan_load("llama-3.2-3b", "8x1xcpu nic=1Gb/s", load, fix=fix)
    model = mw.Model("llama-3.2-3b")
    tables = 2 * model.vocabulary_size * model.hidden_size  # the tied one comes twice
    matrices = model.num_parameters - tables / 2
    assert found.report.tpot_s["p50"] == pytest.approx(4 * (tables + matrices) / 8 / 1e9, rel=0.01)
