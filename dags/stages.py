"""The stages as Airflow tasks, written once. Each hands its work to `pipeline`, imported when the task runs."""

import logging
import os
from datetime import timedelta
from typing import Any, NamedTuple

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import (
    Asset,
    BaseOperator,
    get_current_context,
    task,
    task_group,
)

from dags.defaults import training_retries
from dags.links import CardLink, CometLink, ReportLink, TrainingLink
from dags.notify import notifiers
from dags.places import DATASET_PLACE, GPU_POOL, TRAINING_PLACE, pool_command
from pipeline.config import Settings, settings_from
from pipeline.errors import GateError, SettingsError
from pipeline.storage import place_of

_log = logging.getLogger(__name__)
_APPROVE = "Approve"
_ASKED = "asked"
"""XCom key of the questions that the task asked. When it resumes, there may be other questions."""


@task(multiple_outputs=True, execution_timeout=timedelta(hours=12))
def extract(for_training: bool) -> dict[str, Any]:
    """
    Check the form, fix the data date, and list the images with label, size and checksum.

    *Cost*: images that are new on a disk are read once; a bucket is only listed.

    *A failure* names the field or the source that is wrong. It is not retried: trigger again with another value.
    """
    from pipeline.extract import take_snapshot
    from pipeline.train import require_shares, require_trainable

    run = get_current_context()["dag_run"]
    settings = with_source(settings_of_run()).dated(run.logical_date or run.run_after)
    if for_training:
        require_shares(settings, settings.train_shards)
        _warn_of_slots(settings)
    snapshot = take_snapshot(settings)
    if for_training:
        require_trainable(settings, snapshot)
    return {"settings": settings.model_dump(), "snapshot": str(snapshot)}


@task(execution_timeout=timedelta(hours=2))
def plan(settings: dict[str, Any], snapshot: str) -> list[str]:
    """
    Decide which image goes where, and write a plan file for each task that writes shards.

    *Cost*: seconds a million images, and 100 bytes of memory each. A complete data set leaves nothing to write.

    *A failure* is the data gate (validation images in training too, classes out of balance): mend the source, or
    change the threshold that the message names.
    """
    from pipeline.plan_files import load_plan, make_plan
    from pipeline.quality.gate import asked_later

    path = make_plan(settings_from(settings), place_of(snapshot), asked_later)
    # Under a key of its own: Airflow maps over the returned value only.
    get_current_context()["ti"].xcom_push(key="plan", value=str(path))
    return load_plan(path).ranges


@task(map_index_template="{{ shards }}", execution_timeout=timedelta(hours=12))
def write(plan_file: str) -> None:
    """
    Write the shards of one range that are not finished yet.

    *Cost*: one core, 30 MB, about 1,000 photographs a second (`check: strict`).

    *A failure*: an image changed or vanished after it was listed (trigger again), or the disk is full (free space, and
    clear this task: what is finished stays).
    """
    from pipeline.progress import progress
    from pipeline.ranges import load_range
    from pipeline.shard import write_range

    _name_after_range(plan_file)
    with progress("shard", load_range(place_of(plan_file)).images) as advance:
        write_range(place_of(plan_file), advance)


@task(map_index_template="{{ shards }}", execution_timeout=timedelta(hours=12))
def copy(plan_file: str) -> None:
    """
    Bring the shards of one range to the published place, and verify every byte there.

    *Cost*: a reading of the shards; a copy where workspace and published place are two stores.

    *A failure*: another file stands at a shard's name (it was left alone: move it away, clear this task), or a bucket
    does not answer (clear this task later: it goes on).
    """
    from pipeline.progress import progress
    from pipeline.upload import copy_range, copy_size

    _name_after_range(plan_file)
    shards, total_bytes = copy_size(place_of(plan_file))
    with progress("upload", shards, "shards", total_bytes) as advance:
        copy_range(place_of(plan_file), advance)


# Nothing to write is no failure: the mapped tasks are then skipped, and the data set is found complete.
@task(trigger_rule="none_failed", execution_timeout=timedelta(hours=2))
def commit(plan_file: str, settings: dict[str, Any]) -> dict[str, Any]:
    """
    Write `dataset.json`, last: from then on the data set exists. An asset that the task updates learns its version.

    *Cost*: seconds.

    *A failure* is the data gate (too many images rejected, drift; the message names the threshold), a count that
    does not add up, or labels that a person released in the meantime. For the last two, clear `shard.plan` and what
    follows it.
    """
    from pipeline.approval import answers
    from pipeline.build import summary
    from pipeline.plan_files import load_plan
    from pipeline.upload import commit as commit_dataset

    dataset = commit_dataset(place_of(plan_file), settings_from(settings), answers(place_of(plan_file)))
    made = summary(load_plan(place_of(plan_file)), dataset)
    context = get_current_context()
    context["ti"].xcom_push(key=DATASET_PLACE, value=made["dataset"])
    for asset in context["task"].outlets:
        context["outlet_events"][asset].extra = {
            **{name: settings[name] for name in ("dataset_name", "data_date")},
            **made,
        }
    return made


@task(execution_timeout=timedelta(minutes=30))
def servers(settings: dict[str, Any], dataset: str) -> list[int]:
    """
    Check that the training can start, and start a task for each of its servers.

    *Cost*: seconds, and no GPU. *A failure* names what is wrong: the data set or the weights are missing, or it has too
    few shards for the servers. The log names the pool that the training needs.
    """
    from pipeline.train import require_startable

    read = settings_from(settings)
    require_startable(read, place_of(dataset))
    # A task cannot look up pools, and Airflow 3.3 reports a missing pool only in the scheduler's log.
    _log.info(
        "the training takes %d slots of the pool %r. If `train` stays in the state scheduled, the pool is missing or "
        "full: look under Admin, Pools, or create the pool with `%s`",
        read.num_training_servers,
        GPU_POOL,
        pool_command(read.num_training_servers),
    )
    _warn_of_slots(read)
    return list(range(read.num_training_servers))


@task(execution_timeout=timedelta(minutes=30))
def report(runs: list[str]) -> dict[str, str]:
    """
    Draw the report of a training from its local record.

    *Cost*: seconds. *A failure* harms nothing: the model stands; clear this task.
    """
    from pipeline.report import report_run

    return {"report": str(report_run(place_of(runs[0])))}  # the servers of a training have one run


@task(execution_timeout=timedelta(hours=6))
def promote(settings: dict[str, Any], runs: list[str]) -> dict[str, Any]:
    """
    Make the model the champion of its data set name, unless it is worse than the champion on the same images.

    The log and the returned value say why, or why not. A refusal is no failure: the training stands.

    *Cost*: seconds; where the champion was evaluated on another version of the data set, an evaluation of it, which is
    why it has a slot of the pool `gpu`.

    *A failure*: the champion cannot be evaluated, or its file is damaged (the message names it). Clear this task:
    cleared, it gives the same answer and promotes nothing twice.
    """
    from pipeline.promotion import gate

    return gate(place_of(runs[0]), settings_from(settings), output=1)  # the task's own stdout


class ApproveOperator(HITLOperator):
    """Asks a person about what is over a threshold whose setting says `ask`; goes on at once where nothing is.

    Not Airflow's own ApprovalOperator, which skips what follows a no: the run would then count as a success.

    :param plan_file: file of the plan, whose shards are written
    :param settings: the settings, as `extract` returned them
    """

    template_fields = (*HITLOperator.template_fields, "plan_file", "settings")

    def __init__(self, *, plan_file: str, settings: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(
            subject="Publish this data set?", options=[_APPROVE, "Reject"], notifiers=notifiers(), **kwargs
        )
        self.plan_file = plan_file
        self.settings = settings

    def execute(self, context: Any) -> None:
        """Write the question and leave the worker until it is answered."""
        questions = self._questions()
        if not questions:
            return
        name = " ".join(filter(None, (self._settings.dataset_name, self._settings.data_date)))
        self.subject = f"Publish this data set of {name!r}?"
        self.body = "\n".join([f"Images of {self._settings.source_uri}:", "", *(f"- {each}" for each in questions)])
        self.response_timeout = timedelta(hours=self._settings.ask_hours)
        self.log.warning("%s\nanswer under Required Actions within %g hours", self.body, self._settings.ask_hours)
        context["ti"].xcom_push(key=_ASKED, value=questions)
        super().execute(context)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> None:
        """Store the approval.

        Raises GateError if the answer is no, if there is no answer in time, or if there are new questions.
        """
        from pipeline.approval import approve, unasked

        # Nothing is kept of a question that an older release asked, before an upgrade.
        asked: list[str] = context["ti"].xcom_pull(task_ids=self.task_id, key=_ASKED) or self._questions()
        stopped = f"{'; '.join(asked)}; clear this task to be asked again"
        if event.get("error_type") == "timeout":
            raise GateError(f"nobody answered within ask_hours={self._settings.ask_hours:g}: {stopped}")
        answer = super().execute_complete(context, event)
        if answer["chosen_options"] != [_APPROVE]:
            raise GateError(f"stopped by the answer {answer['chosen_options'][0]!r}: {stopped}")
        approve(place_of(self.plan_file), asked)
        if questions := self._questions():
            # This task cannot ask them: Airflow 3.3.2 would show the text of its first question again.
            raise unasked(questions, asked)

    @property
    def _settings(self) -> Settings:
        return settings_from(self.settings)

    def _questions(self) -> list[str]:
        from pipeline.approval import questions

        return questions(place_of(self.plan_file), self._settings)


class TrainOperator(BaseOperator):
    """One of the servers of a training, as a process of its own, which frees the GPU at its end and is asked for a
    checkpoint when the task is killed. Returns {"run", "metrics", "model", "export", "comet", "verdict", "limit",
    "wait_fraction", "step_ms", "epochs"}, the same on all servers.

    :param settings: the settings, as `extract` or `choose` returned them
    :param dataset: folder of the published data set
    :param server: which of the servers, from 0
    :param training: id of the training: the same one, with the same data and settings, goes on at its checkpoint
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
        """Start the process, or find its result complete, and wait."""
        from pipeline.train import TrainingProcess, prepare_run

        dataset = place_of(self.dataset)
        run = prepare_run(settings_from(self.settings), dataset, self.training, self.server, self.dag_id)
        for key, value in ((TRAINING_PLACE, str(run.training)), (DATASET_PLACE, self.dataset)):
            context["ti"].xcom_push(key=key, value=value)
        self._process = TrainingProcess(run, output=1)  # the task's own stdout, which Airflow shows as it comes
        result: dict[str, Any] = self._process.wait()
        return result

    def on_kill(self) -> None:
        """Ask for a checkpoint; the wait in `execute` then ends."""
        if self._process is not None:
            self._process.ask_to_stop()


def settings_of_run() -> Settings:
    """The settings of this run's form. Raises SettingsError for what is no setting, or none of this DAG."""
    context = get_current_context()
    # The form's own values, and what a REST call added: Airflow takes an unknown key without a word.
    conf = context["dag_run"].conf or {}
    settings = settings_from({**context["params"], **conf})
    form = context["dag"].params
    if foreign := sorted(name for name in conf if name not in form):
        raise SettingsError(f"{foreign[0]} is not a setting of {context['dag'].dag_id}: those are {', '.join(form)}")
    return settings


def _warn_of_slots(settings: Settings) -> None:
    """Warn if the pool was created with fewer slots than the training has servers, or if their number is unknown.

    It is a warning and not an error, because a task cannot look up the current slots of a pool.
    """
    servers, slots = settings.num_training_servers, os.environ.get("TENFOLD_GPUS", "")
    if servers == 1 or (slots.isdecimal() and servers <= int(slots)):
        return
    made = f", but TENFOLD_GPUS={slots} made it" if slots else ""
    _log.warning(
        "num_training_servers=%d needs %d slots of the pool %r at the same time%s: check the slots under Admin, Pools, "
        "or train on fewer servers; with fewer slots, the servers wait for each other for %g minutes "
        "(server_wait_minutes) and fail",
        *(servers, servers, GPU_POOL, made, settings.server_wait_minutes),
    )


def with_source(settings: Settings) -> Settings:
    """A form that was left as it was trains on the sample images, where the start-up drew some.

    Under a name of their own: their classes would else stay in the label map of the user's.
    """
    samples = os.environ.get("TENFOLD_SAMPLES")
    if settings.source_uri or not samples:
        return settings
    _log.warning("source_uri is empty: taking the sample images of %s", samples)
    return settings.model_copy(update={"source_uri": samples, "dataset_name": "samples"})


class Published(NamedTuple):
    """What the tasks behind `publish` need."""

    settings: Any
    committed: Any


def publish(for_training: bool, outlets: list[Asset]) -> Published:
    """Images to a published data set: the tasks of both DAGs that make one."""
    extracted = extract(for_training)
    settings = extracted["settings"]

    @task_group
    def shard(settings, snapshot):  # type: ignore[no-untyped-def]
        planned = plan(settings, snapshot)
        return planned, _mapped(write, planned)

    @task_group
    def upload(planned, written, settings):  # type: ignore[no-untyped-def]
        asked = ApproveOperator(
            task_id="approve",
            plan_file=planned["plan"],
            settings=settings,
            trigger_rule="none_failed",
            doc_md=_APPROVE_DOC,
        )
        copied = _mapped(copy, planned)
        committed = commit.override(outlets=outlets)(planned["plan"], settings)
        committed.operator.operator_extra_links = (CardLink(),)
        written >> asked >> copied >> committed
        return committed

    planned, written = shard(settings, extracted["snapshot"])
    return Published(settings, upload(planned, written, settings))


def train_and_report(settings: Any, dataset: Any, training: str = "{{ run_id }}") -> None:
    """A published data set to a model and its report: the tasks of both DAGs that train."""
    trained = TrainOperator.partial(
        task_id="train",
        settings=settings,
        dataset=dataset,
        training=training,
        **_where_tensorflow_is(priority=1),
        **training_retries(),
        multiple_outputs=True,
        execution_timeout=timedelta(days=7),
        map_index_template="server {{ task.server }}",
        doc_md=_TRAIN_DOC,
    ).expand(server=servers(settings, dataset))
    promoted = promote.override(**_where_tensorflow_is(priority=2))(settings, trained.output["run"])
    reported = report(trained.output["run"])
    reported.operator.operator_extra_links = (ReportLink(),)
    promoted >> reported  # which tells of it


def _where_tensorflow_is(priority: int) -> dict[str, Any]:
    """What sends a task to the workers that train: others have no TensorFlow.

    Of those that wait for a slot the higher priority comes first: a gate takes the one that its training has just left,
    and does not wait for the trainings of other runs.
    """
    template = os.environ.get("TENFOLD_GPU_POD_TEMPLATE")
    return {
        "pool": GPU_POOL,
        "queue": os.environ.get("TENFOLD_GPU_QUEUE") or "default",
        "executor_config": {"pod_template_file": template} if template else {},
        "priority_weight": priority,
        "weight_rule": "absolute",  # else a training counts all that comes after it
    }


def _mapped(work: Any, plan_files: Any) -> Any:
    """A task for each plan file, with the docstring that Airflow gives only to tasks that are not mapped."""
    return work.override(doc_md=work.function.__doc__).expand(plan_file=plan_files)


def _name_after_range(plan_file: str) -> None:
    """Let Airflow's list show a mapped task by the shards that it works on."""
    from pipeline.ranges import load_range, range_words

    get_current_context()["shards"] = range_words(load_range(place_of(plan_file)).shards)


_APPROVE_DOC = """
Ask a person, where the images are over a threshold whose setting says `ask`. The question stands under *Required
Actions*; no worker and no GPU waits with it.

*Cost*: none. *A failure* is the answer *Reject*, or none within `ask_hours`: clear the task to be asked again. If
another run of this dataset name commits a version in the meantime, the images are compared with that version, and the
approval no longer holds: trigger the DAG again.
"""
_TRAIN_DOC = """
Train in a process of its own, on a slot of the pool `gpu`. Killed or cleared, it goes on from its last checkpoint; out
of memory, with half as many examples at once; stuck, for `stall_minutes`, after a dump of what it was at. Several
servers train together: they wait for each other, and where one is gone all end and are tried again.

*Cost*: the GPU, for as long as the log says. *A failure*: a server is missing (give the pool `gpu` a slot for each, and
the queue a worker), a loss that is no number (a smaller `learning_rate`), a damaged shard, or one example that is too
much for the memory (the message names it and what to do). *In the state scheduled* it waits for a slot. If the pool
does not exist, it waits forever: create it with `airflow pools set gpu 1 "trainings at once"`.
"""
