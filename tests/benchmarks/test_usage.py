"""What a command uses: tests with real processes."""

import sys

from benchmarks.harness.usage import usage_of

MB = 1_000_000


def test_the_memory_of_a_command_is_not_that_of_the_process_that_measures_it(tmp_path):
    held = b"x" * (300 * MB)
    assert usage_of([sys.executable, "-c", ""], tmp_path).peak_mb < 100
    assert len(held) == 300 * MB


def test_the_memory_is_that_of_the_largest_process(tmp_path):
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'b\"x\" * 200_000_000'])"
    assert usage_of([sys.executable, "-c", script], tmp_path).peak_mb > 200


def test_the_exit_code_and_the_output_are_those_of_the_command(tmp_path):
    with open(tmp_path / "log", "wb") as log:
        usage = usage_of([sys.executable, "-c", "print('said'); raise SystemExit(3)"], tmp_path, output=log)
    assert usage.exit_code == 3
    assert (tmp_path / "log").read_text() == "said\n"
