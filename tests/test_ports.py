"""Each test that needs a port has its own."""

import socket
import subprocess
import sys
from pathlib import Path

from scripts.ports import HOST
from tests.ports import own_port

ROOT = Path(__file__).parents[1]


def test_no_port_is_given_twice():
    """Also not to another process, while the first one does not listen yet."""
    ours = {own_port() for _ in range(5)}
    code = "from tests.ports import own_port; print(*(own_port() for _ in range(5)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    theirs = set(map(int, done.stdout.split()))
    assert len(ours) == len(theirs) == 5
    assert ours.isdisjoint(theirs)


def test_a_port_of_another_program_is_left_out(tmp_path: Path):
    free = own_port()
    with socket.create_server((HOST, 0)) as other:
        assert own_port([other.getsockname()[1], free], tmp_path) == free
