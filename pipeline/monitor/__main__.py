"""Starts `pipeline.commands.monitor`, which may import `pipeline.report`. This package may not."""

import runpy

if __name__ == "__main__":
    runpy.run_module("pipeline.commands.monitor", run_name="__main__")
