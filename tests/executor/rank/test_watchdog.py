"""How long nobody may move."""

from __future__ import annotations

from pathlib import Path

from meshwright.executor.rank.watchdog import PREPARATION_S, Position, SharedPositions, Watchdog


def test_until_all_have_begun_they_may_take_longer(tmp_path: Path) -> None:
    shared = SharedPositions(tmp_path / "positions", 2, is_new=True)
    short, long = Watchdog(shared, 1.5), Watchdog(shared, 2 * PREPARATION_S)
    assert short.limit_s == PREPARATION_S and long.limit_s == 2 * PREPARATION_S
    Position(shared, 0).set(0, 0)
    assert short.limit_s == PREPARATION_S
    Position(shared, 1).set(0, 0)
    assert short.limit_s == 1.5 and long.limit_s == 2 * PREPARATION_S
    shared.close()
