"""The corpus: deterministic split and batches, entropies that are right, errors that help."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from meshwright.executor.data.corpus import Corpus
from meshwright.specs.error import ExecutionError, SpecError


@pytest.fixture(scope="module")
def library() -> Corpus:
    return Corpus.standard_library()


def _folder(tmp_path: Path, num_files: int = 80) -> Path:
    for number in range(num_files):
        folder = tmp_path / ("a" if number % 2 else "b")
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.txt").write_bytes(f"text number {number}\n".encode() * 20)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "t.txt").write_text("left out")
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    (tmp_path / "zeros.txt").write_bytes(b"a\0b")
    return tmp_path


def own_entropy(corpus: Corpus) -> float:
    """Nats per byte of the held-out files under their own byte frequencies: the least any can reach."""
    counts = np.bincount(corpus.held_out)
    shares = counts[counts > 0] / counts.sum()
    return float(-shares @ np.log(shares))


def test_the_standard_library_is_there_and_repeats(library: Corpus) -> None:
    assert len(library.train) > 3_000_000
    assert 0.01 < len(library.held_out) / len(library.train) < 0.12
    again = Corpus.standard_library()
    assert again.digest == library.digest
    assert b"def " in library.train.tobytes()
    assert 2.5 < own_entropy(library) <= library.unigram_entropy() < math.log(256)


def test_batches_are_a_function_of_seed_step_and_sample(library: Corpus) -> None:
    tokens, targets = library.batch(1, 2, [3, 4, 5], 32)
    assert tokens.shape == targets.shape == (3, 32)
    assert tokens.dtype == torch.int64
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    one, _ = library.batch(1, 2, [4], 32)
    assert torch.equal(one[0], tokens[1])
    for other in (library.batch(0, 2, [4], 32), library.batch(1, 3, [4], 32), library.batch(1, 2, [6], 32)):
        assert not torch.equal(other[0], one)


def test_held_out_batches_cover_the_held_out_text_in_order(library: Corpus) -> None:
    batches = list(library.held_out_batches(5, 16, 2))
    assert [len(tokens) for tokens, _ in batches] == [2, 2, 1]
    assert bytes(batches[0][0][0].tolist()) == library.held_out[:16].tobytes()
    assert bytes(batches[-1][1][-1].tolist()) == library.held_out[-16:].tobytes()
    again = list(library.held_out_batches(5, 16, 2))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(batches, again))


def test_a_folder_is_split_by_names_whatever_else_is_there(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    corpus = Corpus.folder(folder)
    assert corpus.num_files == 80
    held_out = set(corpus.held_out.tobytes().split(b"\0")) - {b""}
    assert held_out
    assert not held_out & set(corpus.train.tobytes().split(b"\0"))
    for number in range(80, 120):
        (folder / "a" / f"{number}.txt").write_text(f"text number {number}\n" * 20)
    assert held_out <= set(Corpus.folder(folder).held_out.tobytes().split(b"\0"))


def test_one_file_holds_its_end_out(tmp_path: Path) -> None:
    path = tmp_path / "book"
    path.write_bytes(bytes(range(100)))
    corpus = Corpus.folder(path)
    assert corpus.train.tobytes() + corpus.held_out.tobytes() == bytes(range(100))
    assert len(corpus.held_out) == 5


def test_few_files_are_enough(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("first " * 20)
    alone = Corpus.folder(tmp_path)
    assert (len(alone.train), len(alone.held_out), alone.num_files) == (114, 6, 1)
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "c.txt").write_text("third")
    corpus = Corpus.folder(tmp_path)
    assert corpus.num_files == 3
    assert corpus.held_out.tobytes().count(b"\0") == 1 and corpus.train.tobytes().count(b"\0") == 2


def test_entropies_by_hand() -> None:
    train = np.frombuffer(b"aaab", np.uint8)
    held_out = np.frombuffer(b"ab", np.uint8)
    corpus = Corpus("hand", train, held_out, 1, "")
    assert own_entropy(corpus) == pytest.approx(math.log(2))
    expected = -0.5 * (math.log(4 / 260) + math.log(2 / 260))  # add-one over 256 values
    assert corpus.unigram_entropy() == pytest.approx(expected)


def test_errors_name_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no folder"):
        Corpus.folder(tmp_path / "nowhere")
    with pytest.raises(SpecError, match="has no file of text"):
        Corpus.folder(tmp_path)
    for name, text in (("a.txt", "text"), ("b.txt", "")):
        (tmp_path / name).write_text(text)
    with pytest.raises(ExecutionError, match="0 files to train on"):
        Corpus.folder(tmp_path)
    short = Corpus("short", np.zeros(10, np.uint8), np.zeros(10, np.uint8), 1, "")
    with pytest.raises(ExecutionError, match="sequences up to 9"):
        short.batch(0, 0, [0], 10)


def test_binary_files_are_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for name in "ab":
        (folder / f"{name}.txt").write_text(f"text of {name}")
    before = Corpus.folder(folder).digest
    assert not caplog.records
    (folder / "program.txt").write_bytes(b"\x7fELF\0")
    assert Corpus.folder(folder).digest == before and "1 files" in caplog.text


def test_unreadable_files_are_left_out_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = _folder(tmp_path)
    (folder / "gone.txt").symlink_to(folder / "nothing")
    assert Corpus.folder(folder).num_files == 80
    assert "1 files of" in caplog.text
