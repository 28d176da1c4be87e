"""How the tasks depend on each other: the part of a DAG that builds a dataset, and the part that trains on it."""

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import task_group

from dags.defaults import DATASETS, long_task_retries
from dags.gpu_pool import GPU_POOL, TRAIN
from dags.links import CardLink, ReportLink
from dags.operators import APPROVE_DOC, TRAIN_DOC, ApproveOperator, TrainOperator
from dags.tasks import commit, copy, extract, extract_range, plan, promote, report, servers, write
from dags.xcom_keys import DATASET_PLACE, SETTINGS


def add_tasks(for_training: bool, example_kind: str = "images") -> None:
    """Add the tasks from the images, or from a table, to a published dataset.

    With `for_training`, the tasks of a training on it follow. Otherwise, publishing updates the asset `DATASETS`, which
    starts `retrain`.
    """
    extracted = extract(for_training, example_kind)
    settings = extracted[SETTINGS]
    listed = extract_range.expand(range_file=extracted)

    @task_group
    def shard(settings, snapshot, ranges):  # type: ignore[no-untyped-def]
        planned = plan(settings, snapshot, ranges, for_training)
        listed >> planned
        return planned, write.partial(settings=settings).expand(plan_file=planned)

    @task_group
    def upload(planned, written, settings):  # type: ignore[no-untyped-def]
        approved = ApproveOperator(
            task_id="approve",
            settings=settings,
            # If all shards are complete, the mapped task is skipped, and this one must run nevertheless.
            trigger_rule="none_failed",
            doc_md=APPROVE_DOC,
        )
        copied = copy.partial(settings=settings).expand(plan_file=planned)
        committed = commit.override(outlets=[] if for_training else [DATASETS])(settings)
        committed.operator.operator_extra_links = (CardLink(),)
        written >> approved >> copied >> committed
        return committed

    planned, written = shard(settings, extracted["snapshot"], extracted)
    published = upload(planned, written, settings)
    if for_training:
        train_and_report(settings, published[DATASET_PLACE])


def train_and_report(settings: Any, dataset: Any, training: str = "{{ run_id }}") -> None:
    """Add the tasks from a published dataset to a model and its report."""
    trained = TrainOperator.partial(
        task_id=TRAIN,
        settings=settings,
        dataset=dataset,
        training=training,
        **on_training_workers(priority=1),
        **long_task_retries(),
        multiple_outputs=True,
        execution_timeout=timedelta(days=7),
        map_index_template="server {{ task.server }}",
        doc_md=TRAIN_DOC,
    ).expand(server=servers(settings, dataset))
    promoted = promote.override(**on_training_workers(priority=2))(settings, trained.output["run"])
    reported = report(trained.output["run"])
    reported.operator.operator_extra_links = (ReportLink(),)
    promoted >> reported  # The report shows the promotion.


def on_training_workers(priority: int) -> dict[str, Any]:
    """Return the arguments that send a task to the workers that train. Other workers have no TensorFlow.

    The waiting task of the highest priority gets the next free slot. So the promotion takes the slot of its training,
    and does not wait for the trainings of other runs.
    """
    template = os.environ.get("TENFOLD_GPU_POD_TEMPLATE")
    return {
        "pool": GPU_POOL,
        "queue": os.environ.get("TENFOLD_GPU_QUEUE") or "default",
        "executor_config": {"pod_template_file": template} if template else {},
        "priority_weight": priority,
        "weight_rule": "absolute",  # Otherwise, Airflow adds the priorities of all tasks that follow.
    }
