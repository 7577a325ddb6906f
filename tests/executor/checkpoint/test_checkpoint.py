"""Checkpoints of one process: any boxes to any boxes, a copy before return, what is refused, what is kept."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.executor.checkpoint.stored_case import assert_same, cut, save, stored, tensors, whole

from meshwright.executor.checkpoint.checkpoint import RankCheckpoints, load_pieces
from meshwright.executor.checkpoint.config import CheckpointConfig
from meshwright.executor.checkpoint.folder import checkpoint_at, latest_checkpoint, steps_in
from meshwright.executor.checkpoint.index import INDEX_FILE, CheckpointInfo, box_error, read_index
from meshwright.executor.checkpoint.planner import Box, RankFacts, writers
from meshwright.executor.checkpoint.verify import problems
from meshwright.executor.file.new_file import watching
from meshwright.executor.layout.piece import Piece
from meshwright.specs.error import ExecutionError, MeshwrightError, SpecError
from meshwright.specs.training.checkpoints import Checkpoints


@pytest.mark.parametrize("seed", range(8))
def test_any_boxes_are_loaded_as_any_others(seed: int, tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 1, cut(tensors(), seed))
    found = {name: torch.zeros_like(value) for name, value in tensors().items()}
    load_pieces(checkpoint, read_index(checkpoint), cut(found, seed + 100))
    assert_same(found, tensors())
    assert problems(checkpoint) == []


def test_only_a_part_is_loaded_where_only_a_part_is_held(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 1, cut(tensors(), 3))
    held, read = torch.full((7, 5), -1.0), list[int]()
    piece = Piece("matrix", (7, 5), (2, 1), held[2:4, 1:3])
    index = read_index(checkpoint)
    alone = replace(index, tensors={"matrix": index.tensors["matrix"]})
    load_pieces(checkpoint, alone, [piece], progress=read.append)
    assert torch.equal(held[2:4, 1:3], tensors()["matrix"][2:4, 1:3])
    assert int((held == -1.0).sum()) == 35 - 4
    assert sum(read) == 4 * 4  # four numbers of four bytes, and no more of the files


def test_files_are_what_safetensors_reads(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 1, whole(tensors()))
    assert_same(load_file(checkpoint / "tensors-0.safetensors"), tensors())


def test_a_box_that_is_held_twice_is_filled_twice(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 1, whole(tensors()))
    first, second = torch.tensor(0.0), torch.tensor(0.0)
    others = [piece for piece in whole(tensors()) if piece.name != "step_count"]
    pieces = [Piece("step_count", (), (), one) for one in (first, second)]
    load_pieces(checkpoint, read_index(checkpoint), [*others, *pieces])
    assert float(first) == float(second) == 3.0


def test_what_changes_after_save_is_saved_as_it_was(tmp_path: Path) -> None:
    values, goes_on = tensors(), threading.Event()
    checkpoints = RankCheckpoints(CheckpointConfig(Checkpoints(str(tmp_path))), lambda: whole(values))

    def wait(operation: str, path: Path) -> None:
        assert goes_on.wait(30)

    with watching(wait):
        checkpoints.save(CheckpointInfo(1), RankFacts())
        assert not (tmp_path / "step-1").exists()  # it has returned, and nothing is written yet
        for value in values.values():
            value.zero_()
        goes_on.set()
        checkpoints.close()
    assert_same(stored(tmp_path / "step-1"), tensors())


def test_an_error_is_told_at_the_next_save(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    checkpoints = RankCheckpoints(
        CheckpointConfig(Checkpoints(str(tmp_path / "file"))), lambda: whole(tensors())
    )
    checkpoints.save(CheckpointInfo(1), RankFacts())
    with pytest.raises(ExecutionError, match="on rank 0: FileExistsError|on rank 0: NotADirectoryError"):
        checkpoints.save(CheckpointInfo(2), RankFacts())
    checkpoints.close()


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    for step in range(1, 9):
        save(tmp_path, step, whole(tensors(step)), keep=2)
    assert steps_in(tmp_path) == [7, 8]
    assert latest_checkpoint(tmp_path) == tmp_path / "step-8" == checkpoint_at(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-7", "step-8"]


@pytest.mark.parametrize("damage", [b"step-7\xff", b"", b"\x00", b"step-9", None])
def test_a_damaged_name_of_the_latest_is_the_last_whole_one(tmp_path: Path, damage: bytes | None) -> None:
    for step in (7, 8):
        save(tmp_path, step, whole(tensors(step)))
    (tmp_path / "latest").unlink()
    if damage is None:
        (tmp_path / "latest").mkdir()
    else:
        (tmp_path / "latest").write_bytes(damage)
    assert latest_checkpoint(tmp_path) == tmp_path / "step-8" == checkpoint_at(tmp_path)


def test_going_back_replaces_what_comes_again_and_keeps_what_is_ahead(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step, whole(tensors(step)))
    save(tmp_path, 20, whole(tensors(-1.0)), keep=1)
    assert steps_in(tmp_path) == [20, 30]
    assert latest_checkpoint(tmp_path) == tmp_path / "step-20"
    assert_same(stored(tmp_path / "step-20"), tensors(-1.0))


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 1, whole(tensors()))
    index = read_index(checkpoint)

    def load(values: dict[str, torch.Tensor]) -> None:
        load_pieces(checkpoint, index, whole(values))

    values = tensors()
    with pytest.raises(SpecError, match="lacks the tensor other"):
        load({**values, "other": torch.zeros(2)})
    with pytest.raises(SpecError, match="also has 2 tensors: cube, matrix"):
        load({name: value for name, value in values.items() if name not in ("matrix", "cube")})
    with pytest.raises(SpecError, match=r"matrix is \[7, 5\] in the checkpoint, \[7, 6\] in the model"):
        load({**values, "matrix": torch.zeros(7, 6)})
    wide = {**values, "cube": torch.zeros(3, 4, 6)}
    with pytest.raises(SpecError, match=r"cube is torch.bfloat16 .*, torch.float32 in the training"):
        load(wide)


def test_pieces_must_cover_every_tensor_once(tmp_path: Path) -> None:
    half = [Piece("a", (4, 2), (0, 0), torch.zeros(2, 2))]
    with pytest.raises(ExecutionError, match="a cannot be saved: its boxes hold 4 numbers"):
        save(tmp_path, 1, half)
    shifted = [
        Piece("a", (4, 2), (0, 0), torch.zeros(2, 2)),
        Piece("a", (4, 2), (1, 0), torch.zeros(2, 2)),
    ]
    with pytest.raises(ExecutionError, match="two of its boxes overlap"):
        save(tmp_path, 1, shifted)
    assert box_error((4,), [((3,), (2,))]) == "the box at [3] of [2] does not lie in a tensor of [4]"
    assert latest_checkpoint(tmp_path) is None


def test_copies_are_written_once_and_spread() -> None:
    boxes: dict[Box, int] = {(f"tensor {n}", (0,), (4,)): 16 for n in range(6)}
    alone: dict[Box, int] = {("own", (0,), (8,)): 32}
    ranks = [{**boxes, **alone}, boxes, boxes]
    chosen = writers(ranks)
    assert chosen.keys() == ranks[0].keys() and chosen["own", (0,), (8,)] == 0
    loads = [sum(ranks[0][box] for box, writer in chosen.items() if writer == rank) for rank in range(3)]
    assert sorted(loads) == [32, 48, 48]


def test_broken_indexes_are_refused(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 1, whole(tensors()))
    text = (checkpoint / INDEX_FILE).read_text()

    def read(old: str, new: str) -> None:
        assert old in text
        (checkpoint / INDEX_FILE).write_text(text.replace(old, new))
        read_index(checkpoint)

    fields = json.loads(text)
    assert fields["schema"] == 1
    with pytest.raises(
        SpecError, match=r"has schema 9; .*upgrade meshwright to the version that wrote it \(unknown\)"
    ):
        read('"schema": 1', '"schema": 9')
    with pytest.raises(SpecError, match="is no name of a file in the folder"):
        read("tensors-0.safetensors", "../tensors-0.safetensors")
    with pytest.raises(SpecError, match="its boxes hold 35 numbers"):
        read('"shape": [7, 5]', '"shape": [7, 6]')
    with pytest.raises(SpecError, match="cannot be read"):
        read('"schema"', "schema")
    with pytest.raises(SpecError, match="is no checkpoint"):
        read_index(tmp_path)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    checkpoint = save(tmp_path, 1, whole(tensors()))
    path = checkpoint / "tensors-0.safetensors"
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    assert "instead of" in problems(checkpoint)[0]
    with pytest.raises(MeshwrightError, match=r"tensors-0.safetensors has \d+ bytes instead of"):
        stored(checkpoint)
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert problems(checkpoint) == [f"{path} was changed: its SHA-256 is not that of the index"]
    path.unlink()
    assert problems(checkpoint) == [f"{path} is missing"]
