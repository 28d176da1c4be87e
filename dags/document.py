"""The documentation of DAGs and tasks in Airflow's UI, from their docstrings."""

from inspect import cleandoc
from typing import Any

from airflow.sdk.definitions.mappedoperator import MappedOperator


def document(dag: Any) -> None:
    """Remove the indentation of docstrings, which Airflow's Markdown would show as code."""
    dag.doc_md = cleandoc(dag.doc_md)
    for task in dag.tasks:
        if isinstance(task, MappedOperator):
            task.partial_kwargs["doc_md"] = cleandoc(task.doc_md)
        else:
            task.doc_md = cleandoc(task.doc_md)
