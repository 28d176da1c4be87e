"""The command `tenfold` as an application of `spark-submit`, which starts a file and no module."""

import sys
from pathlib import Path

# Before the package of `--py-files`, which is for the executors. It is an archive, from which the driver cannot read
# the templates of pages.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pipeline.__main__ import console

if __name__ == "__main__":
    console()
