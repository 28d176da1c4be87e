"""The input of a training, which changes between two of its epochs if somebody requested that."""

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeAlias

import tensorflow as tf

from pipeline import storage
from pipeline.config.automatic import TrainingSettings
from pipeline.config.declarations import ChangesReading
from pipeline.config.settings import declared
from pipeline.errors import SettingsError, TenfoldError
from pipeline.runs.changes import (
    ADVICE,
    BUILD,
    DATASET,
    Change,
    InEffect,
    as_numbers,
    checked,
    first_epoch,
    from_numbers,
    in_effect,
    load_changes,
    replace_changes,
    request_changes,
    save_copy,
)
from pipeline.runs.promises import prove
from pipeline.training.assembly import Training
from pipeline.training.inputs import Inputs, ServerData
from pipeline.training.step.loop import Batch, NumberedBatch
from pipeline.training.step.simulated import batches_without_data
from pipeline.training.step.strategy import all_agree, batches_ahead, broadcast, taken_ahead

BestChanges: TypeAlias = Callable[[TrainingSettings, int], Sequence[Mapping[str, Any]]]
"""Takes the settings of the last epoch and the number of epochs that are left, and returns changes that would make
these faster, the best one first."""
READ_S = 4.0
"""Before an epoch, the requests are read for at most this many seconds. In an outage of the bucket, no epoch waits for
minutes: a request can wait for the next epoch."""
_log = logging.getLogger(__name__)


class CurrentInput:
    """The input of a training from one of its epochs on. All servers must use it together.

    It is one input for all epochs: each epoch would otherwise begin with empty buffers. Only a change opens it again.
    """

    inputs: Inputs
    batches: Generator[NumberedBatch]
    """The training batches, or stacks of them, each taken one step ahead."""
    validation: Iterable[Batch]

    def __init__(self, training: Training, data: ServerData) -> None:
        """Take the changes of earlier attempts. `begin` opens the input."""
        self._training, self._data = training, data
        self._run = training.run
        self.effect = InEffect(self._run.settings)
        self._opened = ExitStack()
        self.reading = ExitStack()
        """At its end, no more training batches are taken ahead. The validation batches stay."""
        self._is_open = False
        self.openings = 0
        """How often the input was opened."""
        self._taken: list[Change] = []
        """The changes that the training has taken or refused. Only server 0 knows them."""
        self._unread_epoch = 0
        """The last epoch before which the changes could not be read; 0 if there is none."""
        self._keeps = training.start.keeps
        """Whether decoded images are kept as the settings say; None if that is not decided yet."""
        if self._run.server.is_chief:
            self._taken = [change for change in load_changes(self._run.training) if not change.is_requested]
            save_copy(self._run.folder, self._run.training, self._taken)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The disk cache looks at the error: it may come from damaged files.
        self.reading.close()
        self._opened.__exit__(kind, error, trace)

    def begin(self, epoch: int, step: int) -> bool:
        """Begin an epoch (from 1) after `step` training steps. Return whether its values or its input are new.

        Changes that were requested are taken if the epoch has no step yet, and not with advice=off. Those that an
        earlier attempt took hold in any case: the examples of its epochs depend on them.
        """
        before = self.effect
        has_begun = step > (epoch - 1) * self._training.steps_per_epoch
        self._take_changes(epoch, has_begun)
        is_opened = not self._is_open or _of_input(self.effect) != _of_input(before)
        if is_opened:
            self._open(step)
        return is_opened or self.effect != before

    def request(self, epoch: int, best_changes: BestChanges) -> None:
        """With advice=apply, request the first of the `best_changes` for an epoch that was not requested before.

        A setting whose change was requested before keeps its value, whoever requested it, also if it was refused.
        While another change waits for the epoch, none is requested: the record could not tell which one made the
        difference.
        """
        self._prove(epoch)
        found = best_changes(self.effect.settings, self._run.settings.epochs - epoch + 1)
        if self._run.settings.advice != "apply" or not self._run.server.is_chief:
            return
        stored = self._stored(epoch)
        if stored is None or any(change.is_requested and change.field != BUILD for change in stored):
            return
        requested = {change.field for change in stored}
        try:
            if best := next((change for change in found if not requested & change.keys()), {}):
                request_changes(self._run.training, best, ADVICE, self._run.folder)
        except (TenfoldError, OSError) as error:
            _log.warning("the change that gains most cannot be requested: %s", error)

    def is_continued(self, epoch: int, step: int) -> bool:
        """Return whether another training continues this one from an epoch (from 1) on, which has begun with no step.

        At least one epoch is trained here. True on all servers but 0.
        """
        if not self._run.server.is_chief:
            return True
        has_begun = step > (epoch - 1) * self._training.steps_per_epoch
        if epoch <= first_epoch(self._taken) or has_begun:
            return False
        takes_changes = self._run.settings.advice != "off"
        requested = self._requested(epoch) if takes_changes else {}
        if answers := {asked: answer for asked, answer in requested.items() if asked.field == DATASET}:
            self._answer(answers)
        # An attempt that goes on after a kill must end before the same epoch, also with advice=off.
        return any(each.field == DATASET and 0 < each.epoch <= epoch for each in self._taken)

    def refuse_rest(self, is_early: bool) -> None:
        """Refuse what was requested in the last epoch, which nothing follows. `is_early`: others were left."""
        if self._run.server.is_chief and self._run.settings.advice != "off":
            self._unread_epoch = 0  # An epoch or the evaluation has passed since the last read, so another one is made.
            why = "the training has ended early" if is_early else "the training was in its last epoch"
            if any(change.field == DATASET and not change.refused for change in self._taken):
                why = "another training continues this one: request it there"
            if requested := self._requested(self._run.settings.epochs):
                self._answer({each: replace(each, refused=why) for each in requested})

    def _prove(self, epoch: int) -> None:
        """Measure what a change has gained, after its first epochs. At its end, the training measures all of them.

        The whole record is read for it. What a cache gains shows only at the end. In an outage of the bucket, all of it
        shows only then.
        """
        if epoch != self._unread_epoch and any(
            change.promised
            and change.field != "cache"
            # The first epoch opens its input again, so that the second one says more.
            and (epoch == change.epoch + 2 or (epoch == change.epoch + 1 and not change.measured))
            for change in self._taken
        ):
            try:
                proved = prove(
                    self._run.folder, self._run.training, self._run.settings.epochs, self._run.continued_folder
                )
            except (TenfoldError, OSError) as error:
                _log.warning("what the changes have gained cannot be stored: %s", error)
            else:
                self._taken = [change for change in proved if not change.is_requested]

    def _take_changes(self, epoch: int, has_begun: bool) -> None:
        """Set what the epoch is trained with. The servers agree on it, and server 0 writes it before they do so."""
        settings, is_chief = self._run.settings, self._run.server.is_chief
        # An attempt that only evaluates begins behind the last epoch.
        takes_changes = settings.advice != "off" and is_chief and not has_begun and epoch <= settings.epochs
        requested = self._requested(epoch) if takes_changes else {}
        answers = {asked: answer for asked, answer in requested.items() if asked.field not in (BUILD, DATASET)}
        wanted = self._shared(in_effect(settings, [*self._taken, *answers.values()], epoch))
        if not has_begun and (field := _keeps_anew(self.effect, wanted, epoch)):
            refusal = replace(self._data, settings=wanted.settings, kept_from=epoch).refusal_to_keep()
            if not self._all_agree(not refusal):
                why = refusal or "another training server cannot keep the images"
                together = {(asked.at, asked.by) for asked in answers if asked.field == field}
                answers = {
                    asked: replace(asked, refused=why) if (asked.at, asked.by) in together else answer
                    for asked, answer in answers.items()
                }
        if answers:
            self._answer(answers)
        self.effect = self._shared(in_effect(settings, self._taken, epoch)) if wanted != self.effect else wanted

    def _requested(self, epoch: int) -> dict[Change, Change]:
        """Return the changes that were requested since the last epoch began, and the answer to each of them."""
        # The stored one may have been measured since.
        known = {replace(change, measured=0.0) for change in self._taken}
        stored = [change for change in self._stored(epoch) or () if not change.refused]
        requested = [change for change in stored if replace(change, measured=0.0) not in known]
        # An attempt that goes on from an earlier checkpoint must not take a new change before the ones it knows.
        epoch = max(epoch, *(change.epoch for change in self._taken), 0)
        return {change: self._answer_to(change, epoch) for change in requested}

    def _stored(self, epoch: int) -> list[Change] | None:
        """Return the changes in the file; None if they cannot be read before an epoch (from 1).

        They are read several times before each epoch. After a read that failed, the epoch waits for no other one.
        """
        if epoch == self._unread_epoch:
            return None
        place = self._run.training

        def read() -> list[Change]:
            storage.refresh(place)
            return load_changes(place)

        try:
            return storage.within(place, READ_S, read)
        except (TenfoldError, OSError) as error:
            _log.warning(
                "changes that were requested cannot be read before epoch %d, so the training goes on without them: %s",
                epoch,
                error,
            )
            self._unread_epoch = epoch
            return None

    def _answer_to(self, change: Change, epoch: int) -> Change:
        if change.field in (BUILD, DATASET):
            return replace(change, epoch=epoch)
        try:
            value = checked(self._run.settings, change.field, change.value)
            return replace(change, value=value, epoch=epoch)
        except SettingsError as error:
            return replace(change, refused=str(error))

    def _answer(self, answers: Mapping[Change, Change]) -> None:
        """Write the answers. If that fails, the changes are not taken, and the next epoch tries again."""
        try:
            replace_changes(self._run.training, answers)
        except (TenfoldError, OSError) as error:
            _log.warning("changes that were requested cannot be taken: %s", error)
            return
        self._taken += answers.values()
        save_copy(self._run.folder, self._run.training, self._taken)
        for answer in answers.values():
            _log.info("%s", answer)

    def _shared(self, effect: InEffect) -> InEffect:
        """Return what server 0 says."""
        if self._run.server.count == 1:
            return effect
        numbers = tf.constant(as_numbers(effect), tf.float64)
        [shared] = broadcast([numbers], self._training.strategy)
        return from_numbers(self._run.settings, shared.numpy().tolist())

    def _all_agree(self, answer: bool) -> bool:
        return answer if self._run.server.count == 1 else all_agree(answer, self._training.strategy)

    def _open(self, step: int) -> None:
        """Open the input from a step on, in place of the one before."""
        if self._is_open:
            self.reading.close()
            del self.inputs, self.batches, self.validation  # They may hold all images in memory.
            self._opened.close()
        training = self._training
        settings, kept_from = self.effect
        if (kept_from > 1 or self._is_open) and settings.cache in ("memory", "off"):
            # The servers have agreed on it. Neither an attempt that goes on, nor an input that is opened again for
            # another change, must decide by the memory that is free then.
            self._keeps = settings.cache == "memory"
            settings = settings.model_copy(update={"cache": "auto"})
        data = replace(self._data, settings=settings, kept_from=kept_from)
        if self._keeps is None and self._run.server.count > 1:  # A single server decides alone.
            self._keeps = data.agreed_to_keep(training.strategy)
        may_stack = training.steps.train_several is not None
        opened = data.open(step, self._keeps, batches_ahead(training.strategy), may_stack=may_stack)
        self.inputs = self._opened.enter_context(opened)
        self.openings += 1
        self._keeps = self.inputs.keeps
        self.batches = taken_ahead(self.inputs.training, training.batch_size, training.strategy)
        self.reading.enter_context(closing(self.batches))
        self.validation = training.on_devices(self.inputs.validation)
        if self._run.settings.simulated_step_ms:
            self.validation = batches_without_data(int(self.inputs.validation.cardinality()))
        self._is_open = True


def _keeps_anew(before: InEffect, after: InEffect, epoch: int) -> str:
    """Return the changed setting that makes an epoch decode and keep all images again; empty if none does."""
    if after == before:
        return ""
    if after.kept_from == epoch:
        return "cache"
    # Kept images have the order in which they were decoded.
    is_other = after.settings.shuffle_megabytes != before.settings.shuffle_megabytes
    return "shuffle_megabytes" if is_other and after.settings.cache == "disk" else ""


def _of_input(effect: InEffect) -> list[Any]:
    """Return the values that the input depends on."""
    return [effect.kept_from, *(getattr(effect.settings, field) for field in declared(ChangesReading))]
