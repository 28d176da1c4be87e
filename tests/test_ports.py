"""Each test that needs a port has its own."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.ports import HOST
from tests import ports
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


def test_a_port_of_another_program_is_left_out(monkeypatch: pytest.MonkeyPatch):
    taken = own_port()
    free = own_port()
    monkeypatch.setattr(ports, "PORTS", [taken, free])
    for descriptor in ports._locked[-2:]:
        os.close(descriptor)
    with socket.create_server((HOST, taken)):
        assert own_port() == free
