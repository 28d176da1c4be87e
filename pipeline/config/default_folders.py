"""The folders of an installation: defaults of two settings, from the environment, which only the administrator sets."""

import os


def default_workspace() -> str:
    """Return the default of the setting `workspace`."""
    return os.environ.get("TENFOLD_WORKSPACE", "workspace")


def default_local_folder() -> str:
    """Return the default of the setting `local_folder`."""
    return os.environ.get("TENFOLD_LOCAL_FOLDER", "~/.cache/tenfold")
