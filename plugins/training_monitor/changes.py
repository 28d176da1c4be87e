"""A person changes settings of a training under way, from its next epoch on or by a new dataset and a new run.

The browser sends the session cookie with every request, also with one that another site makes it send. So a request
needs a token, which only a page of Airflow's origin can read.
"""

import hmac
from collections.abc import Callable, Hashable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import urlencode

from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
from fastapi import Body, Depends, Header, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import StringConstraints

from dags.continuation import can_continue, continuing_run
from pipeline.config.allowed import require_folder
from pipeline.errors import BadInput, TenfoldError
from plugins.training_monitor.runs import find_run

if TYPE_CHECKING:
    from pipeline.storage import Place
    from pipeline.watch.questions import Questions

MAX_VALUE = 100
"""Maximum length of the name of a setting, and of a value, in characters."""
MAX_VALUES = 20
"""Maximum number of settings that change together."""
Text = Annotated[str, StringConstraints(max_length=MAX_VALUE)]
Values = Annotated[dict[Text, Text], Body(embed=True, min_length=1, max_length=MAX_VALUES)]
Answer = TypeVar("Answer")
_edit_runs = requires_access_dag(method="PUT", access_entity=DagAccessEntity.RUN)


def without_zero_byte(request: Request) -> Request:
    """Return a request for Airflow's checks, which names no DAG if the id of its DAG has a zero byte.

    PostgreSQL takes no text with a zero byte, and Airflow's check would end in an error. No DAG has such an id.
    """
    has_zero_byte = "\0" in request.query_params.get("dag_id", "")
    return Request({**request.scope, "query_string": b""}) if has_zero_byte else request


def require_edit(request: Request, user: Annotated[Any, Depends(get_user)]) -> None:
    """Raise 403 if the user may not edit the runs of the DAG in the address."""
    _edit_runs(without_zero_byte(request), user)


def may_edit(dag_id: str, request: Request, user: Annotated[Any, Depends(get_user)]) -> bool:
    """Return whether the user may edit the runs of a DAG."""
    try:
        require_edit(Request({**request.scope, "query_string": urlencode({"dag_id": dag_id}).encode()}), user)
    except HTTPException as error:
        if error.status_code != HTTPStatus.FORBIDDEN:
            raise
        return False
    return True


def token_of(request: Request, dag_id: str, run_id: str) -> str:
    """Return the token of a run. Another site can neither read the session cookie nor an answer with the token.

    Without a session cookie, the token is empty, because anybody could compute another one.
    """
    session = request.cookies.get(COOKIE_NAME_JWT_TOKEN)
    if not session:
        return ""
    return hmac.new(session.encode(), f"{dag_id}\n{run_id}".encode(), "sha256").hexdigest()


def change(
    request: Request,
    dag_id: str,
    run_id: str,
    values: Values,
    user: Annotated[Any, Depends(get_user)],
    x_tenfold_token: Annotated[str, Header()] = "",
) -> JSONResponse:
    """Request changes of the training of a run, all or none, and return them in words.

    `values` are settings with the texts of their values. Raises 403 if the token is missing or wrong, 404 if there is
    no training, 409 if a setting cannot get its value, and 503 if the request cannot be stored.
    """
    from pipeline.runs.changes import request_changes

    training = _training_of(request, dag_id, run_id, x_tenfold_token)
    request_all = partial(request_changes, training, values, user.get_name())
    key = ("change", training, *values.items(), user.get_name())
    late = "The change may still be stored: look at the changes of the training before you repeat it"
    requested = _answered(request, training, key, request_all, late, failed="the change cannot be stored")
    return JSONResponse({"words": "; ".join(map(str, requested))})


def continuation(
    request: Request,
    dag_id: str,
    run_id: str,
    values: Values,
    x_tenfold_token: Annotated[str, Header()] = "",
) -> JSONResponse:
    """Return the run that continues the training of another run on a new dataset, as Airflow's API starts it.

    The page starts it with the rights of the user. Nothing is changed here. Raises as `change` does.
    """
    from pipeline.runs.continuation import continued_settings

    training = _training_of(request, dag_id, run_id, x_tenfold_token)
    if not can_continue(dag_id):
        words = f"a run of {dag_id} builds no dataset, so its training cannot be continued on another one"
        raise HTTPException(HTTPStatus.CONFLICT, words)
    key = ("continuation", training, *sorted(values.items()))
    work = partial(continued_settings, training, values)
    late, failed = "Nothing has changed: try again later", "the training cannot be read"
    settings = _answered(request, training, key, work, late, failed)
    return JSONResponse({"dag_id": dag_id, "run": continuing_run(dag_id, run_id, settings)})


def _training_of(request: Request, dag_id: str, run_id: str, token: str) -> "Place":
    """Return the training of a run that goes on, if the token is that of the run. Raises as `change` does."""
    expected = token_of(request, dag_id, run_id)
    if not expected or not hmac.compare_digest(token.encode(), expected.encode()):
        raise HTTPException(HTTPStatus.FORBIDDEN, "the log-in of this page was renewed: try again")
    run = find_run(dag_id, run_id)
    if run is None or run.training is None:
        raise HTTPException(HTTPStatus.NOT_FOUND, "this run has no training")
    if run.is_over:
        raise HTTPException(HTTPStatus.CONFLICT, "the run has ended, so nothing can change in its training")
    return run.training


def _answered(
    request: Request, training: "Place", key: Hashable, work: Callable[[], Answer], late: str, failed: str
) -> Answer:
    """Return what `work` returns for a training. A bucket has a deadline. Raises as `change` does.

    `late` says what to do if the bucket does not answer in time, and `failed` what was not possible.
    """
    from pipeline.watch.questions import NoAnswer

    try:
        require_folder(training)
        if isinstance(training, Path):
            return work()
        questions: Questions = request.app.state.questions
        return questions.ask(training.bucket, key, work)
    except NoAnswer as error:  # The request stays under way.
        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}. {late}") from error
    except BadInput as error:
        raise HTTPException(HTTPStatus.CONFLICT, str(error)) from error
    except (TenfoldError, OSError) as error:
        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, f"{failed}: {error}") from error
