"""Runs the fake Cloud Storage by itself: `python -m standins.fake_gcs --port 0 --folder F --latency-ms 30`.

Prints its address on one line and serves until it is interrupted or terminated. `--requests FILE` then gets the number
of requests of each operation, as JSON.
"""

import argparse
import json
import signal
from pathlib import Path

from standins.fake_gcs.server import FakeGcs


def main() -> None:
    options = arguments()
    stop = {signal.SIGINT, signal.SIGTERM}
    # Blocked before any thread begins, because a thread that does not block a signal ends the process by it.
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)
    with FakeGcs(options.port, options.latency_ms / 1000, options.host) as server:
        for folder in sorted(path for path in options.folder.iterdir() if path.is_dir()) if options.folder else []:
            server.create_bucket(folder.name)
            server.put_folder(folder.name, "", folder)
        for name in options.bucket:
            server.create_bucket(name)
        print(server.url, flush=True)
        signal.sigwait(stop)
    if options.requests:
        options.requests.write_text(json.dumps(server.requests))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m standins.fake_gcs", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: a free one")
    parser.add_argument("--host", default="127.0.0.1", help="to listen on, and what clients call it (%(default)s)")
    parser.add_argument("--folder", type=Path, help="each folder in it is served as a bucket, its files as objects")
    parser.add_argument("--bucket", action="append", default=[], help="an empty bucket to begin with (repeatable)")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="each answer begins that late")
    parser.add_argument(
        "--requests", type=Path, help="file that gets the number of requests of each operation at the end"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
