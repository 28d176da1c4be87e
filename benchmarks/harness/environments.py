"""Environments of the packages that the benchmarks compare with this project, each made when it is first needed.

    python -m benchmarks.harness.environments [NAME ...]

Each package of `benchmarks/environments` has an environment of its own in `.bench/`, because their requirements
contradict each other. An environment that takes more of the disk than its limit is removed.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.machine import HOME, say
from benchmarks.harness.rounds import ROOT


@dataclass(frozen=True)
class Environment:
    """An environment of one or several packages."""

    name: str
    """Of its folder in `.bench/`, and of its files in `benchmarks/environments`."""
    max_gb: float
    packages: tuple[str, ...]
    """Packages whose versions belong in a report."""

    @property
    def python(self) -> Path:
        """Return the path of its interpreter."""
        return HOME / self.name / "bin" / "python"


ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment(
            "peers",
            9.0,
            (
                "tensorflow-datasets",
                "torch",
                "torchvision",
                "webdataset",
                "mosaicml-streaming",
                "grain",
                "array-record",
                "tfrecord",
                "tensorflow",
                "pillow",
                "simplejpeg",
            ),
        ),
        Environment("storage", 0.5, ("google-cloud-storage", "gcsfs")),
        Environment("models", 0.6, ("scikit-learn", "pandas", "vega-datasets")),
        Environment("dali", 2.0, ("nvidia-dali-cuda120",)),
        Environment("spdl", 0.5, ("spdl-io", "spdl-core")),
        Environment("litdata", 8.0, ("litdata", "torch", "torchvision")),
        Environment("ray", 3.0, ("ray", "pyarrow", "tensorflow")),
        Environment("ffcv", 8.0, ("ffcv", "torch")),
        Environment("img2dataset", 1.5, ("img2dataset",)),
    )
}


def missing_because(name: str, make: Callable[[str], str] | None = None) -> str:
    """Make an environment if it does not exist, and return why it cannot be used, or nothing."""
    environment = ENVIRONMENTS[name]
    if (HOME / name / "installed").exists():
        return ""
    say(f"creating .bench/{name}, at most {environment.max_gb:g} GB")
    error = (make or _make)(name)
    if error:
        return f"does not install here: {error}"
    size_gb = disk_bytes(HOME / name) / 1e9
    if size_gb > environment.max_gb:
        subprocess.run(["rm", "-rf", HOME / name], check=True)
        return f"takes {size_gb:.1f} GB, more than its limit of {environment.max_gb:g} GB"
    return ""


def _make(name: str) -> str:
    """Make an environment, and return the last line of what went wrong, or nothing."""
    command = ["make", "--no-print-directory", f".bench/{name}/installed"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode == 0:
        return ""
    (HOME / "logs").mkdir(parents=True, exist_ok=True)
    (HOME / "logs" / f"{name}-environment.log").write_text(done.stderr)
    lines = [line.strip() for line in done.stderr.splitlines() if "rror" in line and not line.startswith("make")]
    return lines[-1] if lines else f"see .bench/logs/{name}-environment.log"


def disk_bytes(folder: Path) -> int:
    """Return how many bytes the files of a folder take."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def main() -> None:
    """Make the environments of the command line, or all of them, one after another."""
    reasons = {name: missing_because(name) for name in sys.argv[1:] or ENVIRONMENTS}
    for name, reason in reasons.items():
        print(f"{name}: {reason or ENVIRONMENTS[name].python}")
    raise SystemExit(any(reasons.values()))


if __name__ == "__main__":
    main()
