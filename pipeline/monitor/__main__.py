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

from pipeline.monitor import Row, gpu, open_monitor, read  # noqa: F401 - before the command, not beside it
from pipeline.monitor import process_tree as processes
from pipeline.monitor.sampler import Source, require_rate
from pipeline.monitor.threads import Threads
from pipeline.system.progress import log_words

EXIT_BAD, EXIT_NOT_RUN, EXIT_NOT_FOUND, EXIT_SIGNAL = 2, 126, 127, 128  # as a shell has them
STOPPING = (signal.SIGINT, signal.SIGTERM)
USAGE = """python -m pipeline.monitor [--hz HZ] [--to FOLDER] [--json] --seconds SECONDS
       python -m pipeline.monitor [--hz HZ] [--to FOLDER] [--json] -- COMMAND [ARGUMENT ...]"""


class NotStarted(Exception):
    """The command cannot be run; `code` is what a shell would exit with."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words)
        self.code = code


@dataclass
class Tally:
    """A sink that counts the ticks, and keeps the most that one was late."""

    ticks: int = 0
    dropped: int = 0
    latest_ms: float = 0.0

    def write(self, row: Row) -> None:
        self.ticks += 1
        self.dropped = int(row.values["monitor/dropped"])
        self.latest_ms = max(self.latest_ms, row.values["monitor/tick_late_ms"])


def main(arguments: Sequence[str]) -> int:
    """Sample, write the record and the figure, and say what it took; return the exit code, that of the command."""
    own, command = _split(arguments)
    options = _parse(own, command)
    log_words()
    try:
        found = _sampled(options, command)
        found |= _judged(Path(found["record"])) if command else {}
        _draw(found)
    except NotStarted as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return error.code
    except OSError as error:  # a full disk, a folder that cannot be made
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_BAD
    except KeyboardInterrupt:
        print("stopped: there is no figure", file=sys.stderr)  # noqa: T201
        return EXIT_SIGNAL + signal.SIGINT
    _say(found, command, as_json=options.json)
    return int(found["exit_code"])


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our own arguments, and the command behind the first "--"."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:end]), list(arguments[end + 1 :])


def _parse(own: Sequence[str], command: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m pipeline.monitor", USAGE, __doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, help="sample for so long, without a command")
    parser.add_argument("--hz", type=float, default=5.0, help="samples a second, from 0.2 to 20; 5 unless told")
    parser.add_argument(
        "--to", type=Path, metavar="FOLDER", help="for record and figure; monitor-DATE-TIME unless told"
    )
    parser.add_argument("--json", action="store_true", help="say it as one JSON object")
    options = parser.parse_args(own)
    if bool(command) == (options.seconds is not None):
        parser.error("give either --seconds or a command behind --")
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


def _sampled(options: argparse.Namespace, command: Sequence[str]) -> dict[str, Any]:
    """Sample until the command ends or the time is over. Raises NotStarted, and OSError where it cannot be written."""
    if command and shutil.which(command[0]) is None:
        raise NotStarted(f"there is no command {command[0]!r} that could be run", EXIT_NOT_FOUND)
    options.to.mkdir(parents=True, exist_ok=True)
    tally = Tally()
    with _signals_held():
        pid = _start(command) if command else None
        sources = _sources(pid) if pid else {}
        with open_monitor(options.to, options.hz, sinks=[tally], sources=sources):
            startup_s, begin, begin_cpu = _age_s(), time.perf_counter(), time.process_time()
            stopped = _outlast(pid) if pid else _pause(options.seconds)
            seconds, cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
    return {
        "seconds": seconds,
        "ticks": tally.ticks,
        "dropped": tally.dropped,
        "latest_ms": tally.latest_ms,
        "cpu_pct": 100 * cpu_s / seconds,
        "startup_s": startup_s,
        "record": str(options.to / "record"),
        "exit_code": _exit_code(pid) if pid else stopped,
    }


def _sources(pid: int) -> dict[str, Source]:
    """Measure the command in place of this process."""
    return {**processes.sources(pid), "threads": Threads(Path("/proc"), pid)}


@contextmanager
def _signals_held() -> Iterator[None]:
    """Have signals wait until they are asked for, in threads begun here too: none may end us before our command."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*STOPPING, signal.SIGCHLD})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(command: Sequence[str]) -> int:
    """The process id of the command, which gets all signals as usual."""
    try:
        usual = (signal.SIGPIPE, signal.SIGXFSZ)  # which Python ignores
        return os.posix_spawnp(command[0], list(command), os.environ, setsigmask=(), setsigdef=usual)
    except OSError as error:
        raise NotStarted(f"{command[0]!r} cannot be run: {error.strerror}", EXIT_NOT_RUN) from error


def _outlast(pid: int) -> int:
    """Wait for the end of a command, passing on the signals that are meant for it; give 0, as nothing stopped us.

    What it used can be read until its exit code is asked for, so that no last sample finds it missing.
    """
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        told = signal.sigwaitinfo({*STOPPING, signal.SIGCHLD})
        # The kernel's own is a Ctrl-C, which the terminal has sent to the command as well: a second one would have it
        # end without tidying up.
        if told.si_signo != signal.SIGCHLD and told.si_code <= 0:
            os.kill(pid, told.si_signo)
    return 0


def _exit_code(pid: int) -> int:
    """Of a command that has ended, as a shell has it."""
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else EXIT_SIGNAL - code


def _pause(seconds: float) -> int:
    """Wait, for less where a signal stops it; the exit code that says so, or 0."""
    told = signal.sigtimedwait(STOPPING, seconds)
    return EXIT_SIGNAL + told.si_signo if told else 0


def _age_s() -> float:
    """Seconds since this process was started."""
    return time.time() - psutil.Process().create_time()


def _judged(record: Path) -> dict[str, Any]:
    """What limits the command, in words."""
    from pipeline.monitor.any_program import diagnose_from_outside  # after the command: NumPy takes a second to load

    verdict = diagnose_from_outside(read(record, "samples"))
    return {"verdict": verdict.sentence, "limits": [limit.value for limit in verdict.limits]}


def _draw(found: dict[str, Any]) -> None:
    """Write the figure beside the record, and add where it is and what it took."""
    begin = time.perf_counter()
    from pipeline.report import samples_page  # a second and more, which no sample is to see

    found["figure"] = str(samples_page.write(Path(found["record"])))
    found["figure_s"] = time.perf_counter() - begin


def _say(found: Mapping[str, Any], command: Sequence[str], *, as_json: bool) -> None:
    """Beside a command, whose output is its own, on stderr, as `time` does."""
    words = json.dumps(found) if as_json else _words(found)
    with suppress(BrokenPipeError):
        print(words, file=sys.stderr if command and not as_json else sys.stdout)


def _words(found: Mapping[str, Any]) -> str:
    verdict = (found["verdict"],) if "verdict" in found else ()
    return "\n".join((*_about_ticks(found), *verdict, f"record: {found['record']}", f"figure: {found['figure']}"))


def _about_ticks(found: Mapping[str, Any]) -> tuple[str, ...]:
    if not found["ticks"]:
        return ("it ended before the first sample: the figure is empty",)
    return (
        f"{found['ticks']} ticks in {found['seconds']:.1f} s, {found['dropped']} dropped, the latest one "
        f"{found['latest_ms']:.1f} ms late",
        f"sampling took {found['cpu_pct']:.2f}% of one core; start-up {found['startup_s']:.2f} s, "
        f"figure {found['figure_s']:.2f} s",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
