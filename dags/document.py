"""The documentation of DAGs and tasks in Airflow's UI, from their docstrings."""

from inspect import cleandoc
from typing import Any

from airflow.sdk.definitions.mappedoperator import MappedOperator


def document(dag: Any) -> None:
    """Give a DAG and its tasks their docstrings, without indentation, which Airflow's Markdown would show as code."""
    dag.doc_md = cleandoc(dag.doc_md)
    for task in dag.tasks:
        # Airflow itself copies the docstring of a function only if the task is not mapped.
        text = cleandoc(task.doc_md or task.python_callable.__doc__)
        if isinstance(task, MappedOperator):
            task.partial_kwargs["doc_md"] = text
        else:
            task.doc_md = text
