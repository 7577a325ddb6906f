"""`train` with what a real training needs: metrics, evaluations, TensorBoard, checkpoints, and going on elsewhere."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import Runner, small_plan
from tests.executor.chat_data import write_chat_tokenizer, write_chats
from tests.executor.token_data import write_tokenizer

from meshwright.cli.frame.progress import duration_text
from meshwright.executor.job.pool import Pool
from meshwright.specs import Cluster, ModelSpec, Plan, Workload


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.txt").write_text(
            f"part {number}: to be or not to be, that is the question. " * 20
        )
    return folder


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_training_goes_on_under_another_plan(
    run: Runner, plan_file: Path, profile: None, shared_pool: Pool, tmp_path: Path, text: Path
) -> None:
    """pp = 2 for 6 steps, then dp = 2 to the 10th: the same losses as without a stop, in float32."""
    other, metrics, runs = tmp_path / "other.toml", tmp_path / "m.jsonl", tmp_path / "runs"
    small_plan(pp=1, dp=2).save(other)
    common = (
        "--data",
        text,
        "--warmup",
        2,
        "--final-lr",
        1,
        "--evaluate-every",
        5,
        "--evaluate-batches",
        2,
        "--json",
    )
    whole = run("train", plan_file, *common, "--iterations", 10)
    kept = ("--metrics", metrics, "--checkpoints", runs, "--checkpoint-every", 3, "--keep", 1)
    first = run("train", plan_file, *common, *kept, "--iterations", 6)
    assert (whole.code, first.code) == (0, 0), first.stderr
    assert sorted(path.name for path in runs.glob("step-*")) == ["step-6"]
    refused = run("train", other, *common, *kept, "--iterations", 10)
    assert refused.code == 2 and "--resume" in refused.stderr
    second = run("train", other, *common, *kept, "--iterations", 10, "--resume")
    assert second.code == 0, second.stderr
    assert second.data["first_step"] == 6 and second.data["num_iterations"] == 4
    losses = [row["loss"] for row in rows_of(metrics)]
    assert losses == first.data["losses"] + second.data["losses"]
    assert losses == pytest.approx(whole.data["losses"], rel=1e-4)
    assert [row["step"] for row in rows_of(metrics)] == list(range(1, 11))
    held_out = {row["step"]: row["held_out_loss"] for row in rows_of(metrics) if "held_out_loss" in row}
    expected = {row["step"]: row["loss"] for row in whole.data["held_out_losses"]}
    assert set(held_out) == {5, 6, 10} and held_out[10] == pytest.approx(expected[10], rel=1e-4)
    assert rows_of(metrics)[0]["learning_rate"] == pytest.approx(0.0005)
    done = run("train", other, *common, *kept, "--iterations", 10, "--resume")
    assert done.code == 2 and "has done 10 steps" in done.stderr


def test_other_data_and_a_damaged_checkpoint_are_refused(
    run: Runner, plan_file: Path, profile: None, shared_pool: Pool, tmp_path: Path, text: Path
) -> None:
    runs, other = tmp_path / "runs", tmp_path / "other"
    begun = run("train", plan_file, "--data", text, "--iterations", 1, "--checkpoints", runs)
    assert begun.code == 0 and "step-1; --resume goes on" in " ".join(begun.stdout.split())
    other.mkdir()
    for path in text.iterdir():
        (other / path.name).write_text(path.read_text().upper())
    kept = ("--checkpoints", runs, "--resume")
    same = run("train", plan_file, "--data", text, "--iterations", 2, *kept)
    assert same.code == 0 and "other data" not in same.stderr
    others = run("train", plan_file, "--data", other, "--iterations", 3, *kept)
    assert others.code == 2 and "step-2 was trained on other text than" in " ".join(others.stderr.split())
    told = run("train", plan_file, "--data", other, "--iterations", 3, *kept, "--other-data")
    assert told.code == 0 and "goes on with other data" in " ".join(told.stderr.split())
    file = runs / "step-3" / "tensors-0.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    refused = run("train", plan_file, "--data", other, "--iterations", 4, *kept, "--other-data")
    assert refused.code == 2 and "tensors-0.safetensors was changed" in refused.stderr
    (runs / "step-3").rename(tmp_path / "step-3")
    earlier = run("train", plan_file, "--data", text, "--iterations", 3, *kept, "--json")
    assert earlier.code == 0 and earlier.data["first_step"] == 2


@pytest.mark.slow
def test_text_that_was_copied_is_the_same_and_another_length_is_told(
    run: Runner, plan_file: Path, profile: None, shared_pool: Pool, tmp_path: Path
) -> None:
    """Tokens are made anew of files with other times, and are the same ones."""
    runs, copy, shorter = tmp_path / "runs", tmp_path / "copy.jsonl", tmp_path / "shorter.toml"
    text = "".join(f'{{"text": "line {number} of all"}}\n' for number in range(200))
    (tmp_path / "lines.jsonl").write_text(text)
    copy.write_text(text)
    os.utime(copy, (1e9, 1e9))
    begun = run(
        "train", plan_file, "--data", tmp_path / "lines.jsonl", "--iterations", 1, "--checkpoints", runs
    )
    assert begun.code == 0, begun.stderr
    kept = ("--checkpoints", runs, "--resume")
    same = run("train", plan_file, "--data", copy, "--iterations", 2, *kept)
    assert same.code == 0 and "other" not in same.stderr
    plan = small_plan()
    plan.changed(workload=Workload(8, 8)).save(shorter)
    told = run("train", shorter, "--data", copy, "--iterations", 3, *kept)
    assert told.code == 0 and "sequences of 16 tokens, this plan's have 8" in " ".join(told.stderr.split())


def test_a_tokenizer_is_that_of_the_weights_and_bytes_for_more_words_are_told(
    run: Runner, profile: None, shared_pool: Pool, tmp_path: Path, text: Path
) -> None:
    model = ModelSpec.decoder(2, 32, 2, max_sequence_length=16, vocabulary_size=300)
    plan, runs, folder = tmp_path / "words.toml", tmp_path / "runs", tmp_path / "model"
    Plan.of(model, Cluster.detect(2), Workload(8, 16), dp=2).save(plan)
    common = ("train", plan, "--data", text, "--iterations", 1)
    told = run(*common, "--checkpoints", runs)
    assert told.code == 0 and "256 of the model's 300 tokens" in " ".join(told.stderr.split())
    write_tokenizer(tmp_path / "tokens")
    assert run("checkpoint", "convert", runs, "--to", folder, "--tokenizer", tmp_path / "tokens").code == 0
    # the folder's own tokenizer, unless another one is named
    from_it = run(*common, "--from", folder, "--json")
    assert from_it.code == 0 and "are used" not in from_it.stderr, from_it.stderr
    named = run(*common, "--from", folder, "--tokenizer", tmp_path / "tokens", "--json")
    assert named.data["losses"] == from_it.data["losses"]


def test_tokens_are_the_length_and_the_line_says_what_is_left(
    run: Runner, plan_file: Path, profile: None, shared_pool: Pool, text: Path, tmp_path: Path
) -> None:
    board = tmp_path / "board"
    options = ("--data", text, "--tokens", 3 * 8 * 16, "--clip", 0.5, "--betas", "0.8,0.9")
    extra = ("--tensorboard", board) if importlib.util.find_spec("tensorboard") else ()
    ran = run("train", plan_file, *options, *extra)
    assert ran.code == 0 and "trained 3 steps" in ran.stdout
    assert "tokens/s" in ran.stderr and "MFU" in ran.stderr and "left" in ran.stderr
    if extra:
        assert list(board.glob("events.out.tfevents.*"))


def test_tensorboard_that_is_missing_is_named(
    run: Runner,
    plan_file: Path,
    profile: None,
    shared_pool: Pool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tensorboard" else real(name)
    )
    ran = run("train", plan_file, "--iterations", 2, "--tensorboard", tmp_path / "board")
    assert ran.code == 1 and "pip install tensorboard" in ran.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--resume",), "--checkpoints FOLDER"),
        (("--keep", 2), "--checkpoints FOLDER"),
        (("--betas", "0.9"), "two numbers"),
        (("--betas", "0.9,1"), "below 1"),
        (("--tokens", 0), "1 or more"),
        (("--tokens", "inf"), "a count such as 2T"),
        (("--evaluate-every", -1), "every 0 steps"),
        (("--final-lr", 2), "from 0 to 1"),
        (("--warmup", -2), "warm-up from 0"),
        (("--metrics", "none/m.jsonl"), "cannot be written"),
    ],
)
def test_mistakes_are_told_before_any_process_starts(
    run: Runner,
    plan_file: Path,
    profile: None,
    options: tuple[object, ...],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = "meshwright.executor.job.pool.opened_pool"
    monkeypatch.setattr(started, lambda *given: pytest.fail("processes were started"))
    ran = run("train", plan_file, *options)
    assert ran.code == 2 and words in ran.stderr


def test_a_job_of_another_size_is_refused(
    run: Runner, plan_file: Path, profile: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {
        "RANK": "0",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    ran = run("train", plan_file)
    assert ran.code == 1 and "the plan has 2 devices" in ran.stderr


def test_time_left_as_people_say_it() -> None:
    seconds = (0.4, 59.0, 61, 3599, 3600, 86_399, 90_000, 400_000)
    expected = ["0 s", "59 s", "1:01 min", "59:59 min", "1:00 h", "23:59 h", "1 d 1 h", "4 d 15 h"]
    assert [duration_text(one) for one in seconds] == expected


def test_conversations_are_trained_on_with_their_own_held_out_set(
    run: Runner, plan_file: Path, profile: None, shared_pool: Pool, tmp_path: Path
) -> None:
    tokenizer = write_chat_tokenizer(tmp_path / "small")
    chats, others = (
        write_chats(tmp_path / name, numbers)
        for name, numbers in (("chats.jsonl", range(20)), ("others.jsonl", range(90, 95)))
    )
    plan = tmp_path / "chats.toml"
    model = ModelSpec.decoder(2, 32, 2, vocabulary_size=300, max_sequence_length=32, name="chat")
    Plan.of(model, Cluster.detect(2), Workload(8, 32), pp=2).save(plan)
    given = ("--data", chats, "--tokenizer", tokenizer, "--evaluate-data", others, "--evaluate-every", 2)
    ran = run("train", plan, *given, "--iterations", 4, "--learning-rate", "0.01", "--json")
    assert ran.code == 0, ran.stderr
    assert "longer than 32 tokens and lose their ends" in ran.stderr
    held_out = [row["loss"] for row in ran.data["held_out_losses"]]
    assert len(held_out) == 2 and held_out[1] < held_out[0]


@pytest.mark.slow
def test_the_best_is_kept_gone_on_from_and_exported(
    run: Runner, plan_file: Path, profile: None, shared_pool: Pool, tmp_path: Path, text: Path
) -> None:
    """A rate that is far too high after its warm-up: the best evaluation is not the last."""
    runs, other, metrics = tmp_path / "runs", tmp_path / "other.toml", tmp_path / "m.jsonl"
    small_plan(pp=1, dp=2).save(other)
    common = ("--data", text, "--evaluate-every", 2, "--evaluate-batches", 1, "--metrics", metrics, "--json")
    kept = ("--checkpoint-every", 3, "--keep", 1, "--warmup", 12, "--final-lr", 1, "--learning-rate", 5)
    first = run("train", plan_file, *common, *kept, "--checkpoints", runs, "--iterations", 12)
    assert first.code == 0, first.stderr
    losses = {row["step"]: row["loss"] for row in first.data["held_out_losses"]}
    best = min(losses, key=losses.__getitem__)
    assert best < 12 and first.data["best_step"] == best, losses
    assert sorted(path.name for path in runs.glob("step-*")) == sorted([f"step-{best}", "step-12"])
    shown = run("checkpoint", "inspect", runs / "best", "--json")
    assert shown.data["step"] == best == shown.data["best_step"]
    assert shown.data["held_out_loss"] == pytest.approx(losses[best], rel=1e-6)
    exported = run("checkpoint", "convert", runs / "best", "--to", tmp_path / "model", "--json")
    assert exported.code == 0 and exported.data["checkpoint"].endswith(f"step-{best}")
    again = run(
        "train", other, *common, *kept, "--checkpoints", runs / "best", "--resume", "--iterations", best + 2
    )
    assert again.code == 0, again.stderr
    assert again.data["first_step"] == best
    step = {row["step"]: row["loss"] for row in again.data["held_out_losses"]}
    assert step[best + 2] == pytest.approx(
        losses[best + 2], rel=1e-3
    )  # the very same steps, by another layout
    assert (runs / "best").read_text().strip() == f"step-{best}"  # which was better, so it is still the best
    assert [row["step"] for row in rows_of(metrics)] == list(range(1, best + 3))
