"""A vocabulary belongs to a program: who reads a program needs nothing else, and who runs it asks the owners of its words."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.api.subjects.loading import load
from meshwright.ir.judge.verify import verify
from meshwright.ir.program import Axis, Program, ProgramBuilder
from meshwright.ir.table import Effect, Kind, Microbatch, Pattern, ValueKind
from meshwright.ir.text import from_text, to_text
from meshwright.ir.vocabulary import Name, Vocabulary
from meshwright.specs.error import ExecutionError, PlanError, ProgramError
from meshwright.systems.architecture.shallow_again.mechanism import branch_step
from meshwright.systems.planning.redco.mechanism import three_functions
from tests.planned_case import Planned, assert_equal_to_one_process

SYSTEMS: Mapping[str, Callable[[], Program]] = {
    "redco": lambda: three_functions(2, 2),
    "shallow_again": lambda: branch_step(3, 2),
}
# Reads programs, in a process that has imported no system; then asks for their handlers.
READER = """
import json, sys
from pathlib import Path
from meshwright.ir.judge.verify import verify
from meshwright.ir.text import from_text

found = {}
for path in map(Path, sys.argv[1:]):
    program = from_text(path.read_text())
    verify(program)
    found[path.stem] = [program.digest(), list(program.vocabulary.owners)]
found["imported"] = [name for name in sys.modules if name.startswith("meshwright.systems.")]

from meshwright.catalog.handlers import load_handlers
from meshwright.executor.handlers.core_handler import CORE_HANDLERS
from meshwright.executor.rank.handler import handlers_of, joined

for path in map(Path, sys.argv[1:]):
    program = from_text(path.read_text())
    handlers_of(program, joined(CORE_HANDLERS, *map(load_handlers, program.vocabulary.owners)))
    found[path.stem].append(sorted({name.split(".")[3] for name in sys.modules if name.endswith(".ops")
                                    and name.startswith("meshwright.systems.")}))
print(json.dumps(found))
"""
HANDLERS = """
import torch

HANDLERS = {"MIX": lambda context, row, inputs: (FACTOR * inputs[0],)}
"""
AUDITED = """
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meshwright.ir import Columns, Duty, Effect, Kind, Name, Pattern, ValueKind, Vocabulary
from meshwright.lowering.order import with_effects

COUNT = ValueKind("audits", index="none", microbatch=False)
AUDIT = Effect(Kind.COMPUTE, "AUDIT", (Pattern("parameter", index="groups"),), (Pattern("audits", index="none"),))


@dataclass(frozen=True)
class Audit:
    def __call__(self, program):
        words = Vocabulary.of(COUNT, Name(AUDIT, "device"), owner=__file__)
        program, (effect,) = with_effects(program.with_vocabulary(words), AUDIT)
        lists = np.arange(program.num_lists)
        stage = program.columns.stage[program.offsets[1:] - 1]
        rows = Columns.of(program.num_lists, effect=effect, stage=stage, hop=stage)
        program = program.with_tables(duties=(*program.tables.duties, Duty("AUDIT", "device")))
        return program.inserted(program.offsets[1:], lists, rows)


def audit(context, row, inputs):
    with Path(__file__).with_name(f"audits-{context.rank}").open("a") as file:
        file.write(f"{context.iteration}\\n")
    return (context.iteration,)


HANDLERS = {"AUDIT": audit}
"""


def mixing(owner: str, carried: bool) -> Program:
    """Iterations of MIX, on a value that is carried, or made anew of a number that is."""
    mixed = Pattern("mixed", index="none")
    read = mixed if carried else Pattern("first", index="none")
    words = Vocabulary.of(
        ValueKind("first", index="none", microbatch=False, carried=True),
        ValueKind("mixed", index="none", microbatch=False, carried=carried),
        Name(Effect(Kind.COMPUTE, "MIX", (read,), (mixed,)), "device"),
        owner=owner,
    )
    builder = ProgramBuilder(
        (Axis("pp", 1),), vocabulary=words, paths=((),), microbatches=(Microbatch(1, 1.0),)
    )
    builder.add(0, words.names["MIX"].effect)
    return builder.build()


def owned(folder: Path) -> dict[bool, str]:
    """Two files with handlers of MIX: one doubles, the other takes ten times."""
    owners = {}
    for carried, factor in ((True, 2), (False, 10)):
        path = folder / f"times_{factor}.py"
        path.write_text(HANDLERS.replace("FACTOR", str(factor)))
        owners[carried] = str(path)
    return owners


def test_one_name_means_two_things_in_two_programs_of_one_process(tmp_path: Path) -> None:
    owners = owned(tmp_path)
    both = {carried: mixing(owner, carried) for carried, owner in owners.items()}
    for carried, program in both.items():
        verify(program)
        again = from_text(to_text(program))
        assert again.digest() == program.digest() and again.vocabulary.owners == (owners[carried],)
        (kind,) = (each for each in again.tables.value_kinds if each.name == "mixed")
        assert kind.carried is carried
    with pytest.raises(ProgramError, match="the name 'MIX' means two things in one program"):
        both[True].with_vocabulary(both[False].vocabulary)


def test_each_is_run_by_its_own_handlers_in_the_same_workers(tmp_path: Path, gloo_pool: object) -> None:
    torch = pytest.importorskip("torch")
    from meshwright.executor import run_program
    from meshwright.executor.rank.handler import ValueName

    first = {ValueName(kind): torch.ones(1) for kind in ("first", "mixed")}
    found = {}
    for carried, owner in owned(tmp_path).items():
        result = run_program(
            mixing(owner, carried), initial_values=[first], iterations=3, keep=("mixed",), pool=gloo_pool
        )
        found[carried] = float(result.values[0][ValueName("mixed")])
    assert found == {True: 8.0, False: 10.0}


def test_a_systems_program_is_read_where_nobody_has_imported_the_system(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    digests = {}
    for name, make in SYSTEMS.items():
        program = make()
        (tmp_path / f"{name}.program").write_text(to_text(program))
        digests[name] = program.digest()
    paths = [str(tmp_path / f"{name}.program") for name in SYSTEMS]
    run = subprocess.run(
        [sys.executable, "-c", READER, *paths], capture_output=True, text=True, check=False, timeout=120
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found.pop("imported") == []
    imported: list[str] = []
    for name, (digest, owners, loaded) in found.items():
        imported.append(name)
        assert digest == digests[name] and owners == [name]
        assert loaded == sorted(imported), "its own handlers are loaded, and nobody else's"


def test_a_file_that_a_programs_text_names_runs_only_where_the_user_says_so(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from meshwright.executor import run_program

    marked = tmp_path / "marked.py"
    marked.write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n" + HANDLERS)
    path = tmp_path / "mixing.program"
    path.write_text(to_text(mixing(str(marked), carried=True)))
    program = load(path)
    assert mw.check(program) is not None and not (tmp_path / "ran").exists()
    with pytest.raises(PlanError, match="--trust"):
        run_program(program)
    assert not (tmp_path / "ran").exists()


def test_a_users_pass_brings_names_and_their_handlers(tmp_path: Path, gloo_pool: object) -> None:
    path = tmp_path / "audited.py"
    path.write_text(AUDITED)
    one = Planned(choices={"pp": 2, "passes": (f"{path}:Audit",)})
    assert mw.span_s(mw.simulate(one.plan())) > 0
    assert_equal_to_one_process(one, one.run(gloo_pool, 2), 2)
    assert [(tmp_path / f"audits-{rank}").read_text().split() for rank in range(2)] == [["0", "1"]] * 2


@pytest.mark.parametrize("owner", ["nobody.here", "gpipe", "json"])
def test_an_owner_without_handlers_is_named(owner: str) -> None:
    pytest.importorskip("torch")
    from meshwright.catalog.handlers import load_handlers

    with pytest.raises(ExecutionError, match=f"nothing executes the vocabulary of '{owner}'"):
        load_handlers(owner)
