"""The processes of this machine: how many there are, how many threads they have, and what follows a kill."""

import re
from pathlib import Path

import pytest

from pipeline.engines import Engine, local, opened_engine
from pipeline.engines.local import processes_for
from pipeline.engines.task import Task
from pipeline.errors import SourceError
from tests.engines import cases
from tests.engines.calls import HERE, PLACES, Call
from tests.engines.cases import COUNT
from tests.simulated_cores import SimulatedCores

PROCESSES = {
    # cores, free bytes, calls -> processes of 100 bytes
    "a core each": (2, 10_000, 1000, 2),
    "few calls": (256, 10_000, 3, 3),
    "little memory": (256, 1_699, 1000, 16),
    "no memory": (256, 99, 1000, 1),
}


@pytest.fixture
def simulate_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def simulate(cores: int) -> None:
        for name, value in SimulatedCores(tmp_path).environment(cores).items():
            monkeypatch.setenv(name, value)

    return simulate


@pytest.mark.parametrize("name", PROCESSES)
def test_as_many_processes_as_cores_and_memory_allow(name: str, monkeypatch: pytest.MonkeyPatch):
    cores, free, calls, processes = PROCESSES[name]
    monkeypatch.setattr(local, "usable_cores", lambda: cores)
    monkeypatch.setattr(local, "available_memory", lambda: free)
    assert processes_for(calls, 100) == processes


def test_a_process_has_few_threads_on_any_number_of_cores(
    simulate_cores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    simulate_cores(256)
    threads = Call(HERE, "count_threads", tmp_path, places=2).written.values()
    assert len(threads) == 2
    # The process itself, and threads of Arrow: one each that computes, reads, writes and frees memory.
    assert [each for each in threads if int(each) > 5] == []


def test_an_opened_engine_starts_its_processes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also for a task that needs less memory. An error ends them, and the next call starts new ones."""
    monkeypatch.setattr(local, "usable_cores", lambda: 1)
    places = [str(tmp_path / str(number)) for number in range(3)]

    def process_of(engine: Engine, place: str, memory: int) -> str:
        engine(Task(cases.tell_process, {}, memory), [place], lambda *_: None)
        return Path(place).read_text()

    with opened_engine("local") as engine:
        assert process_of(engine, places[0], 600_000_000) == process_of(engine, places[1], 200_000_000)
        with pytest.raises(SourceError):
            engine(Task(cases.refuse_the_first, {}), [str(tmp_path / "00000.txt")], lambda *_: None)
        assert process_of(engine, places[2], 200_000_000) != Path(places[0]).read_text()


def test_the_first_error_ends_the_other_calls_at_once(simulate_cores, tmp_path: Path):
    simulate_cores(4)
    call = Call(HERE, "refuse_beside_a_long_call", tmp_path, places=2)
    assert (call.kind, call.message) == ("SourceError", "00000.txt changed after it was listed: run again")
    assert call.written == {}
    assert "leaked" not in call.stderr


def test_after_a_kill_half_as_many_processes_go_on(simulate_cores, tmp_path: Path):
    simulate_cores(4)
    call = Call(HERE, "be_killed_first", tmp_path)
    assert call.is_complete()
    [(now, before)] = re.findall(r"was killed, .* going on with (\d+) process(?:es)? instead of (\d+)", call.stderr)
    assert int(now) == int(before) // 2


def test_a_task_that_kills_a_single_process_is_an_error_that_names_it(simulate_cores, tmp_path: Path):
    simulate_cores(4)
    call = Call(HERE, "be_killed_always", tmp_path)
    assert call.kind == "EngineError"
    assert re.match(
        r"worker processes for .*/00000\.txt, one at a time, were killed 3 times in a row\. Perhaps memory ran out: .* "
        r"Then run the same command to continue",
        call.message,
    )
    # A second message comes only if more than one call is left then.
    assert "going on with 2 processes instead of 4" in call.stderr
    assert call.count < COUNT * PLACES
