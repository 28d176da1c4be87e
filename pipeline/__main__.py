"""`python -m pipeline COMMAND`: the whole chain, or one stage of it, without Airflow."""

import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.commands.command import require_extra
from pipeline.commands.parser import overview, parse
from pipeline.commands.spooled import json_pieces
from pipeline.config.allowed import open_unless_set, open_warning
from pipeline.errors import ERROR_FILE, Preempted, TenfoldError, error_to_json
from pipeline.runs.run import EXIT_PREEMPTED
from pipeline.system.os_errors import cause_of
from pipeline.system.progress import log_to_stderr

EXIT_BAD = 1
_log = logging.getLogger("pipeline")


class _Terminated(KeyboardInterrupt):
    """SIGTERM was received.

    This is not an `Exception`, because it can come at any moment, and code that examines an image takes any `Exception`
    for a fault of the image.
    """


def main(arguments: Sequence[str]) -> int:
    """Run one command and return the exit code. Messages go to stderr. With --json, stdout gets one JSON object."""
    if not arguments:
        print(overview())  # noqa: T201
        return 0
    options = parse(arguments)
    command = options.command
    log_to_stderr()
    # A person who runs a command on their own machine is the administrator.
    open_unless_set()
    try:
        if command.extra:
            require_extra(command.extra, command.name)
        result = command.run(options)
    except Preempted as error:
        print(error, file=sys.stderr)  # noqa: T201
        return EXIT_PREEMPTED
    except TenfoldError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        if file := os.environ.get(ERROR_FILE):
            Path(file).write_text(json.dumps(error_to_json(error)), "utf-8")
        return EXIT_BAD
    except OSError as error:  # For example, a disk is full, or a folder has disappeared.
        later = ": run the same command to continue from here" if cause_of(error) == "transient" else ""
        print(f"error: {error}{later}", file=sys.stderr)  # noqa: T201
        return EXIT_BAD
    except KeyboardInterrupt as stop:
        print("stopped: run the same command to continue from here", file=sys.stderr)  # noqa: T201
        # 130 is 128 + SIGINT, as shells report it.
        return EXIT_PREEMPTED if isinstance(stop, _Terminated) else 130
    # After the work: an error is the last thing to read, and nothing else explains it.
    if command.warns_if_open and (warning := open_warning()):
        _log.info("%s", warning)
    if options.json:
        sys.stdout.writelines(json_pieces(result))
        print()  # noqa: T201
    else:
        text = command.printer(result)
        for line in (text,) if isinstance(text, str) else text:
            print(line)  # noqa: T201
    return 0 if result.get("ok", True) else EXIT_BAD


def _terminated(*_: object) -> None:
    # An exception lets the running code wait for its child processes. Otherwise, they would still write checkpoints.
    # A second request must not interrupt that wait.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Terminated


def console() -> None:
    """Run the command `tenfold` with the arguments of the process."""
    signal.signal(signal.SIGTERM, _terminated)
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    console()
