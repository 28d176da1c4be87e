"""What differs between trainings on images and on a table: batches, task, model, and what an exported model takes."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast
from zipfile import BadZipFile

import keras

from pipeline.config.automatic import TrainingSettings
from pipeline.config.example_kinds import tensors_of
from pipeline.dataset.manifest import Dataset
from pipeline.errors import BadInput
from pipeline.evaluation.answers import Answers
from pipeline.input.batch_kind import BatchKind
from pipeline.input.options import BatchOptions
from pipeline.runs.training_settings import require_model
from pipeline.storage import Place
from pipeline.training.model.models import ModelOptions, model_options
from pipeline.training.model.task import Task

EXPORTED_BATCH = 64
"""Examples in one call of an exported model."""


class TensorKind(BatchKind):
    """A kind of examples, as far as a training needs it."""

    keeps_decoded: ClassVar[bool]
    """Whether decoding is so expensive that decoded examples may be kept for later epochs."""
    is_augmented: ClassVar[bool] = False
    """Whether a training step may mirror its examples and change their colors."""

    @abstractmethod
    def task(self, dataset: Dataset) -> Task:
        """Return what a model learns."""

    @abstractmethod
    def build_model(self, options: ModelOptions, dataset: Dataset) -> keras.Model:
        """Build the model that the options name. It gives logits."""

    @abstractmethod
    def signature(self, dataset: Dataset) -> Any:
        """Return the specs of what an exported model takes."""

    @abstractmethod
    def features(self, options: BatchOptions, dataset: Dataset, served: Any) -> Any:
        """Return what the model takes, from what its exported form takes. The options are those of its training."""

    @abstractmethod
    def about(self, options: BatchOptions, dataset: Dataset) -> dict[str, Any]:
        """Return what about.json of an exported model says of its input."""

    @abstractmethod
    def exported_predictions(
        self, model: Any, about: Mapping[str, Any], folder: Place, dataset: Dataset
    ) -> Iterator[Answers]:
        """Yield the predictions of an exported model for the examples of `judged_split`, in the order of the shards.

        The model, as TensorFlow loads it, may have been trained on another version of the dataset than the one in
        `folder`. `about` is its about.json. Raises DatasetError if the dataset lacks what the model takes.
        """


def tensor_kind_of(dataset: Dataset) -> TensorKind:
    """Return the kind of the examples of a dataset."""
    return cast(TensorKind, tensors_of(dataset.kind))


def task_of(dataset: Dataset) -> Task:
    """Return the task of a dataset."""
    return tensor_kind_of(dataset).task(dataset)


def build_model_of(settings: TrainingSettings, dataset: Dataset) -> keras.Model:
    """Build the model of a training.

    Raises:
        SettingsError: If it is a model of another kind of examples, or a function that cannot be used.
        DatasetError: If the schema of a table cannot be used.
        BadInput: If the file of weights does not fit.
    """
    require_model(settings.model, dataset.kind, dataset.name)
    try:
        return tensor_kind_of(dataset).build_model(model_options(settings), dataset)
    except (ValueError, OSError, KeyError, BadZipFile) as error:  # whatever a file of weights may hold
        raise BadInput(f"model {settings.model} with weights {settings.weights!r} cannot be built: {error}") from error
