"""Messages and exit codes of the error tree."""

import pytest

from meshwright.specs import error


def test_message_has_three_parts_in_order():
    text = str(error.SpecError("3 stages given", allowed="1 to 2", next="merge two stages"))
    assert text == "3 stages given; allowed: 1 to 2; merge two stages"


def test_a_block_of_text_keeps_its_lines():
    text = str(error.ScheduleError("grid\n  0F0 <-- here", next="move it"))
    assert text.splitlines() == ["grid", "  0F0 <-- here", "move it"]


@pytest.mark.parametrize(
    ("name", "near"),
    [("1f1B", "1f1b"), ("gpip", "gpipe"), ("interleaved", "interleaved_1f1b"), ("zbh1", "zb_h1")],
)
def test_unknown_name_lists_near_matches(name, near):
    found = error.UnknownNameError("schedule", name, ["gpipe", "1f1b", "interleaved_1f1b", "zb_h1"])
    assert near in found.near and f"did you mean {found.near[0]}" in str(found)


def test_unknown_name_far_from_all_lists_what_there_is():
    found = error.UnknownNameError("schedule", "qqq", [f"name{i}" for i in range(20)])
    assert found.near == () and "name0" in str(found) and "8 more" in str(found)


def test_out_of_memory_names_the_largest_holders_first():
    found = error.OutOfMemoryError("device 0 needs 9 GB of 8 GB", holders=[("a", 10**9), ("b", 8 * 10**9)])
    assert str(found).index("8.000 GB  b") < str(found).index("1.000 GB  a")
    assert [what for what, _ in found.holders] == ["b", "a"]


def test_tree_and_exit_codes():
    assert issubclass(error.DeadlockError, error.ProgramError)
    assert issubclass(error.ScheduleError, error.ProgramError)
    assert issubclass(error.CountError, error.ScheduleError) and error.CountError.exit_code == 2
    codes = {cls.__name__: cls.exit_code for cls in (error.SpecError, error.PlanError, error.DeadlockError)}
    assert codes == {"SpecError": 2, "PlanError": 2, "DeadlockError": 3}
    assert error.ExecutionError.exit_code == 1 and error.OutOfMemoryError.exit_code == 3
