"""What a change of a setting would gain, and what it costs, predicted from what was measured of one training."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil, inf, log
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pipeline.config.automatic import TrainingSettings
from pipeline.config.example_kinds import IMAGES
from pipeline.config.kept_images import USABLE, can_keep, keeps_decoded, kept_bytes
from pipeline.config.settings import MAX_BATCH_SIZE, MAX_PREFETCHED
from pipeline.evaluation.estimates import Estimate
from pipeline.monitor.diagnosis import three_digits
from pipeline.monitor.limits import BUSY, FINE, Limit
from pipeline.monitor.verdict import Verdict
from pipeline.runs.changes import Change, values_in_words
from pipeline.runs.files import read_or_empty
from pipeline.runs.measured_caches import MeasuredCaches, load_caches
from pipeline.runs.measured_steps import MeasuredSteps, load_steps
from pipeline.runs.promises import Promise, epochs_since_change, last_change, verdict_since_change, widened
from pipeline.storage import Place
from pipeline.system.wording import format_size
from pipeline.tuning.contenders import prepared_size
from pipeline.tuning.rates import DRAWS, Draws, Rates, between, costs_us, drawn, estimate_of, observed
from pipeline.tuning.result import MIN_GAIN
from pipeline.tuning.stages import StageCosts, costs_from, load_stages

if TYPE_CHECKING:
    import pandas

PREPARED = "prepared_stages.json"
"""The file in the folder of a training with the costs of the stages if the dataset was prepared in another way, or of a
table, if batches were twice as large (`batch_size`)."""
FURTHER: Mapping[str, Sequence[Literal["resize", "raw"]]] = {"keep": ("resize", "raw"), "resize": ("raw",)}
"""The preparations that may follow each other."""
CORES, GIGABYTES = "cores", "gigabytes_per_second"
"""Changes of the hardware, which no setting makes."""
MORE_PREFETCHED = 4
"""How many times more batches are kept ready, if the input pauses."""
LOWEST_VALIDATION = 0.1
"""No smaller share of the examples for validation is predicted."""
OF_DATASET = ("prepare", "validation_fraction", "test_fraction")
"""Settings of which the value of the dataset counts. The training may have another one."""
FORWARD = 1 / 3
"""Share of the operations of a training step that a step of the validation makes: it has no backward pass, which takes
about twice as many as the forward pass (Kaplan et al. 2020)."""


@dataclass(frozen=True)
class Costs:
    """What a change costs."""

    disk_bytes: float = 0.0
    core_hours: float = 0.0
    minutes: float = 0.0
    """One-time, on the cores of this training."""
    memory_bytes: float = 0.0
    words: str = ""
    """What else changes, such as the augmentation."""


@dataclass(frozen=True)
class Prediction:
    """A change, and what it gains."""

    change: Mapping[str, Any]
    """Settings and their new values, or `cores` and `gigabytes_per_second`."""
    factor: Estimate
    """Ratio of the examples per second of the whole training, with its validation and callbacks, in a later period to
    those in the measured one."""
    factor_of_period: Estimate
    """The same ratio if the training ran in one period with and without the change."""
    costs: Costs = field(default_factory=Costs)
    needs_dataset: bool = False
    """Whether it needs a new version of the dataset."""
    at_epoch: bool = False
    """Whether it can be made at the next epoch of the running training."""

    @property
    def is_gain(self) -> bool:
        """Whether `factor` is at least `MIN_GAIN`, and the interval of `factor_of_period` is above 1."""
        return self.factor.value >= MIN_GAIN and self.factor_of_period.low > 1 + 1e-6

    @property
    def is_hardware(self) -> bool:
        """Whether no setting makes the change."""
        return bool({CORES, GIGABYTES} & self.change.keys())

    @property
    def action(self) -> str:
        """What to do, with the settings."""
        name, value = next(iter(self.change.items()))
        return f"{_ACTIONS.get(value) or _ACTIONS[name]} ({values_in_words(self.change)})"

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints."""
        factors = {name: getattr(self, name)._asdict() for name in ("factor", "factor_of_period")}
        return {**asdict(self), "change": dict(self.change), **factors, "is_gain": self.is_gain}

    def words(self) -> str:
        """Return how much faster the training would be, and for which price."""
        value, low, high = (f"{each:.3g}" for each in self.factor)
        price = f", for {self.price}" if self.price else ""
        slow = "a later period may be slow, with it and without it" if self.factor.low <= 1 else ""
        return "; ".join(filter(None, [f"{value} times faster ({low} to {high}){price}", slow, self.costs.words]))

    @property
    def price(self) -> str:
        """What the change costs, in words; empty if it costs nothing."""
        costs = self.costs
        parts = [f"{three_digits(max(costs.minutes, 0.1))} minutes"] if costs.minutes else []
        sizes = (costs.disk_bytes, "of disk space"), (costs.memory_bytes, "of memory")
        return " and ".join([*parts, *(f"{format_size(size)} {of}" for size, of in sizes if size)])


_ACTIONS: Mapping[Any, str] = {
    "resize": "resize the images once when the dataset is built",
    "raw": "store pixels when the dataset is built",
    "cache": "keep decoded images for the epochs after the first",
    "prefetch_batches": "keep more batches ready",
    "validation_fraction": "use fewer validation examples",
    "checkpoint_steps": "write fewer checkpoints",
    "checkpoint_minutes": "write fewer checkpoints",
    "batch_size": "use larger batches",
    "precision": "compute in half precision",
    "xla": "compile the steps with XLA",
    CORES: "use more cores",
    GIGABYTES: "read from a faster disk or network",
}
"""What to do, by the setting or its value."""


@dataclass(frozen=True)
class Facts:
    """What is known of a training."""

    verdict: Verdict
    settings: TrainingSettings
    """With the values of `OF_DATASET` of the dataset that it reads."""
    train_examples: int = 0
    validation_examples: int = 0
    memory_bytes: float = 0.0
    """Memory that was free before the training; 0 if unknown."""
    stages: StageCosts | None = None
    """The costs of the input's stages; None if they were not measured."""
    prepared: Mapping[str, StageCosts] = field(default_factory=dict)
    """The same if the dataset was prepared in another way, by the setting `prepare`, or by the name `batch_size`, of
    batches of twice the size."""
    prepared_core_s: Mapping[str, float] = field(default_factory=dict)
    """Processor seconds to prepare an image, by the setting `prepare`."""
    steps: MeasuredSteps | None = None
    """What was measured of the steps without the input; None if nothing was."""
    caches: MeasuredCaches | None = None
    """What was measured of kept images; None if nothing was."""
    test_examples: int = 0
    drawn_examples: int = 0
    """Examples from which `validation_fraction` chose the validation split; 0 if the source chose it."""
    kept: Sequence[Promise] = ()
    """What came of earlier predictions on the same machine."""
    epochs: "pandas.DataFrame | None" = None
    """The `whole_epochs` of its record; None if its verdict is about whole epochs."""

    @property
    def decoded_bytes(self) -> int:
        """Bytes of all decoded images."""
        size, crop = self.settings.image_size, self.settings.crop
        return kept_bytes(size, crop, train=self.train_examples, validation=self.validation_examples)

    @property
    def fits_memory(self) -> bool:
        """Whether the decoded images fit in memory, as pipeline/input/cache.py decides it."""
        return self.decoded_bytes <= (self.memory_bytes or inf) * USABLE

    @property
    def keeps_decoded(self) -> bool:
        """Whether the training keeps decoded images, so that one of its epochs decodes them, and the others do not."""
        return keeps_decoded(self.settings, fit_memory=self.fits_memory)

    @property
    def decodes_first(self) -> bool:
        """Whether the first epoch of the training decodes the images for all others."""
        return self.keeps_decoded and self.settings.epochs > 1

    @property
    def is_predictable(self) -> bool:
        """Whether anything can be predicted. Of several servers, the record says too little of each one."""
        is_alone = self.settings.num_training_servers == 1
        return is_alone and self.verdict.examples_per_s > 0 and self.verdict.limit is not Limit.UNKNOWN

    @property
    def all_examples(self) -> int:
        """Examples that a new version of the dataset would hold."""
        return self.train_examples + self.validation_examples + self.test_examples


def with_dataset(settings: TrainingSettings, dataset: Mapping[str, Any]) -> TrainingSettings:
    """Return the settings of a training with the values of `OF_DATASET` in `dataset`, the settings of its dataset."""
    return settings.model_copy(update={name: dataset[name] for name in OF_DATASET if name in dataset})


def facts_of(
    verdict: Verdict,
    settings: TrainingSettings,
    dataset: Mapping[str, Any],
    examples: Mapping[str, int],
    *,
    folder: Place,
    memory_bytes: float = 0.0,
    kept: Sequence[Promise] = (),
    epochs: "pandas.DataFrame | None" = None,
) -> Facts:
    """Return what is known of a training, with the costs of the stages that are in its folder.

    `dataset` has the settings of the dataset, and `examples` the number of examples of each split. `kept` are earlier
    promises on the same machine, and `epochs` the `whole_epochs` of the record.
    """
    train, validation, test = (examples.get(split, 0) for split in ("train", "validation", "test"))
    settings = with_dataset(settings, dataset)
    drawn = train + validation + (test if settings.test_fraction else 0)
    expected = settings.validation_fraction * drawn
    try:
        prepared = {
            name: (costs_from(each["costs"]), float(each["core_s"]))
            for name, each in read_or_empty(folder / PREPARED).items()
        }
    except (TypeError, KeyError, ValueError):  # Another user of the folder damaged it.
        prepared = {}
    return Facts(
        verdict,
        settings,
        train,
        validation,
        memory_bytes,
        load_stages(folder),
        {name: costs for name, (costs, _) in prepared.items() if costs},
        {name: core_s for name, (_, core_s) in prepared.items()},
        load_steps(folder),
        load_caches(folder),
        test_examples=test,
        # A hash chooses, so that the share of the split is only about that of the setting.
        drawn_examples=drawn if abs(validation - expected) < expected / 4 else 0,
        kept=kept,
        epochs=epochs,
    )


def since_change(facts: Facts, folder: Path, changes: Sequence[Change]) -> Facts:
    """Return facts, whose verdict is on the whole record in `folder`, with the part of it that has one regime.

    It begins after the last change of a setting, and after the epoch that decodes the images that are kept.
    """
    decodes_first = facts.decodes_first
    if last_change(changes, decodes_first):
        facts = replace(facts, verdict=verdict_since_change(folder, changes, decodes_first))
    return replace(facts, epochs=epochs_since_change(folder / "record", changes, decodes_first))


@dataclass(frozen=True)
class Hardware:
    """Hardware that is not here. What is None is as it was measured."""

    cores: float | None = None
    step_ms: float | None = None
    bytes_per_s: float | None = None


def rates_on(facts: Facts, hardware: Hardware) -> Rates:
    """Return the rates of a training on some hardware."""
    verdict = facts.verdict
    us_of_ms = 1e6 / (verdict.examples_per_s * verdict.step_ms)
    # The stages of an epoch that decodes say nothing about one that takes its images from a cache.
    stages = None if facts.keeps_decoded else facts.stages
    rates = observed(
        verdict,
        stages,
        facts.epochs,
        # On a GPU, its use says how long it computes.
        None if verdict.load.has_gpu or verdict.is_simulated else facts.steps,
        simulated_us=us_of_ms * facts.settings.simulated_step_ms,
        validation_ratio=facts.validation_examples / max(facts.train_examples, 1),
    )
    if hardware.step_ms is not None:
        rates = replace(rates, compute_us=np.full(DRAWS, us_of_ms * hardware.step_ms))
        if not verdict.load.has_gpu and not verdict.is_simulated:
            # The steps no longer use the cores, but for the thread that sends them.
            sending_us = between(0.0, rates.compute_us + rates.host_us, "sending")
            rates = replace(rates, other_us=np.minimum(rates.other_us, sending_us))
    if hardware.cores is not None:
        rates = _with_cores(rates, hardware.cores / (verdict.load.usable_cores or 1.0), facts, hardware)
    if hardware.bytes_per_s is not None:
        rates = replace(rates, bytes_per_us=np.full(DRAWS, hardware.bytes_per_s / 1e6))
    return rates


def _with_cores(rates: Rates, ratio: float, facts: Facts, hardware: Hardware) -> Rates:
    on_cores = not facts.verdict.load.has_gpu and not facts.verdict.is_simulated and hardware.step_ms is None
    before = facts.verdict.load.usable_cores or 1.0
    sure = min(before * ratio, 1) / min(before, 1)  # Even one thread uses all of a share of a core.
    if on_cores:
        # More cores help all steps as much as they help all operations, or not at all; fewer of them hold these up.
        left = between(min(1 / ratio, 1 / sure), max(1 / ratio, 1 / sure), "more")
        less_us = rates.validation_us * (1 - left)
        rates = replace(rates, validation_us=rates.validation_us - less_us, between_us=rates.between_us - less_us)
        rates = replace(rates, compute_us=rates.compute_us * left)
    serial_us = np.maximum(rates.serial_us, _hidden_us(facts, rates)) if ratio > 1 else rates.serial_us
    # As in any training, some of the time of the further cores is lost between two tasks.
    gained = sure - 1 + (ratio - sure) * (between(BUSY, 1.0, "gained") if ratio > 1 else 1)
    return replace(rates, cores=rates.cores * (1 + gained), serial_us=serial_us)


def _hidden_us(facts: Facts, rates: Rates) -> Draws:
    """Return the time of a stage that more cores do not make faster, and that fewer cores may have hidden.

    Such a stage is one thread, so it needs at most the time in which the busiest thread was busy. It does no more than
    read examples and make batches of them.
    """
    busiest_us = (facts.verdict.load.busiest_thread or 0.0) / 100 * 1e6 / facts.verdict.examples_per_s
    most_us = np.minimum(busiest_us, rates.supply_us)
    if facts.stages is not None:
        most_us = np.minimum(most_us, facts.stages.in_turn_us * rates.inflation)
    return between(0.0, most_us, "hidden")


def predictions(facts: Facts, hardware: Hardware | None = None) -> list[Prediction]:
    """Return what each change would gain, the best one first: it leaves the shortest training, with its one-time cost.

    Of changes that leave about the same time, the one that needs the least space comes first. Changes of the hardware
    come last. Empty if the steps of the training say too little, or if it has several servers.
    """
    if not facts.is_predictable:
        return []
    hardware = hardware or Hardware()
    rates = rates_on(facts, hardware)
    found = [
        *_preparations(facts, rates),
        *_caches(facts, rates),
        *_more_prefetched(facts, rates),
        *_less_validation(facts, rates),
        *_fewer_checkpoints(facts, rates),
        *_larger_batches(facts, rates),
        *(() if hardware.step_ms else _other_steps(facts, rates)),
        *_more_hardware(facts, rates, hardware),
    ]
    kept = facts.kept
    found = [
        replace(each, factor=widened(each.factor, kept), factor_of_period=widened(each.factor_of_period, kept))
        for each in found
    ]
    training_minutes = facts.settings.epochs * facts.train_examples * float(np.median(rates.whole_us)) / 60e6

    def order(each: Prediction) -> tuple[bool, int, float]:
        left = 1 / each.factor.value + (each.costs.minutes / training_minutes if training_minutes else 0.0)
        # Times that differ by less than MIN_GAIN are about the same.
        space = each.costs.disk_bytes + each.costs.memory_bytes
        return each.is_hardware, round(log(left) / log(MIN_GAIN)), space

    return sorted(found, key=order)


def _gain(before: Rates, after_us: Draws) -> tuple[Estimate, Estimate]:
    """Return `factor` and `factor_of_period` of a change with which an example takes this long in a later period."""
    return estimate_of(before.whole_us / after_us), estimate_of(before.later_us() / after_us)


def _preparations(facts: Facts, rates: Rates) -> Iterator[Prediction]:
    settings = facts.settings
    size = prepared_size(settings.image_size)
    for prepare, costs in facts.prepared.items():
        if facts.stages is None or prepare not in FURTHER.get(settings.prepare, ()):
            continue
        after = rates.with_costs(costs)
        if facts.keeps_decoded:
            after_us = rates.later_us() - _saved_once_us(facts, rates, facts.stages, costs)
        else:
            # A real validation decodes, too, for a part of its time that was not measured.
            most = 0.0 if facts.verdict.is_simulated else 1 - np.minimum(after.steps_us / rates.steps_us, 1)
            saved_us = between(0.0, most, "validation") * rates.validation_us
            after_us = after.later_us(between_us=rates.between_us - saved_us)
        words = f"crops are cut from images whose shorter side has {size} pixels"
        words += ", so that small crops are enlarged more" if settings.crop == "random_resized" else ""
        if costs.bytes_per_example > facts.stages.bytes_per_example and not facts.keeps_decoded:
            # How much the disk or network can do is not known if it was not the limit.
            needed = 1e6 * costs.bytes_per_example / float(np.median(after.steps_us))
            words += f", and the disk or network must deliver {format_size(needed)} per second"
        yield Prediction(
            {"prepare": prepare, "prepare_size": size},
            *_gain(rates, after_us),
            _costs_of_dataset(facts, costs.bytes_per_example, facts.prepared_core_s.get(prepare, 0.0), words),
            needs_dataset=True,
        )


def _costs_of_dataset(facts: Facts, bytes_per_example: float, core_s: float, words: str) -> Costs:
    """Return what a new version of the dataset costs, if an example takes `core_s` seconds of a core."""
    core_s *= facts.all_examples
    return Costs(
        disk_bytes=bytes_per_example * facts.all_examples,
        core_hours=core_s / 3600,
        minutes=core_s / 60 / (facts.verdict.load.usable_cores or 1.0),
        words=words,
    )


def _saved_once_us(facts: Facts, rates: Rates, stages: StageCosts, costs: StageCosts) -> Draws:
    """Return what is saved later if images are kept, and the epoch that decodes them had an input of these costs."""
    saved_us = np.maximum(costs_us(stages) - costs_us(costs), 0) / rates.cores
    # A step may hide all of it. Less than the time of an epoch can be saved in it.
    return between(0.0, np.minimum(saved_us, rates.steps_us), "filled once") * rates.drift / facts.settings.epochs


def _caches(facts: Facts, rates: Rates) -> Iterator[Prediction]:
    """Yield what it gains to keep decoded images, in the epochs after the first."""
    settings, stages = facts.settings, facts.stages
    if not can_keep(settings) or facts.keeps_decoded or settings.epochs < 2 or stages is None:
        return
    kept_bytes = facts.decoded_bytes
    each_bytes = kept_bytes / max(facts.train_examples + facts.validation_examples, 1)
    kept = on_disk = _kept(rates, stages, each_bytes)
    # The buffer that shuffles images in memory holds all of them, and is filled before the first batch of an epoch.
    filled_us = between(0.0, stages.us["batch"].value, "filled")
    words = "crops are cut from one decoded copy of each image, at the scale of the model"
    first = {"memory": rates, "disk": rates}
    if measured := facts.caches:
        first["disk"] = _with_stage(rates, measured.write_us, measured.write_us)
        on_disk = _with_stage(kept, drawn(measured.read_cpu_us, "read") * rates.inflation, measured.read_us)
        filled_us = np.full(DRAWS, measured.fill_us)
    later = {"memory": kept.later_us() + filled_us} if facts.fits_memory else {}
    if facts.fits_memory or Limit.READING not in facts.verdict.limits:
        later["disk"] = on_disk.later_us()
    if not facts.fits_memory:  # Then the page cache does not hold the files either.
        needed = 1e6 * each_bytes / float(np.median(kept.steps_us))
        words += f", and the local disk must deliver {format_size(needed)} per second"
    for cache, later_us in later.items():
        mean_us = (first[cache].later_us() + (settings.epochs - 1) * later_us) / settings.epochs
        size = {"memory_bytes" if cache == "memory" else "disk_bytes": float(kept_bytes)}
        costs = Costs(**size, words=words)
        yield Prediction({"cache": cache}, *_gain(rates, mean_us), costs, at_epoch=facts.fits_memory)


def _with_stage(rates: Rates, cpu_us: "float | Draws", serial_us: float) -> Rates:
    """Return the rates with one more stage of the input, which takes this long for one example after another."""
    return replace(rates, input_us=rates.input_us + cpu_us, serial_us=np.maximum(rates.serial_us, serial_us))


def _kept(rates: Rates, stages: StageCosts, decoded_bytes: float) -> Rates:
    """Return the rates of an epoch that takes its images from a cache: they are copied, cropped and batched."""
    read, batch = (stages.us.get(name, Estimate(0.0, 0.0, 0.0)).value for name in ("read", "batch"))
    copied = read * decoded_bytes / max(stages.bytes_per_example, 1.0)
    input_us = (batch + between(0.0, copied, "kept")) * rates.inflation
    return replace(rates, input_us=np.minimum(input_us, rates.input_us), bytes_per_example=np.zeros(DRAWS))


def more_prefetched(settings: TrainingSettings) -> int:
    """Return the value of `prefetch_batches` that bridges more pauses."""
    return min(MORE_PREFETCHED * settings.prefetch_batches, MAX_PREFETCHED)


def _more_prefetched(facts: Facts, rates: Rates) -> Iterator[Prediction]:
    """Yield what more ready batches gain, if the input pauses: the pauses of the record, bridged."""
    verdict, settings = facts.verdict, facts.settings
    if Limit.BUFFER not in verdict.limits or not verdict.bridged_ms or not verdict.wait_ms:
        return
    batches = more_prefetched(settings)
    batch_bytes = 3.0 * settings.image_size**2 * settings.batch_size if settings.example_kind == IMAGES else 0.0
    more_bytes = batch_bytes * (batches - settings.prefetch_batches)
    if batches == settings.prefetch_batches or more_bytes > (facts.memory_bytes or inf) * USABLE:
        return
    left_ms = np.interp(batches - settings.prefetch_batches, [*verdict.bridged_ms], [*verdict.bridged_ms.values()])
    saved_us = 1e3 * (verdict.wait_ms - left_ms) * (1e6 / verdict.examples_per_s) / (1e3 * verdict.step_ms)
    steps_us = np.maximum(rates.steps_us - saved_us, np.maximum(rates.step_us, rates.supply_us))
    yield Prediction(
        {"prefetch_batches": batches},
        *_gain(rates, rates.later_us(steps_us)),
        Costs(memory_bytes=more_bytes),
        at_epoch=True,
    )


def _less_validation(facts: Facts, rates: Rates) -> Iterator[Prediction]:
    # Before an epoch has ended, no validation is certain.
    share, count = float(np.min(rates.validation_us) / np.median(rates.whole_us)), facts.validation_examples
    validation = LOWEST_VALIDATION * facts.drawn_examples
    if not facts.drawn_examples or share < FINE or count <= validation * MIN_GAIN:
        return
    in_epoch_us = rates.validation_us * facts.train_examples
    # A simulated validation makes the same steps. The rest of its time is its start, whatever the number of examples.
    least_us = np.minimum((1 if facts.verdict.is_simulated else FORWARD) * rates.compute_us, in_epoch_us / count)
    each_us = least_us if facts.verdict.is_simulated else between(least_us, in_epoch_us / count, "start")
    between_us = rates.between_us * facts.train_examples - each_us * (count - validation)
    train = facts.train_examples + count - validation
    after = replace(rates, checkpoints_us=rates.checkpoints_us * facts.train_examples / train)
    # A build reads, decodes and writes an example in about the time in which the input makes it.
    size, core_s = (facts.stages.bytes_per_example, facts.stages.total_us / 1e6) if facts.stages else (0.0, 0.0)
    words = f"{validation:,.0f} instead of {count:,} examples judge each epoch, in a new version of the dataset"
    yield Prediction(
        {"validation_fraction": LOWEST_VALIDATION},
        *_gain(rates, after.later_us(between_us=between_us / train)),
        _costs_of_dataset(facts, size, core_s, words),
        needs_dataset=True,
    )


def _fewer_checkpoints(facts: Facts, rates: Rates) -> Iterator[Prediction]:
    settings, share = facts.settings, np.median(rates.waited_us / rates.whole_us)
    if share < FINE:
        return
    steps = ceil(facts.train_examples / settings.batch_size)
    epoch_minutes = facts.train_examples * float(np.median(rates.whole_us)) / 60e6
    of_steps = steps / settings.checkpoint_steps if settings.checkpoint_steps else 0.0
    of_time = epoch_minutes / settings.checkpoint_minutes if settings.checkpoint_minutes else 0.0
    if max(of_steps, of_time) < 1:
        return
    # One of the checkpoints of an epoch is written at its end in any case, and the other interval stays.
    left = max(1.0, min(of_steps, of_time))
    change = {"checkpoint_steps": 0} if of_steps >= of_time else {"checkpoint_minutes": 0.0}
    words = f"a killed training repeats up to {steps / left:,.0f} steps"
    after = replace(rates, waited_us=rates.waited_us * left / max(of_steps, of_time))
    yield Prediction(change, *_gain(rates, after.later_us()), Costs(words=words), at_epoch=True)


def _larger_batches(facts: Facts, rates: Rates) -> Iterator[Prediction]:
    """Yield what a batch of twice the size gains: half of the work of the loop, and cheaper rows if measured so."""
    # How long a serial stage would take is not known.
    is_known = facts.stages is not None and Limit.SERIAL not in facts.verdict.limits
    costs = facts.prepared.get("batch_size") if is_known else None
    twice = 2 * facts.settings.batch_size
    is_possible = twice <= min(MAX_BATCH_SIZE, facts.train_examples)
    if not is_possible or (costs is None and Limit.HOST not in (*facts.verdict.limits, rates.limit())):
        return
    words = "fewer and larger updates of the weights, which may need another learning_rate"
    after = replace(rates.with_costs(costs) if costs else rates, host_us=rates.host_us / 2)
    yield Prediction({"batch_size": twice}, *_gain(rates, after.later_us()), Costs(words=words))


def _other_steps(facts: Facts, rates: Rates) -> Iterator[Prediction]:
    """Yield what another precision, or XLA, gains, of which steps were measured."""
    for each in facts.steps.ratios if facts.steps else ():
        ratio = drawn(each.ratio, "ratio of steps")
        # On the CPU, the step needs the same cores as the input.
        other_us = rates.other_us * (1 if facts.verdict.load.has_gpu else ratio)
        after = replace(rates, compute_us=rates.compute_us * ratio, other_us=other_us)
        # A validation has no backward pass, so how much of the difference is its own was not measured.
        saved_us = between(0.0, 1 - ratio, "validation") * rates.validation_us
        gain = _gain(rates, after.later_us(between_us=rates.between_us - saved_us))
        words = "check the loss, which is computed less exactly" if "precision" in each.change else ""
        yield Prediction(each.change, *gain, Costs(minutes=each.start_s / 60, words=words))


def _more_hardware(facts: Facts, rates: Rates, hardware: Hardware) -> Iterator[Prediction]:
    """Yield what twice the cores, or twice the bytes per second, gain."""
    usable = hardware.cores or facts.verdict.load.usable_cores
    if usable:
        yield Prediction({CORES: 2 * usable}, *_gain(rates, _with_cores(rates, 2.0, facts, hardware).later_us()))
    speed = float(np.median(rates.bytes_per_us)) / 1e3
    if np.isfinite(speed) and speed:
        faster = replace(rates, bytes_per_us=2 * rates.bytes_per_us)
        yield Prediction({GIGABYTES: 2 * speed}, *_gain(rates, faster.later_us()))
