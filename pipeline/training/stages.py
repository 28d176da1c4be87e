"""Measures what the stages of the input cost: once before the first step of a training, or on request."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from pipeline import __version__
from pipeline.config.example_kinds import data_of
from pipeline.config.kept_images import keeps_decoded
from pipeline.dataset.manifest import Dataset
from pipeline.images.examine import Rules, UsableImage, examine
from pipeline.input.cache import cached_bytes, usable_memory
from pipeline.input.options import BatchOptions, batch_options
from pipeline.input.stage_costs import MAX_BYTES, Round, Sample, rounds, sample_of
from pipeline.records.format import ImageEncoder, RecordFormat, as_file, read_image
from pipeline.runs.files import STAGES, read_or_empty
from pipeline.runs.run import Run
from pipeline.storage import Place, write_json
from pipeline.system.host import host_facts
from pipeline.tuning.stages import MIN_ROUNDS, StageCosts, costs_from, costs_of, save_stages

MAX_CPU_S = 20.0
"""CPU seconds of a measurement."""
BUDGET = 0.02
"""A measurement takes at most this share of the CPU time of the input in the whole training."""
MIN_CPU_S = 5.0
"""A measurement needs about this many CPU seconds, half of them to make the graphs of the inputs."""
MIN_EXAMPLES = 20_000
"""A training of fewer examples, counted in each epoch that decodes, is over before a measurement would pay."""
Prepare = Literal["keep", "resize", "raw"]
FOLDER = "stages"
"""The folder of `local_folder` with the measurements of this machine."""
_log = logging.getLogger(__name__)


def measure_stages(
    folder: Place,
    dataset: Dataset,
    options: BatchOptions,
    max_cpu_s: float = MAX_CPU_S,
    *,
    prepare: Prepare | None = None,
    prepare_size: int = 256,
    go_on: Callable[[], bool] = lambda: True,
) -> StageCosts | None:
    """Return what the stages of the input cost on this machine; None if `max_cpu_s` is too little to know it.

    Args:
        folder: Folder of the dataset.
        dataset: Its content.
        options: How examples become batches. Of a cache, the epoch that fills it is measured.
        max_cpu_s: CPU seconds that it may take, once the images are prepared. It stops earlier if the intervals are
            narrow.
        prepare: Measures what the same images would cost if the dataset were built with this setting.
        prepare_size: Shorter side of the images, for `prepare`.
        go_on: Is called after each block, and returns whether to go on.
    """
    sample = sample_of(folder, dataset, seed=options.seed)
    if prepare:
        dataset, sample = prepared(dataset, sample, Rules(check="header", prepare=prepare, prepare_size=prepare_size))
    if not sample.records:  # A build would reject all images.
        return None
    return _measured(dataset, sample, options, lambda _: max_cpu_s, go_on)


def measure_at_start(run: Run, folder: Place, dataset: Dataset, go_on: Callable[[], bool]) -> None:
    """Measure the stages for a training that has not begun, and write them into its folder.

    A short training is not measured. An earlier measurement on this machine is used again. `go_on` is called after each
    block, and returns whether to go on. An error costs a warning only.
    """
    with only_warned("the costs of the input's stages are unknown"):
        if not (run.folder / STAGES).exists() and (costs := _costs_at_start(run, folder, dataset, go_on)):
            save_stages(run.folder, costs)
            _log.info("input: %s", costs.sentence(data_of(dataset.kind).noun))


@contextmanager
def only_warned(what: str) -> Iterator[None]:
    """Warn of an error in the block, and say what follows from it. The training can do without the block."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - whatever goes wrong
        _log.warning("%s: %s: %s", what, type(error).__name__, error)


def _costs_at_start(run: Run, folder: Place, dataset: Dataset, go_on: Callable[[], bool]) -> StageCosts | None:
    settings, server = run.settings, run.server
    options = replace(batch_options(settings), batch_size=settings.batch_size // server.count)
    fit_memory = cached_bytes(dataset, options, server.count) <= usable_memory()
    # If decoded images are kept, only the first epoch decodes them.
    epochs = 1 if keeps_decoded(settings, fit_memory=fit_memory) else settings.epochs
    examples = dataset.splits["train"].examples * epochs // server.count
    if examples < MIN_EXAMPLES:
        return None
    # Servers are compared, so each of them measures what its disk and its cores do now.
    cached = Path(settings.local_folder) / FOLDER / f"{_key(dataset, options)}.json" if server.count == 1 else None
    if cached and (known := costs_from(read_or_empty(cached))):
        return known
    sample = sample_of(folder, dataset, server, options.seed)
    costs = _measured(dataset, sample, options, lambda us: min(MAX_CPU_S, BUDGET * examples * us / 1e6), go_on)
    if cached and costs:
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_json(cached, asdict(costs))
    return costs


def _key(dataset: Dataset, options: BatchOptions) -> str:
    """Return a hash of what the costs depend on: the records, how they become batches, and the processor."""
    host = {name: value for name, value in host_facts().items() if name in ("processor", "usable_cores", "tensorflow")}
    of_batches = {name: getattr(options, name) for name in ("image_size", "batch_size", "crop", "min_crop_area")}
    content = {**host, **of_batches, "dataset": dataset.version, "tenfold": __version__}
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


def _measured(
    dataset: Dataset,
    sample: Sample,
    options: BatchOptions,
    budget: Callable[[float], float],
    go_on: Callable[[], bool] = lambda: True,
) -> StageCosts | None:
    """Return the costs of the stages. `budget` returns the CPU seconds for an example that takes some microseconds."""
    found: list[Round] = []
    costs = None
    with closing(rounds(dataset, sample, options, lambda us: budget(us) >= MIN_CPU_S)) as measured:
        for each in measured:
            found.append(each)
            costs = costs_of(
                [one.stages for one in found],
                read_us=sample.read_us,
                bytes_per_example=each.bytes_per_example,
                examples=sum(one.examples for one in found),
                cpu_s=each.cpu_s,
            )
            if not go_on():
                return None
            if (len(found) >= MIN_ROUNDS and costs.is_narrow) or each.cpu_s > budget(costs.total_us):
                break
    return costs if len(found) >= MIN_ROUNDS else None


def prepared(dataset: Dataset, sample: Sample, rules: Rules) -> tuple[Dataset, Sample]:
    """Return a sample of images as a dataset would hold it that is built with these rules, and its description."""
    records, size = list[bytes](), 0
    for record in prepared_records(dataset, sample.records, rules):
        records.append(record)
        size += len(record)
        if size >= MAX_BYTES:  # Stored pixels take many times the bytes of the JPEG.
            break
    return replace(dataset, records=_form(dataset, rules)), sample._replace(records=records)


def prepared_records(dataset: Dataset, records: Iterable[bytes], rules: Rules) -> Iterator[bytes]:
    """Yield each record as a dataset would hold it that is built with these rules, if the build takes the image."""
    encode = ImageEncoder(_form(dataset, rules), dataset.labels, dataset.texts).encode
    for record in records:
        before = read_image(record, dataset.records)
        image = examine(as_file(before), rules)
        if isinstance(image, UsableImage):
            labels = tuple(dataset.labels[label] for label in before.labels)
            yield encode(image, labels, before.filename) + image.encoded


def _form(dataset: Dataset, rules: Rules) -> RecordFormat:
    return replace(dataset.records, pixels="raw" if rules.prepare == "raw" else "encoded")
