"""The operators of this project: a person's approval, and one server of a training."""

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import BaseOperator

from dags.continuation import can_continue, start_from_task
from dags.links import CometLink, TrainingLink
from dags.notify import notifiers
from dags.small import plan_of_run
from dags.xcom_keys import DATASET_PLACE, TRAINING_PLACE
from pipeline.config.settings import Settings, settings_from
from pipeline.errors import GateError
from pipeline.storage import Place, place_of

if TYPE_CHECKING:
    from pipeline.runs.launch import Look

_APPROVE = "Approve"
_ASKED = "asked"
"""XCom key of the questions that the task asked. When it resumes, there may be other questions."""

APPROVE_DOC = """
Ask a person if the examples exceed a threshold whose setting is `ask`. The question appears under *Required Actions*.
No worker and no GPU waits for the answer.

*Cost*: none. *A failure*: a person answered *Reject*, or nobody answered within `ask_hours`. Clear the task to ask
again. If another run of this dataset name commits a version in the meantime, the examples are compared with that
version, and the approval no longer holds: trigger the DAG again.
"""
TRAIN_DOC = """
Train in a process of its own, on a slot of the pool `gpu`. A killed or cleared training continues from its last
checkpoint. If it is out of memory, it continues with micro-batches of half the size. If it is stuck for
`stall_minutes`, it logs what each of its threads is doing, and is tried again. Several servers train together. They
wait for each other, and if one ends, all end and are tried again.

*Cost*: the GPU, for the time that the log shows. *A failure*: a server is missing (the pool `gpu` needs a slot for each
server, and the queue a worker), the loss is not a number (use a smaller `learning_rate`), a shard is damaged, or a
single example needs too much memory (the message names it and the remedy). *In the state scheduled* it waits for a
slot. If the pool does not exist, it waits forever: create it with `airflow pools set gpu 1 "trainings at once"`.
"""


class ApproveOperator(HITLOperator):
    """Asks a person whether to publish examples that exceed a threshold whose setting is `ask`. Else it does nothing.

    This is not Airflow's own ApprovalOperator, because that one skips the following tasks if the answer is no, and the
    run would then count as a success.

    Args:
        settings: The settings, as `extract` returned them.
    """

    template_fields = (*HITLOperator.template_fields, "settings")

    def __init__(self, *, settings: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(subject="Publish this dataset?", options=[_APPROVE, "Reject"], notifiers=notifiers(), **kwargs)
        self.settings = settings

    def execute(self, context: Any) -> None:
        """Write the question and leave the worker until it is answered."""
        questions = self._questions(place_of(plan_of_run(context["ti"])))
        if not questions:
            return
        name = " ".join(filter(None, (self._settings.dataset_name, self._settings.data_date)))
        self.subject = f"Publish this dataset of {name!r}?"
        self.body = "\n".join([f"Images of {self._settings.source_uri}:", "", *(f"- {each}" for each in questions)])
        self.response_timeout = timedelta(hours=self._settings.ask_hours)
        self.log.warning("%s\nAnswer under Required Actions within %g hours.", self.body, self._settings.ask_hours)
        context["ti"].xcom_push(key=_ASKED, value=questions)
        super().execute(context)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> None:
        """Store the approval.

        Raises GateError if the answer is no, if there is no answer in time, or if there are new questions.
        """
        from pipeline.sharding.approval import approve, new_question_error

        asked: list[str] = context["ti"].xcom_pull(task_ids=self.task_id, key=_ASKED)
        stopped = f"{'; '.join(asked)}; clear this task to ask again"
        if event.get("error_type") == "timeout":
            raise GateError(f"nobody answered within ask_hours={self._settings.ask_hours:g}: {stopped}")
        answer = super().execute_complete(context, event)
        if answer["chosen_options"] != [_APPROVE]:
            raise GateError(f"a person answered {answer['chosen_options'][0]!r}: {stopped}")
        plan_file = place_of(plan_of_run(context["ti"]))
        approve(plan_file, asked)
        if questions := self._questions(plan_file):
            # This task cannot ask them: Airflow 3.3.2 would show the text of its first question again.
            raise new_question_error(questions, asked)

    @property
    def _settings(self) -> Settings:
        return settings_from(self.settings)

    def _questions(self, plan_file: Place) -> list[str]:
        from pipeline.sharding.approval import questions_about

        return questions_about(plan_file, self._settings)


class TrainOperator(BaseOperator):
    """Runs one server of a training in a process of its own.

    The end of the process frees the GPU. If the task is killed, the process writes a checkpoint first. Returns the
    content of `result.json`, the same on all servers.

    Args:
        settings: The settings, as `extract` or `choose` returned them.
        dataset: Folder of the published dataset.
        server: Index of the training server, from 0.
        training: Id of the training. The same id with the same data and settings continues from its checkpoint.
    """

    template_fields = ("settings", "dataset", "server", "training")
    operator_extra_links = (TrainingLink(), CometLink())

    def __init__(
        self,
        *,
        settings: dict[str, Any],
        dataset: str,
        server: int = 0,
        training: str = "{{ run_id }}",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.settings = settings
        self.server = server
        self.dataset = dataset
        self.training = training
        self._process: Any = None

    def execute(self, context: Any) -> dict[str, Any]:
        """Start the training process, unless its result is complete, and wait for its end."""
        from pipeline.runs.launch import TrainingProcess, prepare_run

        dataset = place_of(self.dataset)
        run = prepare_run(settings_from(self.settings), dataset, self.training, self.server, self.dag_id)
        # Before the training starts, so that the plugin can show it while it runs.
        for key, value in ((TRAINING_PLACE, str(run.training)), (DATASET_PLACE, self.dataset)):
            context["ti"].xcom_push(key=key, value=value)
        self._process = TrainingProcess(run, output=1)  # The task's own stdout, which Airflow shows as it comes.
        result: dict[str, Any] = self._process.wait(self._advised_dataset(context["run_id"]))
        return result

    def _advised_dataset(self, run_id: str) -> "Look | None":
        """Return what starts the run that continues the training on a new dataset, if the training may do so."""
        from pipeline.runs.advised import AdvisedDataset

        if self.settings["advice"] != "apply" or self.server or not can_continue(self.dag_id):
            return None
        return AdvisedDataset(partial(start_from_task, self.dag_id, run_id)).look

    def on_kill(self) -> None:
        """Ask the process to write a checkpoint and end. The wait in `execute` then ends too."""
        if self._process is not None:
            self._process.request_stop()
