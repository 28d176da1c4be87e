"""`python -m pipeline.monitor`: sample this machine while a command runs, or for some seconds."""

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from pipeline.monitor import Row, gpu, machine, open_monitor, process_tree  # noqa: F401 - before the command
from pipeline.monitor.record import chunks
from pipeline.monitor.sampler import Source, require_rate
from pipeline.monitor.threads import Threads
from pipeline.system.progress import log_to_stderr

EXIT_BAD, EXIT_NOT_RUN, EXIT_NOT_FOUND, EXIT_SIGNAL = 2, 126, 127, 128
"""Exit codes as a shell gives them. The number of a signal is added to the last one."""
STOPPING = (signal.SIGINT, signal.SIGTERM)
USAGE = """python -m pipeline.monitor [--hz HZ] [--to FOLDER] [--json] --seconds SECONDS
       python -m pipeline.monitor [--hz HZ] [--to FOLDER] [--json] -- COMMAND [ARGUMENT ...]"""


class NotStarted(Exception):
    """The command cannot be run. `code` is the exit code that a shell would give."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Tally:
    """A sink that counts the ticks, and how late the latest tick was."""

    ticks: int = 0
    dropped: int = 0
    latest_ms: float = 0.0

    def write(self, row: Row) -> None:
        """Count a sample."""
        self.ticks += 1
        self.dropped = int(row.values["monitor/dropped"])
        self.latest_ms = max(self.latest_ms, row.values["monitor/tick_late_ms"])


def main(arguments: Sequence[str]) -> int:
    """Sample, write the record and the figure, print the result, and return the exit code, that of the command."""
    # The command is after the first "--".
    end = arguments.index("--") if "--" in arguments else len(arguments)
    command = arguments[end + 1 :]
    options = _parse(arguments[:end], command)
    log_to_stderr()
    try:
        result = _sample(options, command)
        result |= _judge(Path(result["record"])) if command else {}
        _draw(result)
    except NotStarted as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return error.code
    except OSError as error:  # A full disk, for instance, or a folder that cannot be made.
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_BAD
    except KeyboardInterrupt:
        print("stopped before the figure was drawn", file=sys.stderr)  # noqa: T201
        return EXIT_SIGNAL + signal.SIGINT
    _print(result, command, as_json=options.json)
    return int(result["exit_code"])


def _parse(own: Sequence[str], command: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m pipeline.monitor", USAGE, __doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, help="seconds to sample the machine, without a command")
    parser.add_argument("--hz", type=float, default=5.0, help="samples per second, from 0.2 to 20 (default: 5)")
    parser.add_argument(
        "--to", type=Path, metavar="FOLDER", help="folder for the record and the figure (default: monitor-DATE-TIME)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    options = parser.parse_args(own)
    if bool(command) == (options.seconds is not None):
        parser.error("give either --seconds or a command after --")
    if options.seconds is not None and not 0 < options.seconds < float("inf"):
        parser.error(f"--seconds must be a number over 0, got {options.seconds}")
    try:
        require_rate(options.hz)
    except ValueError as error:
        parser.error(f"--{error}")
    options.to = options.to or Path(f"monitor-{datetime.now():%Y%m%d-%H%M%S}")
    if (options.to / "record").exists():
        parser.error(f"--to: {options.to} holds a record already; name another folder")
    return options


def _sample(options: argparse.Namespace, command: Sequence[str]) -> dict[str, Any]:
    """Sample until the command ends or the time is over. Raises NotStarted, and OSError if writing fails."""
    if command and shutil.which(command[0]) is None:
        raise NotStarted(f"the command {command[0]!r} was not found, or is not executable", EXIT_NOT_FOUND)
    options.to.mkdir(parents=True, exist_ok=True)
    tally = Tally()
    with _blocked_signals():
        pid = _start(command) if command else None
        # These sources measure the command, in place of those for this process.
        sources: dict[str, Source] = (
            {**process_tree.sources(pid), "threads": Threads(Path("/proc"), pid)} if pid else {}
        )
        with open_monitor(options.to, options.hz, sinks=[tally], sources=sources):
            startup_s = time.time() - psutil.Process().create_time()
            begin, begin_cpu = time.perf_counter(), time.process_time()
            stop_code = _wait_for(pid) if pid else _pause(options.seconds)
            seconds, cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
    return {
        "seconds": seconds,
        "ticks": tally.ticks,
        "dropped": tally.dropped,
        "latest_ms": tally.latest_ms,
        "cpu_pct": 100 * cpu_s / seconds,
        "startup_s": startup_s,
        "record": str(options.to / "record"),
        "exit_code": _exit_code(pid) if pid else stop_code,
    }


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block signals until we wait for them, also in threads that start here: none may end us before our command."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*STOPPING, signal.SIGCHLD})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(command: Sequence[str]) -> int:
    """Start the command, which gets all signals as usual, and return its process id."""
    try:
        usual = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores these.
        return os.posix_spawnp(command[0], list(command), os.environ, setsigmask=(), setsigdef=usual)
    except OSError as error:
        raise NotStarted(f"{command[0]!r} cannot be run: {error.strerror}", EXIT_NOT_RUN) from error


def _wait_for(pid: int) -> int:
    """Wait until a command ends, and pass on the signals that are meant for it. Return 0, as nothing stopped us.

    The exit code is not read yet: until then, the last samples can read the use of the command.
    """
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        received = signal.sigwaitinfo({*STOPPING, signal.SIGCHLD})
        # A signal of the kernel is a Ctrl-C, which the terminal has sent to the command as well. A second one would
        # make the command end without tidying up.
        if received.si_signo != signal.SIGCHLD and received.si_code <= 0:
            os.kill(pid, received.si_signo)
    return 0


def _exit_code(pid: int) -> int:
    """Return the exit code of a command that has ended, as a shell gives it."""
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else EXIT_SIGNAL - code


def _pause(seconds: float) -> int:
    """Wait, and return 0. If a signal ends the wait, return its exit code."""
    received = signal.sigtimedwait(STOPPING, seconds)
    return EXIT_SIGNAL + received.si_signo if received else 0


def _judge(record: Path) -> dict[str, Any]:
    """Return what limits the command."""
    # After the command: NumPy takes a second.
    from pipeline.monitor.any_program import diagnose_from_outside
    from pipeline.monitor.load import is_of_load
    from pipeline.monitor.thinned import thinned

    samples, _ = thinned(chunks(record, "samples", is_of_load))
    verdict = diagnose_from_outside(samples)
    return {"verdict": verdict.sentence, "limits": [limit.value for limit in verdict.limits]}


def _draw(result: dict[str, Any]) -> None:
    """Write the figure beside the record, and add its path and the seconds that it took to the result."""
    begin = time.perf_counter()
    from pipeline.report import samples_page  # It takes a second or more, which no sample may see.

    result["figure"] = str(samples_page.write(Path(result["record"])))
    result["figure_s"] = time.perf_counter() - begin


def _print(result: Mapping[str, Any], command: Sequence[str], *, as_json: bool) -> None:
    """Print the result. With a command, words go to stderr, as `time` does it, because stdout is the command's."""
    text = json.dumps(result) if as_json else _format_result(result)
    with suppress(BrokenPipeError):
        print(text, file=sys.stderr if command and not as_json else sys.stdout)


def _format_result(result: Mapping[str, Any]) -> str:
    if result["ticks"]:
        lines = [
            f"{result['ticks']} samples in {result['seconds']:.1f} s, {result['dropped']} dropped, the latest one "
            f"{result['latest_ms']:.1f} ms late",
            f"sampling took {result['cpu_pct']:.2f}% of one core; start-up {result['startup_s']:.2f} s, "
            f"page {result['figure_s']:.2f} s",
        ]
    else:
        lines = ["the command ended before the first sample: the page is empty"]
    if "verdict" in result:
        lines.append(result["verdict"])
    return "\n".join([*lines, f"record: {result['record']}", f"page: {result['figure']}"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
