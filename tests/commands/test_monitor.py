"""The command `python -m pipeline.monitor`."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pipeline import monitor
from pipeline.commands import monitor as command
from pipeline.monitor import read
from pipeline.monitor.sampler import Sampler, Source
from tests.monitor.jobs import skipped_if_disturbed
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
MONITOR = [sys.executable, "-W", "error", "-m", "pipeline.monitor"]


def started(*arguments: str) -> subprocess.Popen[str]:
    """Start the monitor in a separate session. Otherwise it would share the terminal of the tests."""
    pipe = subprocess.PIPE
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*MONITOR, *arguments], stdout=pipe, stderr=pipe, text=True, start_new_session=True, env=environment
    )


def run(*arguments: str) -> tuple[int, str, str]:
    """Run the monitor. Return exit code, stdout and stderr."""
    with started(*arguments) as process:
        out, err = process.communicate()
        return process.returncode, out, err


def sampled(folder: Path, *command: str, hz: float = 20) -> tuple[int, dict[str, Any], str]:
    """Sample a command. Return exit code, the result of --json, and stderr."""
    code, out, err = run("--to", str(folder), "--hz", str(hz), "--json", "--", *command)
    return code, json.loads(out.splitlines()[-1]), err


@pytest.mark.long
def test_a_command_is_sampled_with_its_children(tmp_path: Path) -> None:
    """The command is a shell that only waits. Its child works."""
    folder = tmp_path / "new" / "samples"
    burn = "import time; begin = time.time()\nwhile time.time() < begin + 1: pass"
    code, result, err = sampled(folder, "/bin/sh", "-c", f"{sys.executable} -c '{burn}' ; exit 7")
    assert (code, result["exit_code"]) == (7, 7), err
    samples = read(folder / "record", "samples")
    assert len(samples) == result["ticks"] >= 2  # On a busy machine, ticks come late.
    assert samples["proc/rss_bytes"].max() < 1e7  # memory of the shell, not of the monitor
    assert {"monitor/sample_ms", "sys/cpu_pct", "proc/children_cpu_pct"} <= set(samples.columns)
    assert (result["record"], result["figure"]) == (str(folder / "record"), str(folder / "samples.html"))
    assert result["startup_s"] > 0
    assert result["figure_s"] > 0
    assert result["dropped"] == samples["monitor/dropped"].max()
    assert result["latest_ms"] == pytest.approx(samples["monitor/tick_late_ms"].max(), rel=1e-5)
    assert "Utilization over time" in Path(result["figure"]).read_text()
    assert "left out: FileNotFoundError" not in err


@pytest.mark.alone
def test_a_waiting_command_has_no_limit_on_this_machine(tmp_path: Path) -> None:
    code, result, err = sampled(tmp_path, "sleep", "2.5")
    assert code == 0, err
    assert result["limits"] == []
    assert result["verdict"].startswith("Nothing on this machine limits this program"), result["verdict"]
    code, _, err = run("--to", str(tmp_path / "words"), "--", "sleep", "2.5")
    assert "Nothing on this machine limits this program" in err


@pytest.mark.alone
def test_a_busy_thread_of_a_child_is_the_limit(tmp_path: Path) -> None:
    """This also holds next to other programs, because waiting for a core counts as busy."""
    burn = "import time; begin = time.time()\nwhile time.time() < begin + 4: pass"
    _, result, _ = sampled(tmp_path, "/bin/sh", "-c", f"{sys.executable} -c '{burn}' ; exit 0")
    own = {"one core", "serial stage", "decoding"}  # on a machine with one core, all mean the same
    assert own & set(result["limits"]), result["verdict"]


READER = """
import mmap, os, sys, time
file, block = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 1 << 20)
end = time.monotonic() + 8
while time.monotonic() < end:
    os.preadv(file, [block], 0)
"""


@pytest.mark.long
@pytest.mark.alone
@skipped_if_disturbed()
def test_a_disk_from_which_a_child_reads_is_the_limit(tmp_path: Path) -> None:
    """The child lives as long as the shell that started it, and until it is found. It reads without the page cache."""
    (tmp_path / "data").write_bytes(os.urandom(1 << 20))
    reader = ("/bin/sh", "-c", '"$0" -c "$1" "$2"; exit 0', sys.executable, READER, str(tmp_path / "data"))
    _, result, _ = sampled(tmp_path / "samples", *reader)
    assert "reading" in result["limits"], result["verdict"]


def test_the_machine_is_sampled_for_a_given_time(tmp_path: Path) -> None:
    code, out, err = run("--seconds", "1", "--hz", "20", "--to", str(tmp_path))
    assert code == 0, err
    first, second, record, figure = out.splitlines()
    ticks = len(read(tmp_path / "record", "samples"))
    took = re.match(rf"{ticks} samples in (\d+\.\d) s, ", first)
    assert took
    assert float(took[1]) >= 1.0
    assert "% of one core; start-up " in second
    assert (record, figure) == (f"record: {tmp_path / 'record'}", f"page: {tmp_path / 'samples.html'}")


def test_the_rate_is_passed_to_the_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record cannot show the rate, because samples of a busy machine are late."""
    rates: list[float] = []

    def sampler(sources: Mapping[str, Source], report: Any, hz: float, **options: Any) -> Sampler:
        rates.append(hz)
        return Sampler(sources, report, hz, **options)

    monkeypatch.setattr(monitor, "Sampler", sampler)
    monkeypatch.setattr(command, "log_to_stderr", lambda: None)  # it would affect other tests
    assert command.main(["--seconds", "0.01", "--hz", "12.5", "--to", str(tmp_path)]) == 0
    assert rates == [12.5]


def test_a_short_command_without_a_sample_prints_only_its_own_output(tmp_path: Path) -> None:
    code, out, err = run("--to", str(tmp_path), "--hz", "0.2", "--", "/bin/sh", "-c", "echo mine")
    assert (code, out) == (0, "mine\n")
    assert "the command ended before the first sample" in err
    assert "No samples were recorded" in (tmp_path / "samples.html").read_text()


def test_a_signal_is_passed_to_the_command_and_the_record_is_complete(tmp_path: Path) -> None:
    """The signal is not SIGINT, because a shell in the background and its children ignore that."""
    trapped = "trap 'echo stopping; exit 5' TERM; echo ready; while :; do sleep 0.01; done"
    with started("--to", str(tmp_path), "--hz", "20", "--", "/bin/sh", "-c", trapped) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        until(lambda: len(read(tmp_path / "record", "samples")) > 2)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    assert (process.returncode, out) == (5, "stopping\n"), err
    assert "page: " in err
    assert read(tmp_path / "record", "samples")["monitor/dropped"].notna().all()
    assert [path.suffix for path in (tmp_path / "record").iterdir()] == [".parquet"]  # closed


def code_of(expression: str) -> int:
    """Evaluate an expression with parts of the command, in a process that signals may end."""
    script = "import os, signal; from pipeline.commands import monitor as m\n"
    script += f"with m._blocked_signals():\n    print({expression})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    return int(done.stdout)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 3", 3),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),  # signals are not blocked in the command
        ("trap 'exit 5' TERM; kill -TERM $PPID; while :; do sleep 0.01; done", 5),
        ("(sleep 0.1; kill -CONT $$) & kill -STOP $$; exit 4", 4),  # a stopped command has not ended
    ],
)
def test_the_exit_code_is_that_of_the_command(command: str, code: int) -> None:
    assert code_of(f"m._wait_for(pid := m._start(['/bin/sh', '-c', {command!r}])) + m._exit_code(pid)") == code


def test_a_signal_stops_sampling_the_machine() -> None:
    assert code_of("(os.kill(os.getpid(), signal.SIGTERM), m._pause(1000))[1]") == 143


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["--", "no-such-command-here"],
            127,
            "error: the command 'no-such-command-here' was not found, or is not executable",
        ),
        (["--", __file__], 127, f"error: the command {__file__!r} was not found, or is not executable"),
        ([], 2, "give either --seconds or a command after --"),
        (["--seconds", "3", "--", "true"], 2, "give either --seconds or a command after --"),
        (["--seconds", "0"], 2, "--seconds must be a number over 0, got 0.0"),
        (["--seconds", "nan"], 2, "--seconds must be a number over 0, got nan"),
        (["--hz", "21", "--seconds", "3"], 2, "--hz must be between 0.2 and 20, got 21.0"),
        (["true"], 2, "unrecognized arguments: true"),
    ],
)
def test_invalid_arguments_are_reported_and_nothing_is_written(
    tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    exit_code, _, err = run("--to", str(tmp_path / "samples"), *arguments)
    assert (exit_code, list(tmp_path.iterdir())) == (code, []), err
    assert message in err
    assert "Traceback" not in err


def test_a_folder_with_a_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "record").mkdir()
    code, _, err = run("--to", str(tmp_path), "--seconds", "1")
    assert code == 2
    assert f"--to: {tmp_path} holds a record already" in err


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, _, err = run("--to", str(tmp_path / "file" / "samples"), "--seconds", "1")
    assert code == 2
    assert "Not a directory" in err
    assert "Traceback" not in err


def test_all_samplers_are_imported_before_the_command_starts() -> None:
    code = "import sys, pipeline.commands.monitor; print(*sorted(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    samplers = {f"pipeline.monitor.{name}" for name in ("gpu", "machine", "process_tree", "cgroup", "record")}
    assert samplers <= set(output.split())


def test_sampling_imports_no_heavy_library() -> None:
    heavy = ["numpy", "pandas", "bokeh", "comet_ml", "tensorflow", "airflow", "PIL"]
    code = f"import sys, pipeline.commands.monitor; print([m for m in {heavy} if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert output.strip() == "[]"
