"""Every engine writes the same shards, on one machine and on a cluster, also if its processes are killed."""

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pipeline.config.settings import Settings
from tests.conftest import jpeg
from tests.engines.environment import ROOT, python_of
from tests.engines.spark_cluster import Cluster, spark_cluster
from tests.foreign_plans import EDITS, OUTSIDE, copy_images
from tests.kinds.containers.examples import write_zip
from tests.listening import addresses
from tests.published import planned
from tests.waiting import until

pytestmark = pytest.mark.long

FEW, MANY = 600, 20_000
"""Images of a source. A build of many is under way for long enough to be killed repeatedly."""
PLACES = {"source_uri": "source", "workspace": "submitted"}
KILLS = 20
PATIENCE_S = 600


class Builds:
    """A source of images, and builds of it in workspaces of their own."""

    def __init__(self, folder: Path, images: int) -> None:
        self.folder, self._images = folder, images
        for number in range(images):
            place = folder / "source" / f"class{number % 3}" / f"{number:05d}.jpg"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(jpeg(number, (320, 240)))
        # One process lists the source and the default engine writes the shards. Otherwise, the engine does both.
        self.expected = self.built("local", "expected", {"TENFOLD_RANGE_IMAGES": str(images)})

    def start(
        self, engine: str, name: str, environment: Mapping[str, str] | None = None, source: str = "source"
    ) -> "subprocess.Popen[str]":
        """Start a build in the workspace `name`."""
        values = {"source_uri": self.folder / source, "workspace": self.folder / name, "engine": engine}
        settings = [f"--set={key}={value}" for key, value in {**values, "num_shards": 60}.items()]
        with (self.folder / f"{name}.log").open("w") as log:
            return subprocess.Popen(
                [python_of(engine), "-m", "pipeline", "build", *settings, "--json"],
                env={**os.environ, "TENFOLD_RANGE_IMAGES": str(self._images // 6), **(environment or {})},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                start_new_session=True,
            )

    def built(
        self, engine: str, name: str, environment: Mapping[str, str] | None = None, source: str = "source"
    ) -> dict[str, str]:
        """Build the dataset and return its version, and a digest of each of its shards."""
        with self.start(engine, name, environment, source) as process:
            output = process.communicate(timeout=600)[0]
        assert process.returncode == 0, (self.folder / f"{name}.log").read_text()
        return self.digests(output)

    def digests(self, output: str) -> dict[str, str]:
        """Return the version of a dataset, and a digest of each of its shards, from the output of the build."""
        result = json.loads(output.splitlines()[-1])
        shards = Path(result["dataset"]).glob("*.tfrecord")
        return {
            "version": result["version"],
            **{shard.name: hashlib.sha256(shard.read_bytes()).hexdigest() for shard in shards},
        }


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    return Builds(tmp_path_factory.mktemp("engines"), FEW)


@pytest.fixture(scope="module")
def slow_builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    return Builds(tmp_path_factory.mktemp("slow"), MANY)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the base package, as docs/how-to/engines.md says to make it."""
    folder = tmp_path_factory.mktemp("wheel")
    # A copy, because the build leaves files in the folder.
    shutil.copytree(ROOT / "pipeline", folder / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    uv = shutil.which("uv") or ROOT / ".tools" / "bin" / "uv"
    subprocess.run([uv, "build", "--wheel", "--quiet", "--out-dir", folder / "dist", folder], check=True)
    [built] = (folder / "dist").glob("*.whl")
    return built.rename(folder / "tenfold.zip")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with spark_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.mark.core
@pytest.mark.parametrize("engine", ["spark", "beam"])
def test_an_engine_on_one_machine_writes_the_same_bytes(engine: str, builds: Builds):
    assert len(builds.expected) > 60
    assert builds.built(engine, engine) == builds.expected


@pytest.mark.parametrize("engine", ["spark", "beam"])
def test_an_engine_reads_containers(engine: str, builds: Builds):
    for folder in (builds.folder / "source").iterdir():
        images = {f"{folder.name}/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())}
        # The name of the dataset is that of the folder.
        packed = builds.folder / "packed" / "source"
        packed.mkdir(parents=True, exist_ok=True)
        write_zip(packed / f"{folder.name}.zip", images)
    in_parts = {"TENFOLD_RANGE_MEGABYTES": "1"}
    assert builds.built(engine, f"{engine}-containers", in_parts, "packed/source") == builds.expected
    assert len(list((builds.folder / f"{engine}-containers" / "raw" / "containers").glob("*-*.arrow"))) == 3


@pytest.mark.parametrize("engine", ["spark", "beam"])
def test_an_engine_on_one_machine_listens_on_loopback_only(engine: str, builds: Builds):
    seen: set[str] = set()
    with builds.start(engine, f"{engine}-listening") as process:

        def has_ended() -> bool:
            with suppress(psutil.NoSuchProcess):
                seen.update(addresses([build := psutil.Process(process.pid), *build.children(recursive=True)]))
            return process.poll() is not None

        until(has_ended, PATIENCE_S, 0.05)
    assert process.returncode == 0
    assert bool(seen) == (engine == "spark")
    assert {address.removeprefix("::ffff:") for address in seen} <= {"127.0.0.1"}


def test_a_cluster_gets_the_code_as_a_wheel_and_writes_the_same_bytes(builds: Builds, wheel: Path, cluster: Cluster):
    assert builds.built("spark", "cluster", on_cluster(cluster, wheel)) == builds.expected


def test_a_cluster_whose_processes_are_killed_writes_the_same_bytes(slow_builds: Builds, wheel: Path, cluster: Cluster):
    with slow_builds.start("spark", "killed", on_cluster(cluster, wheel)) as process:
        chance = random.Random(0)
        done_at_kills = [0]

        def kill_and_look() -> bool:
            """Kill a process if the build made progress since the last kill. Return whether the build has ended.

            Spark gives a task four attempts, and a job three. Without progress, kills would only use them up.
            """
            done = len([path for path in (slow_builds.folder / "killed").rglob("[!.]*") if path.is_file()])
            if len(done_at_kills) <= KILLS and done > done_at_kills[-1] and (found := cluster.executors()):
                with suppress(psutil.NoSuchProcess):
                    chance.choice(found).send_signal(signal.SIGKILL)
                    done_at_kills.append(done)
            return process.poll() is not None

        until(kill_and_look, PATIENCE_S, 0.1)
        output = process.communicate()[0]
    assert process.returncode == 0, (slow_builds.folder / "killed.log").read_text()
    assert len(done_at_kills) > KILLS // 2  # A faster machine ends earlier.
    assert slow_builds.digests(output) == slow_builds.expected


def test_a_build_with_beam_that_is_killed_continues(slow_builds: Builds):
    for number in range(3):
        with slow_builds.start("beam", "beam-killed") as process:
            written = slow_builds.folder / "beam-killed" / "datasets"
            enough = 10 * (number + 1)

            def has_written(process=process, written=written, enough=enough) -> bool:
                return process.poll() is not None or len(list(written.rglob("*.tfrecord"))) >= enough

            until(has_written, PATIENCE_S)
            os.killpg(process.pid, signal.SIGKILL)
    assert slow_builds.built("beam", "beam-killed") == slow_builds.expected


def test_executors_obey_the_allowlists_of_their_own_machine(builds: Builds, wheel: Path, cluster: Cluster):
    environment = on_cluster(cluster, wheel)
    environment["PYSPARK_SUBMIT_ARGS"] = (
        f"--conf spark.executorEnv.TENFOLD_ALLOWED_SOURCES=/elsewhere {environment['PYSPARK_SUBMIT_ARGS']}"
    )
    with builds.start("spark", "refused", environment) as process:
        process.communicate(timeout=600)
    assert process.returncode == 1
    log = (builds.folder / "refused.log").read_text()
    assert "is outside what TENFOLD_ALLOWED_SOURCES allows (/elsewhere)" in log
    assert not list((builds.folder / "refused").rglob("*.tfrecord"))


@pytest.mark.core
@pytest.mark.parametrize("edit", ["key of an image", "name of a shard"])
@pytest.mark.parametrize("engine", ["local", "spark", "beam"])
def test_a_plan_file_of_another_hand_is_refused(engine: str, edit: str, settings: Settings, tmp_path: Path):
    plan, [plan_file, *_] = planned(settings)
    outside = tmp_path / OUTSIDE
    copy_images(settings, outside)
    EDITS[edit](settings, Path(str(plan_file)), outside)
    before = sorted(outside.rglob("*"))
    allowed = {"SOURCES": settings.source_uri, "WORKSPACES": settings.workspace, "PUBLISH": settings.workspace}
    done = subprocess.run(
        [python_of(engine), "-m", "pipeline", "write", str(plan), f"--set=engine={engine}"],
        env={**os.environ, **{f"TENFOLD_ALLOWED_{name}": place for name, place in allowed.items()}},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=600,
    )
    assert done.returncode == 1, done.stderr
    assert re.search("is outside what TENFOLD_ALLOWED_SOURCES|never gives a shard the name", done.stderr)
    assert (sorted(outside.rglob("*")), list(tmp_path.rglob("*.tfrecord"))) == (before, [])


def test_spark_submit_runs_the_command_with_the_templates_of_the_pages(builds: Builds, wheel: Path, cluster: Cluster):
    """The driver needs templates that it cannot read from the archive of the executors."""
    python = python_of("spark")
    source, workspace = (f"--set={name}={builds.folder / value}" for name, value in PLACES.items())
    submitted = subprocess.run(
        [
            *(Path(python).with_name("spark-submit"), "--master", cluster.address, "--py-files", wheel),
            *(ROOT / "scripts" / "submit.py", "build", source, workspace, "--set=engine=spark", "--set=num_shards=60"),
            "--json",
        ],
        env={**os.environ, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
        cwd=builds.folder,
        timeout=600,
    )
    assert submitted.returncode == 0, submitted.stderr
    assert builds.digests(submitted.stdout) == builds.expected


def on_cluster(cluster: Cluster, wheel: Path) -> dict[str, str]:
    """Return the environment of a build whose Spark tasks run on a cluster, with the code of the wheel."""
    return {
        "TENFOLD_SPARK_MASTER": cluster.address,
        "PYSPARK_SUBMIT_ARGS": f"--py-files {wheel} pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
