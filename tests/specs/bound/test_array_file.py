"""Archives of arrays: what they declare is compared with what stands there before memory is taken for it."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from meshwright.specs.bound.array_file import arrays_of

SMALL = 32 << 20  # what refusing may take
WHOLE = {
    "a": np.arange(6.0).reshape(2, 3),
    "text": np.array("words"),
    "none": np.zeros((0, 4)),
    "one": np.array(3),
}


def packed(path: Path, body: bytes, name: str = "a.npy") -> Path:
    """An archive of one member, compressed."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, body)
    return path


def head_of(shape: str, descr: str = "<f8") -> bytes:
    """The beginning of an array's file that says what it likes."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_whole_archives_are_read(tmp_path: Path, save: object) -> None:
    save(tmp_path / "a.npz", **WHOLE)  # type: ignore[operator]
    found = arrays_of(tmp_path / "a.npz")
    assert found.keys() == WHOLE.keys()
    assert all(np.array_equal(found[name], WHOLE[name]) for name in WHOLE)


@pytest.mark.parametrize(
    "body",
    [
        head_of("(1000000000000,)"), head_of("(4, 1000000000)") + bytes(64), head_of("(-1,)") + bytes(8), head_of("(2,)"),
        head_of("(1,)") + bytes(16), head_of("(1,)", "|O") + bytes(8), head_of("(" * 5000), b"", b"words",
        b"\x93NUMPY\x09\x00" + bytes(90), bytes(1 << 29),
    ],
    ids=range(11),
)  # fmt: skip
def test_what_declares_more_than_there_is_is_refused_before_it_is_read(tmp_path: Path, body: bytes) -> None:
    path = packed(tmp_path / "bomb.npz", body)
    del body
    tracemalloc.start()
    with pytest.raises(ValueError, match="no archive of plain arrays"):
        arrays_of(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < SMALL


def test_many_arrays_are_bounded_together(tmp_path: Path) -> None:
    kept = io.BytesIO()
    np.lib.format.write_array(kept, np.zeros(1 << 21))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(20):
            archive.writestr(f"a{number}.npy", kept.getvalue())
    with pytest.raises(ValueError, match="bytes of its arrays: 335,546,880; allowed: up to 268,435,456"):
        arrays_of(tmp_path / "a.npz")


def test_other_files_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("words")
    np.save(tmp_path / "one.npy", np.zeros(3))
    for name in ("text.npz", "one.npy"):
        with pytest.raises(ValueError, match="no archive"):
            arrays_of(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        arrays_of(tmp_path / "nothing.npz")
