"""Find the groups of file names. pipeline/snapshot/groups.py runs this file as a separate process.

Python's regular expressions have no time limit, and no thread can stop them, but a process can be killed. Each line of
the input is a JSON object with a `pattern`, `names` and the `seconds` of processor time for them. Each line of the
output is the list of their groups. If the time is over, the kernel ends this process with SIGPROF. This file imports
nothing of the project, so that it starts in a few hundredths of a second.
"""

import json
import re
import signal
import sys


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        question = json.loads(line)
        # The default action of the signal ends the process even within `re`, and even if its parent was killed.
        signal.setitimer(signal.ITIMER_PROF, question["seconds"])
        pattern = re.compile(question["pattern"])
        groups = [_group(name, pattern) for name in question["names"]]
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(groups) + "\n")
        sys.stdout.flush()


def _group(name: str, pattern: re.Pattern[str]) -> str:
    match = pattern.search(name)
    # An optional group that did not take part in the match is None.
    return (match[1] if pattern.groups else match[0]) or "" if match else ""


if __name__ == "__main__":
    main()
