"""A third kind of examples is one folder, tests/kinds/lines, and one line of the registry."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import json, sys
from pathlib import Path

from pipeline.config.example_kinds import KINDS, KindEntry

# Before the settings, which list the kinds, are imported.
KINDS["lines"] = KindEntry("tests.kinds.lines", ("letters",))

from pipeline.config.settings import settings_from
from pipeline.dataset.verify import verify
from pipeline.runs.launch import prepare_run
from pipeline.runs.run import load_result
from pipeline.stages.build import build
from pipeline.storage import place_of
from pipeline.training.job import run_job

folder = Path(sys.argv[1])
settings = settings_from({
    "example_kind": "lines", "source_uri": str(folder / "lines.txt"), "workspace": str(folder / "workspace"),
    "epochs": 40, "batch_size": 8, "learning_rate": 0.1,
})
built = build(settings)
dataset = place_of(built["dataset"])
run = prepare_run(settings, dataset, "run")
run_job(run, lambda: False)
print(json.dumps({"built": built, "verified": verify(dataset), "metrics": load_result(run.folder)["metrics"]}))
"""


@pytest.mark.long
def test_a_third_kind_of_examples_is_one_folder_and_one_line_of_the_registry(tmp_path: Path):
    vowels, others = "aeiou", "bcdfg"
    lines = [
        f"{name}\t{letters[n % 5] * 3}{letters[n % 3]}"
        for n in range(30)
        for name, letters in (("vowels", vowels), ("others", others))
    ]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    done = subprocess.run([sys.executable, "-c", RUN, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    shown = json.loads(done.stdout.splitlines()[-1])
    assert sum(shown["built"]["examples"].values()) == len(lines)
    assert shown["verified"] == {"ok": True, "records": len(lines), "problems": []}
    assert shown["metrics"]["val_accuracy"] == 1.0
