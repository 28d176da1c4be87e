"""Errors written for the person who must act: what, what was given, what to do next."""

ERROR_FILE = "TENFOLD_ERROR_FILE"
"""If this variable of the environment is set, the command line also writes its error into this file, for its caller."""


class TenfoldError(Exception):
    """Anything that stops a stage and that a person can do something about."""

    def __str__(self) -> str:
        # A file name that is not UTF-8 must not lose the message: Airflow's log cannot hold it as it is.
        return super().__str__().encode("utf-8", "backslashreplace").decode()


class BadInput(TenfoldError):
    """Settings, a source or a dataset that no retry will repair."""


class SettingsError(BadInput):
    """A setting is unknown, of the wrong type, out of range, or impossible beside another one."""


class OwnCodeError(SettingsError):
    """Code of the user's own fails on this worker. On a worker with other packages, or with a GPU, it may work."""


class SourceError(BadInput):
    """The raw images are missing, unreadable, or changed while they were worked on."""


class DatasetError(BadInput):
    """A dataset is missing, incomplete or damaged."""


class ConflictError(BadInput):
    """A file with other content already has this name. It is left untouched."""


class FormatError(BadInput):
    """Another version of Tenfold wrote a file, in another format."""


class GateError(BadInput):
    """The images are over a threshold of the data gate that stops the run, or a person stopped it there."""


class PromotionError(BadInput):
    """The champion cannot be changed as requested, or the file that names it is damaged."""


class Preempted(TenfoldError):
    """A training stopped on request, after a checkpoint. A retry continues from there."""


class TrainingError(TenfoldError):
    """The training process ended without a result."""


class OutOfMemory(TenfoldError):
    """A training step needs more memory than there is. The next attempt uses smaller micro-batches."""


class CacheDamaged(TenfoldError):
    """Decoded images on the disk were damaged and have been removed. The next attempt decodes the images again."""


class ServerLost(TrainingError):
    """Another server of the training ended or started again. A retry of all continues from the last checkpoint."""


class RunTakenOver(TrainingError):
    """Another worker continues the run, so this one must not go on."""


class SizeError(BadInput):
    """A file is larger than its readers accept."""


class AccessError(BadInput):
    """A bucket does not exist, or this principal may not use it."""


class StorageError(TenfoldError):
    """A bucket did not answer within the time limit of retries, or sent damaged bytes twice. It may work later."""


class FileSystemError(TenfoldError):
    """A file system failed with an error that may be temporary, and all retries failed. It may work later."""


class EngineError(TenfoldError):
    """An engine lost its processes or its cluster, and all retries failed. Finished work stays. It may work later."""


def require_format(found: object, expected: int, path: object, mend: str) -> None:
    """Refuse a file in a format that this version of Tenfold does not read.

    Args:
        found: Number of the file's format; None if it has none, which only older versions wrote.
        expected: Number of the format that this version writes and reads.
        path: The file.
        mend: What to do about a file of an older version.

    Raises:
        FormatError: The numbers differ.
    """
    if found == expected:
        return
    if isinstance(found, int) and found > expected:
        raise FormatError(f"{path} was written by a newer version of Tenfold: install that version, or {mend}")
    raise FormatError(f"{path} was written by an older version of Tenfold: {mend}")


def error_to_json(error: TenfoldError) -> dict[str, str]:
    """Return the content from which another process makes the same error, with `error_from_json`."""
    return {"kind": type(error).__name__, "message": str(error)}


def error_from_json(kind: str, message: str) -> TenfoldError:
    """Return the error of another process, from the content of `error_to_json`. An unknown kind is a TrainingError."""
    # Only classes of this module count, because the text comes from a file.
    error_class = globals().get(kind)
    if not (isinstance(error_class, type) and issubclass(error_class, TenfoldError)):
        error_class = TrainingError
    return error_class(message)
