"""Edits of plans by another hand: someone else who can write to the workspace."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.settings import Settings
from pipeline.plan.merge import checksum, read_pieces
from pipeline.plan.sort import INDEX

OUTSIDE = "x"
"""Name of a folder beside the source, outside of the lists. `../x/000.jpg` is as long as `cats/000.jpg`."""


def copy_images(settings: Settings, outside: Path) -> None:
    """Copy the images of the source into a folder outside of the lists, so that their checksums are those of a plan."""
    shutil.copytree(settings.source_uri, outside)
    shutil.copytree(outside / "cats", outside, dirs_exist_ok=True)


def edit_header(plan_file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    first, *rest = plan_file.read_bytes().splitlines(keepends=True)
    header = json.loads(first)
    change(header)
    plan_file.write_bytes(json.dumps(header).encode() + b"\n" + b"".join(rest))


def edit_json(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def forge_keys(plan_file: Path, old: bytes, new: bytes) -> None:
    """Change keys in the sorted lines of a plan file, with sound checksums. Both keys must have the same length."""
    with plan_file.open("rb") as file:
        file.readline()
        lines = {Path(piece.lines) for piece in read_pieces(file)}
    for path in lines:
        index_path = path.with_suffix(".index")
        index, content = np.fromfile(index_path, INDEX), path.read_bytes().replace(old, new)
        begins = [0, *index["end"][:-1].tolist()]
        for entry, begin in zip(index, begins, strict=True):
            entry["crc32c"] = checksum(int(entry["hash"]), content[begin : int(entry["end"])])
        path.write_bytes(content)
        index.tofile(index_path)


def move_behind_link(path: Path, outside: Path) -> None:
    """Move a file or folder outside, and leave a link in its place."""
    path.symlink_to(path.rename(outside.parent / f"{outside.name}-{path.name}"))


def _link_images(settings: Settings, outside: Path) -> None:
    for image in Path(settings.source_uri, "cats").iterdir():
        image.unlink()
        image.symlink_to(outside / "cats" / image.name)


def _name_lines(plan_file: Path, outside: Path) -> None:
    """Let the pieces name copies of their lines outside."""
    first, *pieces = plan_file.read_text().splitlines()
    folder = outside.parent / f"{outside.name}-lines"
    shutil.copytree(Path(json.loads(pieces[0])[1]).parent, folder)
    moved = [[split, str(folder / Path(lines).name), *rest] for split, lines, *rest in map(json.loads, pieces)]
    plan_file.write_text("\n".join([first, *map(json.dumps, moved)]) + "\n")


Edit = Callable[[Settings, Path, Path], None]
EDITS: dict[str, Edit] = {
    "root of the images": lambda _, plan_file, outside: edit_header(
        plan_file, lambda header: header["origin"].update(root=str(outside))
    ),
    "key of an image": lambda _, plan_file, outside: forge_keys(plan_file, b'"cats/0', b'"../x/0'),
    "linked images": lambda settings, _, outside: _link_images(settings, outside),
    "folder to write": lambda _, plan_file, outside: edit_header(
        plan_file, lambda header: header.update(written=str(outside))
    ),
    "folder to write, with ..": lambda _, plan_file, outside: edit_header(
        plan_file, lambda header: header.update(written=f"{header['written']}/{'../' * 6}{outside.name}")
    ),
    "published folder": lambda _, plan_file, outside: edit_header(
        plan_file, lambda header: header.update(published=str(outside))
    ),
    "bucket to publish": lambda _, plan_file, outside: edit_header(
        plan_file, lambda header: header.update(published="gs://bucket/other")
    ),
    "name of a shard": lambda _, plan_file, outside: edit_header(
        plan_file, lambda header: header["shards"][0].update(name=f"../../../../../{outside.name}/a.tfrecord")
    ),
    "cache": lambda _, plan_file, outside: edit_header(
        plan_file, lambda header: header["origin"].update(cache=str(outside))
    ),
    "file of lines": lambda _, plan_file, outside: _name_lines(plan_file, outside),
    "linked plan file": lambda _, plan_file, outside: move_behind_link(plan_file, outside),
    "linked results": lambda _, plan_file, outside: (plan_file.parents[1] / "results").symlink_to(outside),
    "linked shards": lambda _, plan_file, outside: (plan_file.parents[1] / "shards").symlink_to(outside),
}
"""What another hand does before the shards are written."""
