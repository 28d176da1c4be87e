"""The versions and bytes of some collections are pinned in a table.

A change that alters the table gives users' datasets new versions, or even other bytes under the same version. If the
change is intended, raise `WRITER_VERSION` and print the new table with
`python -m tests.sharding.test_pinned_collections`. Versions are pinned with fixed codec versions. Bytes depend on the
locked packages, so an upgrade of Pillow can change them.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pipeline.config.allowed import open_unless_set
from pipeline.config.settings import settings_from
from pipeline.dataset.manifest import load
from pipeline.kinds.images import data as image_kind
from pipeline.snapshot.part import PART_LIMITS, PartLimits
from pipeline.stages.shard import write_shards
from pipeline.stages.upload import publish
from pipeline.storage import place_of
from tests.fixed_images import CMYK, GRAY, GRAYSCALE, TRUECOLOR_ALPHA, jpeg, png
from tests.snapshots import key_ranges, take_snapshot

CODECS = {"pillow": "1"}
FISH, GOLD = "n01440764", "n01443537"


@dataclass(frozen=True)
class Collection:
    """Files by their path below the source, and settings. `source` names the list among the files, if there is one."""

    files: Mapping[str, bytes]
    settings: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""


def folders(count: int, *classes: str, first: int = 0) -> dict[str, bytes]:
    return {
        f"{name}/{number:03d}.jpg": jpeg(first + number + 100 * at)
        for at, name in enumerate(classes)
        for number in range(count)
    }


def rows(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


PICTURES = {f"images/{number:02d}.png": png(number) for number in range(12)}
ODD = {
    "a/gray.jpg": jpeg(1, GRAY),
    "a/cmyk.jpg": jpeg(2, CMYK),
    "a/sixteen.png": png(3, bits=16),
    "a/gray.png": png(4, GRAYSCALE),
    "b/alpha.png": png(5, TRUECOLOR_ALPHA),
    "b/gray16.png": png(6, GRAYSCALE, bits=16),
    **{f"b/turned{way}.jpg": jpeg(way, orientation=way) for way in range(2, 9)},
    "c/trailing.jpg": jpeg(20) + b"behind the end",
    "c/cut.jpg": jpeg(21)[:-40],
    "c/empty.jpg": b"",
    "c/fine.jpg": jpeg(22),
    "c/large.png": png(23, size=(60, 40)),
}
COLLECTIONS = {
    "folders": Collection(folders(8, "cats", "dogs", "eels")),
    "splits": Collection({**folders(6, "train/cats", "train/dogs"), **folders(2, "val/cats", "test/dogs", first=50)}),
    "numbers as labels": Collection(folders(4, "0", "2", "10", "01")),
    "names": Collection(
        {f"{name}/{key}": jpeg(at) for at, name in enumerate(("a b", "é #?%", "花")) for key in ("1.JPG", "x\ny.jpg")}
    ),
    "other seed and shards": Collection(
        folders(8, "cats", "dogs"), {"split_seed": 7, "num_shards": 3, "validation_fraction": 0.3}
    ),
    "two servers": Collection(folders(20, "cats", "dogs"), {"num_training_servers": 2}),
    "plain keys and gzip": Collection(
        PICTURES
        | {
            "list.csv": b"path,label\n"
            + b"".join(b"%b,l%d\n" % (key.encode(), at % 2) for at, key in enumerate(PICTURES))
        },
        {"feature_keys": "plain", "compression": "gzip", "label_offset": 1},
        "list.csv",
    ),
    "groups, splits and several labels": Collection(
        PICTURES
        | {
            "list.jsonl": rows(
                [
                    {
                        "path": key,
                        "label": ["x", "yz"[at % 2]],
                        "group": f"g{at // 2}",
                        "split": "test" if at > 9 else "",
                    }
                    for at, key in enumerate(PICTURES)
                ]
            )
        },
        {},
        "list.jsonl",
    ),
    "boxes": Collection(
        PICTURES
        | {
            "list.jsonl": rows(
                [{"path": key, "label": f"l{at % 2}", "boxes": [[1, 2, 9, 8]]} for at, key in enumerate(PICTURES)]
            )
        },
        {"crop_to_box": True},
        "list.jsonl",
    ),
    "odd images": Collection(ODD, {"max_rejected_fraction": 1}),
    "odd images, headers alone": Collection(ODD, {"max_rejected_fraction": 1, "check": "header"}),
    "resized": Collection(ODD, {"max_rejected_fraction": 1, "prepare": "resize", "prepare_size": 16}),
    "pixels": Collection(ODD, {"max_rejected_fraction": 1, "prepare": "raw", "prepare_size": 16}),
    "ImageNet": Collection(
        {
            **{f"train/{name}/{name}_{n}.JPEG": jpeg(n + len(name)) for name in (FISH, GOLD) for n in range(6)},
            **{f"val/ILSVRC2012_val_0000000{n}.JPEG": jpeg(40 + n) for n in (1, 2)},
            "imagenet_2012_validation_synset_labels.txt": f"{FISH}\n{GOLD}\n".encode(),
        }
    ),
}
PINNED: dict[str, tuple[str, str]] = {
    "folders": ("23f543cfac616e1b", "6a4b3a3ce35cc827"),
    "splits": ("26cf70963fb5808c", "862993047d26cb73"),
    "numbers as labels": ("b19eb6837c9a545b", "b9da0d20f036391f"),
    "names": ("750d486024b58969", "25bdfbc800077c49"),
    "other seed and shards": ("bab7bae049326e17", "90a107013e344194"),
    "two servers": ("deae62b77cc8848e", "977d85f723a5a214"),
    "plain keys and gzip": ("9c3b4afe3e536287", "9dd3668b53648f98"),
    "groups, splits and several labels": ("f6bfba9d59eae837", "81a32ed98febc916"),
    "boxes": ("b2eb89f98fbc7866", "7c1393df89926734"),
    "odd images": ("bb182b3b277b1846", "d4481991fb035e9b"),
    "odd images, headers alone": ("55bc1b21b9153604", "d4481991fb035e9b"),
    "resized": ("88aff9591ba96590", "03db88ff017c7722"),
    "pixels": ("1ec7c32386576f68", "1411e141c0e78811"),
    "ImageNet": ("dbf0ae5eda68df69", "4ea812e4d85dee71"),
}
"""The version and a hash of all shards, by collection."""


def measured(collection: Collection, root: Path, ranges: int = 1, limits: PartLimits = PART_LIMITS) -> tuple[str, str]:
    """Return the version of a collection, and a hash of the names and bytes of its shards.

    It is listed in up to `ranges` ranges of keys, and its snapshot has parts with these limits.
    """
    for name, content in collection.files.items():
        path = root / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    # The version must depend only on the collection and on our code.
    with mock.patch.object(image_kind, "codec_versions", return_value=CODECS):
        source = root / "source" / collection.source
        settings = settings_from(
            {"source_uri": str(source), "workspace": str(root / "workspace"), **collection.settings}
        )
        keys = key_ranges(settings, ranges, min_images=1)
        plan_path = write_shards(settings, take_snapshot(settings, keys, limits))
        folder = Path(publish(plan_path, settings)["dataset"])
    hashed = hashlib.blake2b(digest_size=8)
    for split in load(folder).splits.values():
        for shard in split.shards:
            hashed.update(shard.name.encode() + (place_of(str(folder)) / shard.name).read_bytes())
    return folder.name, hashed.hexdigest()


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_collection_keeps_its_version_and_its_bytes(name: str, tmp_path: Path):
    assert measured(COLLECTIONS[name], tmp_path) == PINNED[name]


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_collection_in_many_parts_has_the_same_version_and_bytes(name: str, tmp_path: Path):
    assert measured(COLLECTIONS[name], tmp_path, ranges=4, limits=PartLimits(rows=2)) == PINNED[name]


def main() -> None:
    """Print the current table."""
    open_unless_set()
    for name, collection in COLLECTIONS.items():
        with tempfile.TemporaryDirectory() as root:
            sys.stdout.write(f"    {name!r}: {measured(collection, Path(root))!r},\n")


if __name__ == "__main__":
    main()
