"""`make bench-gpu`: on a machine without a GPU, all of it runs with tiny sizes, and a failed section ends no other."""

import json
import os
import subprocess
from datetime import datetime
from pathlib import Path

import pandas
import pytest

from benchmarks import gpu
from benchmarks.on_gpu.data import PACKAGES
from benchmarks.on_gpu.section import in_words
from benchmarks.on_gpu.trainings import beside_row, memory_row, smi_means
from tests.benchmarks.bare_python import make_bare_python

ROOT = Path(__file__).resolve().parents[2]
WITHOUT_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.core
def test_all_sections_run_in_a_python_that_has_only_the_listed_packages(tmp_path: Path):
    python = make_bare_python(tmp_path / "python", PACKAGES.values())
    command = ["make", "--no-print-directory", "bench-gpu", f"PYTHON={python}", f"BENCH=--json {tmp_path / 'gpu.json'}"]
    done = subprocess.run(command, cwd=ROOT, env=WITHOUT_GPU, stdout=subprocess.PIPE, text=True)
    results = json.loads((tmp_path / "gpu.json").read_text())
    assert {each["title"]: each["error"] for each in results} == {
        "machine": "",
        "datasets": "",
        "steps of small_cnn": "",
        "steps of tiny_vit": "",
        "training of small_cnn": "",
        "two trainings of small_cnn": "",
    }
    assert done.returncode == 0
    assert json.loads(done.stdout.splitlines()[-1]) == results

    numbers = {(each["title"], row["what"]): row["numbers"] for each in results for row in each["rows"]}
    for model in ("small_cnn", "tiny_vit"):
        for variant in ("float32", "bfloat16", "bfloat16 with XLA"):
            of_steps = numbers[f"steps of {model}", variant]
            assert all(of_steps[f"{name}_ms"] > 0 for name in ("step", "loop", "pixels", "photographs"))
            assert f"| steps of {model} | {variant} |" in done.stdout
    assert len(numbers["training of small_cnn", "memory after each of 4 validations"]["after_mb"]["process"]) >= 4
    assert numbers["training of small_cnn", "verdict"]["limits"] not in ([], ["unknown"])
    assert ("training of small_cnn", "monitor beside nvidia-smi") in numbers
    assert all(
        numbers["two trainings of small_cnn", f"training {n} of two on one CPU"] == {"failure": ""} for n in (1, 2)
    )


def test_a_python_without_tensorflow_is_told_what_it_lacks(tmp_path: Path):
    python = make_bare_python(tmp_path / "python", ["numpy", "psutil"])
    command = [python, "-m", "benchmarks.gpu", "--json", tmp_path / "gpu.json"]
    done = subprocess.run(command, cwd=ROOT, env=WITHOUT_GPU, stdout=subprocess.PIPE, text=True)
    [machine] = json.loads((tmp_path / "gpu.json").read_text())
    assert set(machine["rows"][0]["numbers"]["missing"]) == {*PACKAGES.values()} - {"numpy", "psutil"}
    assert machine["error"].startswith("this Python has no module 'tensorflow': install its package")
    assert done.returncode == 1
    assert "| machine | failed | this Python has no module 'tensorflow'" in done.stdout


def test_a_section_that_fails_is_reported_with_its_error():
    result = gpu.run("unknown", "unknown", {}, limit_s=60)
    assert (result.rows, result.error) == ([], "KeyError: 'unknown'")


def test_a_missing_package_is_named_in_one_sentence():
    error = in_words(ModuleNotFoundError("No module named 'pandas'", name="pandas"))
    assert error == "this Python has no module 'pandas': install its package there, or add it to PYTHONPATH"


def test_a_section_is_stopped_at_its_limit_with_all_processes_that_it_started(tmp_path: Path):
    result = gpu.run("datasets", "datasets", {"folder": str(tmp_path), "drawn": 10**9, "copies": 1}, limit_s=0.5)
    assert result.error.startswith("stopped at its limit of 0.5 s; the last line of ")


@pytest.mark.parametrize(("shown", "first"), [(None, "0"), ("", ""), ("3,1", "3"), ("GPU-1f, GPU-2a", "GPU-1f")])
def test_all_sections_see_the_first_visible_gpu_alone(shown: str | None, first: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.delenv(gpu.MASK, raising=False)
    if shown is not None:
        monkeypatch.setenv(gpu.MASK, shown)
    gpu.use_one_gpu()
    assert os.environ[gpu.MASK] == first


BEGIN = datetime(2026, 11, 28, 13, 50).timestamp()
SMI = """2026/11/28 13:49:59.900, 1, 100, 50.5
2026/11/28 13:50:00.100, 90, 4000, 300.25
2026/11/28 13:50:00.300, 100, 4200, [N/A]
2026/11/28 13:50:00.500, 100, 42"""
SAMPLES = pandas.DataFrame(
    {
        "time": [BEGIN + 0.1, BEGIN + 0.3, BEGIN + 0.9, BEGIN + 2],
        "proc/rss_bytes": [7e8, 7.1e8, 7.2e8, 9e8],
        "gpu/0/mem_used_bytes": [4e9, None, 4.4e9, 0],
        "gpu/0/util_pct": [94, None, 98, 0],
    }
)
EPOCHS = pandas.DataFrame({"time": [BEGIN, BEGIN + 0.2, BEGIN + 0.4, BEGIN + 1]})


def test_values_of_nvidia_smi_are_averaged_over_an_interval():
    assert smi_means(SMI, BEGIN, BEGIN + 1) == {"utilization.gpu": 95, "memory.used": 4100, "power.draw": 300.25}


def test_the_monitor_stands_beside_nvidia_smi_in_the_same_units(tmp_path: Path):
    (tmp_path / "smi.csv").write_text(SMI)
    row = beside_row(tmp_path / "smi.csv", SAMPLES, EPOCHS)
    assert row.result == "utilization, %: 96.0 beside 95.0; memory, GB: 4.2 beside 4.3"


def test_memory_after_a_validation_is_that_of_the_last_sample_before_its_end():
    row = memory_row(EPOCHS, SAMPLES, shown=3)
    assert row.numbers["after_mb"] == {"process": [700, 710, 720], "GPU": [4000, 4000, 4400]}
    assert row.result == "process 700, 710, 720 MB, at the end 720; GPU 4,000, 4,000, 4,400 MB, at the end 4,400"
