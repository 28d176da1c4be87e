"""`python -m pipeline.monitor`. The command is in a room above, because it draws a page: this starts it by its name."""

import runpy

if __name__ == "__main__":
    runpy.run_module("pipeline.commands.monitor", run_name="__main__")
