"""The command `tenfold` as an application of `spark-submit`, which starts a file and no module."""

from pipeline.__main__ import console

if __name__ == "__main__":
    console()
