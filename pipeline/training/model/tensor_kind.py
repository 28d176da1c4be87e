"""What differs between trainings on images and on a table: batches, task, model, and what an exported model takes."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, cast

import keras

from pipeline.config import Settings
from pipeline.dataset.manifest import Dataset
from pipeline.evaluation.answers import Answers
from pipeline.example_kinds import tensors_of
from pipeline.input.batch_kind import BatchKind
from pipeline.runs.training_settings import require_model
from pipeline.storage import Place
from pipeline.training.model.task import Task


class Augmentation(NamedTuple):
    """What a step changes of its training examples."""

    flip: bool = False
    color_jitter: float = 0.0


class TensorKind(BatchKind):
    """A kind of examples, as far as a training needs it."""

    keeps_decoded: ClassVar[bool]
    """Whether decoding is so expensive that decoded examples may be kept for later epochs."""

    @abstractmethod
    def task(self, dataset: Dataset) -> Task:
        """Return what a model learns."""

    @abstractmethod
    def build_model(self, settings: Settings, dataset: Dataset) -> keras.Model:
        """Build the model that the settings name. It gives logits."""

    def augmentation(self, settings: Settings) -> Augmentation:
        """Return what a step changes of its training examples."""
        return Augmentation()

    def can_use_xla(self, dataset: Dataset) -> bool:
        """Return whether XLA can compile the steps."""
        return True

    @abstractmethod
    def signature(self, settings: Settings, dataset: Dataset) -> Any:
        """Return the specs of what an exported model takes."""

    @abstractmethod
    def features(self, settings: Settings, dataset: Dataset, served: Any) -> Any:
        """Return what the model takes, from what its exported form takes."""

    @abstractmethod
    def about(self, settings: Settings, dataset: Dataset) -> dict[str, Any]:
        """Return what about.json of an exported model says of its input."""

    @abstractmethod
    def exported_answers(
        self, model: Any, about: Mapping[str, Any], folder: Place, dataset: Dataset
    ) -> Iterator[Answers]:
        """Yield the answers of an exported model to the validation examples of a dataset, in the order of the shards.

        Args:
            model: The model, as TensorFlow loads it.
            about: Its about.json. The model may have been trained on another version of the dataset.
            folder: Folder of the dataset.
            dataset: The dataset.

        Raises:
            DatasetError: If the dataset lacks what the model takes.
        """


def tensor_kind_of(dataset: Dataset) -> TensorKind:
    """Return the kind of the examples of a dataset."""
    return cast(TensorKind, tensors_of(dataset.kind))


def task_of(dataset: Dataset) -> Task:
    """Return the task of a dataset."""
    return tensor_kind_of(dataset).task(dataset)


def build_model_of(settings: Settings, dataset: Dataset) -> keras.Model:
    """Build the model of a training.

    Raises:
        SettingsError: If it is a model of another kind of examples, or a function that cannot be used.
        DatasetError: If the schema of a table cannot be used.
        ValueError, OSError: If the file of weights does not fit.
    """
    require_model(settings, dataset.kind, dataset.name)
    return tensor_kind_of(dataset).build_model(settings, dataset)
