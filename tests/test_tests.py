"""What no test does: wait by sleeping, or compare times of a clock, which fails on a slow machine."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
HELPER = TESTS / "waiting.py"
CLOCKS = {"monotonic", "perf_counter", "time"}
SLEEPS = {"sleep", "wait_for_timeout"}
SOURCE_OF_CLOCKS = "time"


def name_called(call: ast.Call) -> str:
    """Return the last name of what is called: `sleep` of `time.sleep()`."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def is_clock(node: ast.AST) -> bool:
    """Return whether a node is a call such as `time.monotonic()`, or `monotonic()`."""
    if not isinstance(node, ast.Call) or name_called(node) not in CLOCKS:
        return False
    module = getattr(node.func, "value", None)
    return getattr(module, "id", None) == SOURCE_OF_CLOCKS if module else name_called(node) != SOURCE_OF_CLOCKS


def names_of(target: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def times_in(function: ast.AST) -> set[str]:
    """Return the names that hold times of a clock, or what is computed or collected from them."""
    names: set[str] = set()
    while True:
        before = len(names)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if node.value and has_time(node.value, names):
                    names |= set().union(*map(names_of, targets))
            elif isinstance(node, ast.Call) and name_called(node) in ("append", "extend"):
                if any(has_time(each, names) for each in node.args):
                    names |= names_of(node.func)
        if len(names) == before:
            return names


def has_time(node: ast.AST, names: set[str]) -> bool:
    return any(is_clock(each) or (isinstance(each, ast.Name) and each.id in names) for each in ast.walk(node))


def faults_of(source: str) -> Iterator[int]:
    """Yield the line of each sleep, and of each comparison of times."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_called(node) in SLEEPS:
            yield node.lineno
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = times_in(node)
            for each in ast.walk(node):
                if isinstance(each, ast.Compare) and has_time(each, names):
                    yield each.lineno


if __name__ == "__main__":
    for path in sorted(TESTS.rglob("*.py")):
        if path != HELPER:
            for n in sorted(set(faults_of(path.read_text()))):
                print(f"{path.relative_to(TESTS)}:{n}: {path.read_text().splitlines()[n - 1].strip()}")
