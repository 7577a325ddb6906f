"""A file is there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshwright.specs import Cluster, ModelSpec, Plan, Workload
from meshwright.specs.whole_file import whole_file


def test_what_fails_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    target.write_text("old")
    with pytest.raises(KeyError), whole_file(target) as path:
        path.write_text("half of the ne")
        raise KeyError
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]
    with whole_file(target) as path:
        path.write_text("new")
        assert target.read_text() == "old" and path.suffix == ".json"
    assert target.read_text() == "new" and list(tmp_path.iterdir()) == [target]


def test_rights_are_the_mask_s_or_those_that_were(tmp_path: Path) -> None:
    target, mask = tmp_path / "plan.toml", os.umask(0o027)
    try:
        plan = Plan.of(ModelSpec.decoder(2, 64, 4), Cluster("2xcpu"), Workload(4, 64), dp=2)
        plan.save(target)
        assert target.stat().st_mode & 0o777 == 0o640
        target.chmod(0o664)
        plan.save(target)
    finally:
        os.umask(mask)
    assert target.stat().st_mode & 0o777 == 0o664


def test_links_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "behind").write_text("old")
    link = tmp_path / "link"
    link.symlink_to("behind")
    with whole_file(link) as path:
        path.write_text("new")
    assert link.is_symlink() and (tmp_path / "behind").read_text() == "new"
    with whole_file(os.devnull) as path:
        assert path == Path(os.devnull)
