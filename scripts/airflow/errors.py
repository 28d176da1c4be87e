"""The ways in which a command ends early, each with its exit code."""

import signal


class Refused(Exception):
    """The command cannot be carried out as given. Nothing was started."""

    code = 2


class Failed(Exception):
    """Airflow or the run failed."""

    code = 1


class Interrupted(Exception):
    """A signal asked us to leave."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.code = 128 + signum
