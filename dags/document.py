"""The words of DAGs and tasks, as Airflow's UI shows them."""

from inspect import cleandoc
from typing import Any

from airflow.sdk.definitions.mappedoperator import MappedOperator


def document(dag: Any) -> None:
    """Lay docstrings out as Markdown: Airflow would show their indentation as code."""
    dag.doc_md = cleandoc(dag.doc_md)
    for task in dag.tasks:
        if isinstance(task, MappedOperator):
            task.partial_kwargs["doc_md"] = cleandoc(task.doc_md)
        else:
            task.doc_md = cleandoc(task.doc_md)
