"""Files that listings keep: noting their use is optional."""

from pathlib import Path

from pipeline.sources.kept_files import note_use


def test_a_use_that_cannot_be_noted_is_no_error(tmp_path: Path):
    """For example, another user owns the file. Root may do everything, so here a file is in place of the folder."""
    (tmp_path / "file").touch()
    note_use([tmp_path / "file" / "a.arrow", tmp_path / "absent"])
