"""The page of environment variables lists exactly the variables that the code reads."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "environment.md"
VARIABLE = re.compile(r"TENFOLD_[A-Z]+(?:_[A-Z]+)*\b(?!_)")
CODE = ("pipeline", "dags", "plugins", "scripts", "docker-compose.yml", "docker")


def test_the_page_lists_exactly_the_variables_in_the_code():
    files = subprocess.run(["git", "ls-files", *CODE], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    in_code = {name for file in files.splitlines() for name in VARIABLE.findall((ROOT / file).read_text("utf-8"))}
    assert in_code - {"TENFOLD_ALLOWED"} == set(VARIABLE.findall(PAGE.read_text("utf-8")))
