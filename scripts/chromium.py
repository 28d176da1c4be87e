"""Chromium, if this machine has it: tests and benchmarks open pages in it."""

import shutil

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
