"""Find the groups of file names. pipeline/snapshot/groups.py runs this file as a separate process.

Python's regular expressions have no time limit. A signal stops them only in the main thread, and an engine may call
this in another thread. A process of its own can always be killed. The input is a JSON object with a `pattern`, `names`
and the `seconds` of processor time for them. The output is the list of their groups. If the time is over, the kernel
ends this process with SIGPROF. This file imports nothing of the project, so that it starts in a few hundredths of a
second.
"""

import json
import re
import signal
import sys


def main() -> None:
    """Answer the question in the input."""
    question = json.load(sys.stdin)
    # The default action of the signal ends the process even within `re`, and even if its parent was killed.
    signal.setitimer(signal.ITIMER_PROF, question["seconds"])
    pattern = re.compile(question["pattern"])
    json.dump([_group(name, pattern) for name in question["names"]], sys.stdout)


def _group(name: str, pattern: re.Pattern[str]) -> str:
    match = pattern.search(name)
    # An optional group that did not take part in the match is None.
    return (match[1] if pattern.groups else match[0]) or "" if match else ""


if __name__ == "__main__":
    main()
