"""What no test does: wait by sleeping, or compare times of a clock. Both fail on a busy machine."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
EXEMPT = {"waiting.py", "test_tests.py"}
"""The first has `until`, which waits for what is observable, and `simulated_work`, a pause that stands for work. The
second has examples of faults."""
SLEEPS = {"sleep", "time.sleep", "asyncio.sleep", "Event().wait", "threading.Event().wait"}
SLEEP_OF_A_PAGE = ".wait_for_timeout"
YIELD = "asyncio.sleep(0)"
"""It lets other tasks run, and takes no time."""
CLOCKS = {"time.time", "datetime.now"} | {
    f"{module}{clock}"
    for clock in ("monotonic", "perf_counter", "process_time", "thread_time", "time_ns")
    for module in ("", "time.")
}
SUSPECT = re.compile(r"sleep|wait_for_timeout|\.wait\(|monotonic|perf_counter|time\.time|_time\(|time_ns|datetime\.now")
"""Files without these words need not be parsed, which takes a second or two."""
SIMULATES_WORK = {
    "engines/cases.py",
    "monitor/jobs.py",
    "monitor/test_comet.py",
    "monitor/test_reporter.py",
    "plugins/test_silent_bucket.py",
    "test_crashes.py",
    "training/test_callbacks.py",
}
"""Files with pauses that stand for work. In other files, such a pause would be a wait that is too short on a slow
machine."""
ASSIGNMENTS = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr


def faults_of(source: str) -> Iterator[str]:
    """Yield the expressions that sleep, and the comparisons of times."""
    for node in ast.walk(tree := ast.parse(source)):
        if isinstance(node, ast.Call) and _sleeps(node):
            yield ast.unparse(node)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            times = _times_in(function)
            waits = _compared([node for node in ast.walk(function) if isinstance(node, ast.Call) and _waits(node)])
            for node in _compared([function]):
                if node not in waits and _has_time(node, times):
                    yield ast.unparse(node)


def _sleeps(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    return (name in SLEEPS or name.endswith(SLEEP_OF_A_PAGE)) and ast.unparse(call) != YIELD


def _waits(call: ast.Call) -> bool:
    """Return whether a call waits, as for a time of the clock, and does not measure."""
    return ast.unparse(call.func) == "until"


def _compared(nodes: Iterable[ast.AST]) -> list[ast.Compare]:
    return [each for node in nodes for each in ast.walk(node) if isinstance(each, ast.Compare)]


def _times_in(function: ast.AST) -> set[str]:
    """Return the names of times of a clock, and of what is computed or collected from them."""
    times: set[str] = set()
    while True:
        before = len(times)
        for node in ast.walk(function):
            if isinstance(node, ASSIGNMENTS) and node.value and _has_time(node.value, times):
                times |= _names_in(*(node.targets if isinstance(node, ast.Assign) else [node.target]))
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".append"):
                times |= _names_in(node.func) if any(_has_time(each, times) for each in node.args) else set()
        if len(times) == before:
            return times


def _has_time(node: ast.AST, times: set[str]) -> bool:
    calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
    return bool(_names_in(node) & times) or any(ast.unparse(call.func) in CLOCKS for call in calls)


def _names_in(*nodes: ast.AST) -> set[str]:
    return {each.id for node in nodes for each in ast.walk(node) if isinstance(each, ast.Name)}


def test_no_test_sleeps_or_compares_times():
    files = [path for path in TESTS.rglob("*.py") if path.name not in EXEMPT]
    assert len(files) > 100
    sources = {str(path.relative_to(TESTS)): path.read_text("utf-8") for path in files}
    found = {path: [*faults_of(source)] for path, source in sources.items() if SUSPECT.search(source)}
    assert {path: faults for path, faults in found.items() if faults} == {}
    assert {path for path, source in sources.items() if "simulated_work(" in source} == SIMULATES_WORK


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("time.sleep(1)", 1),
        ("sleep(seconds)", 1),
        ("threading.Event().wait(0.2)", 1),
        ("page.wait_for_timeout(100)", 1),
        ("await asyncio.sleep(0.1)", 1),
        ("await asyncio.sleep(0)", 0),
        ("simulated_work(0.1)", 0),
        ("event.wait()", 0),
        ("begin = time.monotonic()\n    assert time.monotonic() - begin < 2", 1),
        ("begin = monotonic()\n    took = monotonic() - begin\n    assert took < 2", 1),
        ("end = time.time() + 5\n    while time.time() < end: look()", 1),
        ("begin = datetime.now(UTC)\n    assert datetime.now(UTC) - begin < limit", 1),
        ("begin = time.process_time()\n    assert time.process_time() - begin < 0.5", 1),
        ("until(lambda: time.time_ns() > newest)", 0),
        ("took.append(time.perf_counter() - begin)\n    assert max(took) < 2", 1),
        ("sink.write(Row(time.time(), 3))\n    assert read(folder)['time'] == [3]", 0),
    ],
)
def test_each_sleep_and_each_compared_time_is_a_fault(line: str, count: int):
    assert len([*faults_of(f"async def test_something():\n    {line}\n")]) == count
