"""Measure the structure of a package of Python: its rooms, the arrows between them, and the shape of its functions.

    python -m scripts.structure [FOLDER ...]

FOLDER is the folder of a package, by default `pipeline`. Tests are left out. The words mean:

room        a folder directly below the package with all that is in it, or a file directly below it;
            a `__main__.py` is a command, and counts as a room of its own
arrow       one room imports from another; however many imports there are, a pair of rooms is one arrow
circle      rooms that reach each other by arrows
upward      arrows that do not go to a lower layer of the import-linter contract in pyproject.toml; - without a contract
fan-out     modules of the same package that a module imports, on average; `most imports` is the largest number
"""

import argparse
import ast
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import resolve_name
from pathlib import Path

from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

Graph = Mapping[str, set[str]]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    """A file of a package: its dotted name, its lines, and its syntax tree."""

    name: str
    is_package: bool
    lines: Sequence[str]
    tree: ast.Module


def main() -> None:
    """Print one row for each package."""
    parser = argparse.ArgumentParser(prog="python -m scripts.structure", description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, default=[Path("pipeline")], metavar="FOLDER")
    rows = [row_of(folder) for folder in parser.parse_args().folders]
    names = list(rows[0])
    print("| " + " | ".join(names) + " |")
    print("|---" * len(names) + "|")
    for row in rows:
        print("| " + " | ".join(row.values()) + " |")


def row_of(folder: Path) -> dict[str, str]:
    """Return the figures of a package, by the heading of their column."""
    modules = load(folder)
    imports = imports_of(modules)
    arrows = arrows_of(imports)
    lengths = sorted(function_lengths(modules))
    return {
        "package": folder.name,
        "files": str(len(modules)),
        "lines": str(sum(len(module.lines) for module in modules.values())),
        "at the root": str(
            sum("." not in name or (not module.is_package and name.count(".") == 1) for name, module in modules.items())
        ),
        "rooms": str(len({room_of(name) for name in modules})),
        "arrows": str(sum(len(targets) for targets in arrows.values())),
        "circles": str(sum(len(each) > 1 for each in circles(arrows))),
        "upward": upward(arrows, folder),
        "functions": str(len(lengths)),
        "median lines": f"{statistics.median(lengths):.0f}",
        "longest": str(lengths[-1]),
        "fan-out": f"{statistics.mean(len(targets) for targets in imports.values()):.1f}",
        "most imports": str(max(len(targets) for targets in imports.values())),
    }


def load(folder: Path) -> dict[str, Module]:
    """Return the modules of a package by their dotted names, without its tests."""
    modules = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        if any(part in ("tests", "testing") or part.startswith("test_") or part.endswith("_test") for part in parts):
            continue
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        text = path.read_text("utf-8")
        modules[name] = Module(name, is_package, text.splitlines(), ast.parse(text))
    return modules


def imports_of(modules: Mapping[str, Module]) -> Graph:
    """Return for each module the modules of the same package that it imports, at its top or within a function."""
    return {name: set(_imports(module, modules)) - {name} for name, module in modules.items()}


def _imports(module: Module, modules: Mapping[str, Module]) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            # `resolve_name` needs the package that contains the module, or the package that the module is.
            package = module.name if module.is_package else module.name.rpartition(".")[0]
            base = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                target = f"{base}.{alias.name}"
                if target in modules:
                    yield target
                elif base in modules:
                    yield base


def room_of(name: str) -> str:
    """Return the room of a module."""
    return name if name.endswith(".__main__") else _folder_of(name)


def arrows_of(imports: Graph) -> Graph:
    """Return for each room the rooms that it imports from. The package itself, its `__init__`, is no target."""
    arrows: dict[str, set[str]] = defaultdict(set)
    for name, targets in imports.items():
        arrows[room_of(name)] |= {room_of(target) for target in targets if "." in target} - {room_of(name)}
    return arrows


def circles(graph: Graph) -> list[set[str]]:
    """Return groups of rooms that reach each other; a room that does not reach itself is a group of its own."""
    names = list(graph)
    matrix = csr_array([[target in graph[name] for target in names] for name in names])
    count, group_of = connected_components(matrix, connection="strong")
    return [{name for name, group in zip(names, group_of, strict=True) if group == each} for each in range(count)]


def upward(arrows: Graph, folder: Path) -> str:
    """Return the number of arrows that do not go to a lower layer; "-" if no contract declares the layers."""
    file = folder.parent / "pyproject.toml"
    linter = tomllib.loads(file.read_text("utf-8")).get("tool", {}).get("importlinter", {}) if file.exists() else {}
    contracts = [each for each in linter.get("contracts", []) if each.get("containers") == [folder.name]]
    if not contracts:
        return "-"
    layers = contracts[0]["layers"]
    depths = {f"{folder.name}.{room}": depth for depth, layer in enumerate(layers) for room in layer.split(" | ")}
    # The command of a room is in the layer of that room.
    pairs = [(_folder_of(room), _folder_of(target)) for room, targets in arrows.items() for target in targets]
    declared = [(room, target) for room, target in pairs if {room, target} <= depths.keys() and room != target]
    return str(sum(depths[room] >= depths[target] for room, target in declared))


def _folder_of(name: str) -> str:
    return ".".join(name.split(".")[:2])


def function_lengths(modules: Mapping[str, Module]) -> Iterator[int]:
    """Yield the lines of each function and method, from `def` to the end of its body, with its docstring."""
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, FUNCTIONS):
                yield (node.end_lineno or node.lineno) - node.lineno + 1


if __name__ == "__main__":
    main()
