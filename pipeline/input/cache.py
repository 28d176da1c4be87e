"""Where decoded images are kept for the epochs that follow: in memory, on the local disk, or nowhere."""

import hashlib
import json
import logging
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

import tensorflow as tf

from pipeline.config.kept_images import USABLE, kept_bytes
from pipeline.dataset.manifest import Dataset
from pipeline.errors import BadInput, CacheDamaged
from pipeline.input.damage import DAMAGE
from pipeline.input.exhaustion import is_out_of_files, is_out_of_memory
from pipeline.input.options import BatchOptions
from pipeline.input.tensorflow_internals import is_cached, read_cache, remove_cache
from pipeline.rendezvous.servers import Server
from pipeline.system.flock import locked, try_lock
from pipeline.system.resources import available_memory
from pipeline.system.wording import format_size

CACHED_SPLITS = ("train", "validation")
Choice = Literal["auto", "memory", "disk", "off"]
_FORM = 6
"""Version of the cached content. Increase it if decoding or the order of an epoch changes, so that old files are not
reused."""
_log = logging.getLogger(__name__)


def cached_bytes(
    dataset: Dataset, options: BatchOptions, servers: int = 1, splits: Collection[str] = CACHED_SPLITS
) -> int:
    """Return about how many bytes the decoded images of one server take."""
    counts = {split: dataset.splits[split].examples if split in splits else 0 for split in CACHED_SPLITS}
    return kept_bytes(options.image_size, options.crop, **counts) // servers


def usable_memory() -> int:
    """Return how many bytes of memory decoded images may take."""
    return int(available_memory() * USABLE)


@contextmanager
def open_cache(
    choice: Choice, folder: Path, dataset: Dataset, options: BatchOptions, server: Server, epochs: int
) -> Iterator[BatchOptions]:
    """Yield the options with the cache that `choice` stands for, and log it. Files of `disk` are in `folder`.

    Raises:
        BadInput: If the choice is memory or disk, and the images do not fit there.
        CacheDamaged: If an error of TensorFlow in the block comes from damaged files of `disk`, which are then removed.
    """
    if choice == "disk":
        with _on_disk(folder, dataset, options, server) as path:
            yield replace(options, cache=path)
    else:
        yield replace(options, cache=_in_memory_or_off(choice, dataset, options, server, epochs))


def _in_memory_or_off(
    choice: Choice, dataset: Dataset, options: BatchOptions, server: Server, epochs: int
) -> Literal["memory", "off"]:
    # Whether a later epoch can use decoded images again.
    helps = epochs > 1 and not options.balanced and options.crop != "random_resized"
    if choice == "off" or (choice == "auto" and not helps):
        return "off"
    needed, usable = cached_bytes(dataset, options, server.count), usable_memory()
    if needed <= usable:
        _log.info(
            "decoded images are kept in memory: they need about %s of %s", format_size(needed), format_size(usable)
        )
        return "memory"
    too_much = _too_much("memory", needed, usable)
    if choice == "memory":
        raise BadInput(f"{too_much}set cache=disk or cache=off")
    _log.info("%simages are decoded again in every epoch; cache=disk would keep them", too_much)
    return "off"


def _too_much(what: str, needed: int, usable: int) -> str:
    return (
        f"decoded images need about {format_size(needed)}, but only {format_size(usable)} of {what} can be used for "
        "them: "
    )


@contextmanager
def _on_disk(folder: Path, dataset: Dataset, options: BatchOptions, server: Server) -> Iterator[str]:
    """Yield the prefix of the cache files in `folder`. One training at a time has them; complete files are reused."""
    own = folder / _key(dataset, options, server)
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        # One training after another: one could sweep the folder that another has just made and not locked yet.
        with locked(folder / ".lock"):
            own.mkdir(exist_ok=True)
            if not held.enter_context(_locked_if_free(own)):
                raise BadInput(
                    f"another training keeps the same decoded images in {own}: set cache=off for one of the two "
                    "trainings"
                )
            # Nothing else removes the folders of earlier trainings with another key. This comes before the free space
            # is measured, because their files would count as used.
            for other in folder.iterdir():
                if other != own and other.is_dir():
                    with _locked_if_free(other) as alone:
                        if alone:
                            shutil.rmtree(other, ignore_errors=True)
        missing = [split for split in CACHED_SPLITS if not is_cached(_prefix(own, split))]
        for split in missing:
            # A killed training left it half-written, and TensorFlow does not write over it.
            remove_cache(_prefix(own, split))
        needed = cached_bytes(dataset, options, server.count, missing)
        usable = int(shutil.disk_usage(own).free * USABLE)
        if needed > usable:
            raise BadInput(_too_much(f"disk below {folder}", needed, usable) + "set local_folder or cache=off")
        _log.info("decoded images are kept in %s: they need about %s more", own, format_size(needed))
        try:
            yield str(own / "images")
        except DAMAGE as error:
            _remove_damaged(own, error)
            raise


def _remove_damaged(own: Path, error: tf.errors.OpError) -> None:
    """Remove damaged images and raise CacheDamaged, if they are the reason for an error."""
    if is_out_of_memory(error) or is_out_of_files(error):
        return
    for split in CACHED_SPLITS:
        # Files without an index are half-written, not damaged: the next attempt removes them anyway.
        if is_cached(_prefix(own, split)) and not _is_whole(_prefix(own, split)):
            remove_cache(_prefix(own, split))
            raise CacheDamaged(
                f"the decoded images in {own} were damaged ({error.message}) and have been removed: the next attempt "
                "decodes them again, and training continues from its last checkpoint"
            ) from error


def _is_whole(prefix: str) -> bool:
    """Return whether all files of decoded images can be read: TensorFlow compares the checksum of each image."""
    try:
        read_cache(prefix)
    except tf.errors.OpError as error:
        return is_out_of_memory(error) or is_out_of_files(error)  # Neither says anything about the content.
    # TensorFlow raises these for a damaged index.
    except (ValueError, IndexError, RuntimeError):
        return False
    return True


def _key(dataset: Dataset, options: BatchOptions, server: Server) -> str:
    """Return a name that differs where the kept images, or their order, would."""
    # The path of the cache is left out, because this name becomes a part of it. A training can change how many batches
    # are made ahead, and goes on with the same images.
    deciding = replace(options, cache="off", prefetch_batches=1)
    content = [_FORM, tf.__version__, dataset.version, asdict(deciding), asdict(server)]
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()


@contextmanager
def _locked_if_free(folder: Path) -> Iterator[bool]:
    """Lock the folder for the block if no other process holds it. Yield whether it is locked."""
    with open(folder / ".lock", "wb") as lock:
        yield try_lock(lock.fileno())


def _prefix(own: Path, split: str) -> str:
    """Return what the paths of the files of a split begin with."""
    return f"{own}/images-{split}"
