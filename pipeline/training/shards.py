"""Where a training reads its shards: as files, or by local copies of what lies in a bucket."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from pipeline.config import Settings
from pipeline.dataset import Dataset
from pipeline.input import CYCLE, order_of_need
from pipeline.shard_cache import GIGABYTE, ShardCache, remote_shards
from pipeline.shard_reader import ShardReader
from pipeline.storage import Place


def open_reader(
    settings: Settings, folder: Place, dataset: Dataset, epochs: range, stopping: Callable[[], bool]
) -> AbstractContextManager[ShardReader | None]:
    """What hands out copies of the shards of these epochs; None where TensorFlow opens them where they are."""
    if isinstance(folder, Path) or settings.read_shards == "direct":
        return nullcontext()
    cache = ShardCache(Path(settings.local_folder) / "shards", int(settings.cache_gigabytes * GIGABYTE))
    order = order_of_need(dataset, settings.seed, epochs)
    return ShardReader(cache, remote_shards(folder, dataset), order, CYCLE, stopping)
