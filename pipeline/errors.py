"""Errors written for the person who must act: what, what was given, what to do next."""


class TenfoldError(Exception):
    """Anything that stops a stage and that a person can do something about."""

    def __str__(self) -> str:
        # A file name that is not UTF-8 must not lose the message: Airflow's log cannot hold it as it is.
        return super().__str__().encode("utf-8", "backslashreplace").decode()


class BadInput(TenfoldError):
    """Settings, a source or a data set that no retry will mend."""


class SettingsError(BadInput):
    """A setting is unknown, of the wrong type, out of range, or impossible beside another one."""


class OwnCodeError(SettingsError):
    """Code of the user's own fails on this worker. On a worker with other packages, or with a GPU, it may work."""


class SourceError(BadInput):
    """The raw images are missing, unreadable, or changed while they were worked on."""


class DatasetError(BadInput):
    """A data set is missing, incomplete or damaged."""


class ConflictError(BadInput):
    """Another file with other content already stands where this one would go. It is left untouched."""


class GateError(BadInput):
    """The images are over a threshold of the data gate that stops the run, or a person stopped it there."""


class PromotionError(BadInput):
    """The model that is promoted cannot be changed as was asked, or the file that names it is damaged."""


class Preempted(TenfoldError):
    """Training was asked to stop, wrote a checkpoint and left. A retry goes on from there."""


class TrainingError(TenfoldError):
    """The training process ended without a result."""


class OutOfMemory(TenfoldError):
    """A training step wanted more memory than there is. The next try takes fewer examples at once."""


class CacheDamaged(TenfoldError):
    """Decoded images on the disk were damaged and have been removed. The next try decodes the images again."""


class ServerLost(TrainingError):
    """Another server of the training is gone, or began anew. A retry goes on from the last checkpoint, with all."""


class AccessError(BadInput):
    """A bucket is not there, or this principal may not use it."""


class StorageError(TenfoldError):
    """A bucket did not answer within the time given to retries, or sent damaged bytes again. A later try may work."""


class FileSystemError(TenfoldError):
    """A file system failed with an error that may be temporary, and all retries failed. A later try may work."""


def words_of(error: TenfoldError) -> dict[str, str]:
    """What another process needs to raise the same error."""
    return {"kind": type(error).__name__, "message": str(error)}


def error_of(kind: str, message: str) -> TenfoldError:
    """The error that another process told by its `words_of`."""
    found = globals().get(kind)
    if not (isinstance(found, type) and issubclass(found, TenfoldError)):
        found = TrainingError
    return found(message)
