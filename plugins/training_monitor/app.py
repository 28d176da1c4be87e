"""The web application that Airflow's api-server mounts. It only reads, but for the requests of changes.py.

A user must be logged in, and sees the runs of the DAGs that Airflow lets them read. A page gets its content as JSON and
inserts it as text, so that no name of a file, a label or a run is ever parsed as markup.
"""

import json
import os
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial, wraps
from html import escape
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlencode

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
from anyio import CapacityLimiter, to_thread
from fastapi import Body, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from starlette.middleware.gzip import GZipMiddleware

from pipeline.config.allowed import require_folder
from pipeline.errors import SizeError, StorageError, TenfoldError
from pipeline.storage import Place, read_limited, require_size
from pipeline.tuning.measurement import PAGE as INPUTS_PAGE
from pipeline.watch.states import STATE_NAMES
from plugins.training_monitor.changes import change, continuation, may_edit, require_edit, token_of, without_zero_byte
from plugins.training_monitor.dataset_counts import counts_in_time
from plugins.training_monitor.dates import DatasetName, DatasetRuns, state_of_dates
from plugins.training_monitor.listing import Column, ListQuery, MayRead, Sources, list_trainings, zone_of
from plugins.training_monitor.runs import AirflowRun, EndedRuns, Link, Trainings, find_run
from plugins.training_monitor.start import DAGS, check_form
from plugins.training_monitor.trends import trend_of

if TYPE_CHECKING:
    from pipeline.report.compare_page import Named
    from pipeline.report.compared_run import ComparedRun
    from pipeline.watch.copies import Copies
    from pipeline.watch.questions import Questions
    from pipeline.watch.records import RecordFolders, Room

STATIC = Path(__file__).with_name("static")
ASSETS = (
    *("monitor.css", "icon.svg", "icon-dark.svg", "monitor.js", "run.js", "trainings.js", "trend.js", "dates.js"),
    *("start.js", "address.js", "changes.js", "chart.js", "charts.js", "scales.js", "source.js", "stages.js"),
)
MAX_ROWS = 1000
"""Limit for the rows of one page of the list."""
MAX_SEARCH = 200
"""Maximum length of a search, and of the name of a time zone, in characters."""
MAX_NUMBER = 2**31 - 1
"""Maximum number of a run. Airflow's database raises an error for a larger one."""
MAX_THREADS = 8
"""Limit for the threads of all Tenfold pages. Without it, they would share the 40 threads of Airflow's pages."""
MAX_COMPARISONS = 1
"""Limit for the comparisons at once: one reads up to 2 GB of records. Others wait, and the other pages do not."""
MAX_LOOKS = 4
"""Limit for the forms that are checked at once. A look at a source that does not answer takes two seconds."""
MAX_ANSWERS_BYTES = 512 << 20
"""Maximum size of the answers of all models of a comparison in memory."""
RELOAD_S = 60
"""The page of a comparison is loaded again after this many seconds, while one of its runs goes on."""
MAX_DOCUMENT_BYTES = 64 << 20
"""Maximum size of a document, on a disk or in a bucket. Others may write it, and its reader holds it in memory."""
PAGES = {
    # The session cookie can be read by scripts, and the pages have Airflow's origin: a script in a name would act as
    # the user. So no inline script runs.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
DOCUMENT_HEADERS = {
    **PAGES,
    # Tasks write the documents into a workspace that others may write to. Without allow-same-origin a document has an
    # origin of its own, so that a script in it acts without the reader's log-in.
    "Content-Security-Policy": (
        "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
}
DOCUMENTS = {"report": "Report", "card": "Dataset card", "inputs": "Comparison of inputs"}
"""Titles of the documents of a run, by their address."""
_NO_DATES = (
    "No dataset has dates yet. A run makes a date if its source has a placeholder such as {date}. "
    "Run a DAG with such a source."
)
_read_runs = requires_access_dag(method="GET", access_entity=DagAccessEntity.RUN)
_start_runs = requires_access_dag(method="POST", access_entity=DagAccessEntity.RUN)


def may_see_runs(request: Request, user: Annotated[Any, Depends(get_user)]) -> None:
    """Raise 403 if the user may not see the runs of the DAG in the address, or any runs if it names no DAG."""
    _read_runs(without_zero_byte(request), user)


def may_start_runs(
    request: Request, user: Annotated[Any, Depends(get_user)], dag_id: Annotated[str, Query(max_length=MAX_SEARCH)]
) -> None:
    """Raise 404 unless the address names a DAG that the page starts, and 403 if the user may not trigger it."""
    if dag_id not in DAGS:
        raise HTTPException(404, f"this page does not start {dag_id!r}")
    _start_runs(request, user)


_OF_THE_RUN = [Depends(may_see_runs)]


def readable_dags(user: Annotated[Any, Depends(get_user)]) -> set[str]:
    """Return the ids of the DAGs that the user may read."""
    # Airflow's own dependency would look for the manager in this application instead of Airflow's.
    dag_ids: set[str] = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    return dag_ids


def readable_logs(user: Annotated[Any, Depends(get_user)]) -> MayRead:
    """Return a function that says whether the user may read the logs of a DAG, by its id."""

    @cache
    def may_read(dag_id: str) -> bool:
        allowed = get_auth_manager().is_authorized_dag(
            method="GET", user=user, access_entity=DagAccessEntity.TASK_LOGS, details=DagDetails(id=dag_id)
        )
        return bool(allowed)

    return may_read


def readable_runs(request: Request, user: Annotated[Any, Depends(get_user)]) -> MayRead:
    """Return a function that says whether the user may see the runs of a DAG, by its id."""

    @cache
    def may_read(dag_id: str) -> bool:
        of_dag = Request({**request.scope, "query_string": urlencode({"dag_id": dag_id}).encode()})
        try:
            may_see_runs(of_dag, user)
        except HTTPException as error:
            if error.status_code != HTTPStatus.FORBIDDEN:
                raise
            return False
        return True

    return may_read


def build() -> FastAPI:
    """Build the application. Each of its addresses requires a log-in."""
    from pipeline.sources.look import LOOK_S
    from pipeline.watch.copies import Copies
    from pipeline.watch.heartbeats import Heartbeats
    from pipeline.watch.questions import Questions
    from pipeline.watch.queue_wait import TimesLeft
    from pipeline.watch.records import RecordFolders
    from pipeline.watch.summary import ENDED_S, Summaries

    # By default, Airflow lets anybody call a plugin's application.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, dependencies=[Depends(get_user)])
    app.state.questions = Questions()
    app.state.copies = Copies(app.state.questions)
    app.state.record_folders = RecordFolders()
    app.state.heartbeats = Heartbeats()
    app.state.looks = Questions(LOOK_S)
    app.state.sources = Sources(
        listed=Summaries(), searched=Summaries(kept_s=ENDED_S), ended=EndedRuns(), times_left=TimesLeft()
    )
    bounded = partial(_bounded, limiter=CapacityLimiter(MAX_THREADS))
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=4)
    app.middleware("http")(_with_headers)
    app.get("/assets/{name}")(asset)
    app.get("/trainings")(trainings_page)
    app.get("/trainings.json", dependencies=_OF_THE_RUN)(bounded(trainings))
    app.get("/trend.json", dependencies=_OF_THE_RUN)(bounded(trend))
    app.get("/dates")(dates_page)
    app.get("/dates.json", dependencies=_OF_THE_RUN)(bounded(dates))
    app.get("/start")(start_page)
    looking = _bounded(start, limiter=CapacityLimiter(MAX_LOOKS))
    app.post("/start.json", dependencies=[Depends(may_start_runs)])(looking)
    app.get("/run", dependencies=_OF_THE_RUN)(run_page)
    app.get("/data", dependencies=_OF_THE_RUN)(bounded(data))
    app.post("/change", dependencies=[*_OF_THE_RUN, Depends(require_edit)])(bounded(change))
    app.post("/continuation", dependencies=[*_OF_THE_RUN, Depends(require_edit)])(bounded(continuation))
    app.get("/compare")(_bounded(comparison, limiter=CapacityLimiter(MAX_COMPARISONS)))
    for address in DOCUMENTS:
        app.get(f"/{address}", dependencies=_OF_THE_RUN)(bounded(partial(document, address)))
    return app


def _bounded(endpoint: Callable[..., Response], limiter: CapacityLimiter) -> Callable[..., Awaitable[Response]]:
    """Return an endpoint that runs in one of a few threads, so that Airflow's own pages never wait for Tenfold's."""

    @wraps(endpoint)
    async def run(*arguments: Any, **named: Any) -> Response:
        return await to_thread.run_sync(partial(endpoint, *arguments, **named), limiter=limiter)

    return run


async def _with_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    for name, value in PAGES.items():
        response.headers.setdefault(name, value)
    return response


def asset(name: str) -> FileResponse:
    """Return a script, style sheet or icon of the pages. Raises 404 for any other name."""
    if name not in ASSETS:
        raise HTTPException(404, f"no file {name!r}")
    return FileResponse(STATIC / name, headers={"Cache-Control": "private, max-age=3600"})


def trainings_page() -> HTMLResponse:
    """Return the page of all trainings. It requests their rows from `trainings`."""
    return _page("trainings.html")


def trainings(
    request: Request,
    dag_ids: Annotated[set[str], Depends(readable_dags)],
    may_read_log: Annotated[MayRead, Depends(readable_logs)],
    limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 100,
    offset: Annotated[int, Query(ge=0, le=MAX_NUMBER)] = 0,
    dag_id: Annotated[str | None, Query()] = None,
    search: Annotated[str, Query(max_length=MAX_SEARCH)] = "",
    sort: Column = "started",
    up: bool = False,
    within: bool = False,
    zone: Annotated[str, Query(max_length=MAX_SEARCH)] = "",
) -> JSONResponse:
    """Return a page of the trainings of the DAGs that the user may read.

    With `dag_id`, the page has only trainings of this DAG, because the right to see runs was checked for it alone.
    `ListQuery` describes the other parameters, and `list_trainings` the answer.
    """
    trainings = Trainings(dag_ids if dag_id is None else dag_ids & {dag_id})
    query = ListQuery(limit, offset, search, sort, ascending=up, zone=zone_of(zone), within_dataset=within)
    return JSONResponse(list_trainings(trainings, request.app.state.sources, query, may_read_log))


def trend(
    request: Request,
    dag_ids: Annotated[set[str], Depends(readable_dags)],
    may_read_log: Annotated[MayRead, Depends(readable_logs)],
    dag_id: Annotated[str | None, Query()] = None,
    dataset_name: Annotated[str, Query(max_length=MAX_SEARCH)] = "",
) -> JSONResponse:
    """Return the trend of a dataset name over its last trainings: see `trend_of`. `dag_id` is as in `trainings`."""
    trainings = Trainings(dag_ids if dag_id is None else dag_ids & {dag_id})
    state = request.app.state
    return JSONResponse(trend_of(trainings, state.sources, dataset_name, may_read_log, state.questions))


def dates_page() -> HTMLResponse:
    """Return the page of the dates of a dataset. It requests its content from `dates`."""
    return _page("dates.html")


def dates(
    request: Request,
    dag_ids: Annotated[set[str], Depends(readable_dags)],
    may_read_log: Annotated[MayRead, Depends(readable_logs)],
    dag_id: Annotated[str | None, Query()] = None,
    dataset_name: Annotated[str, Query(max_length=MAX_SEARCH)] = "",
    workspace: Annotated[str | None, Query()] = None,
    publish_uri: Annotated[str | None, Query()] = None,
) -> JSONResponse:
    """Return the dataset names with dates that the DAGs made which the user may read, and the state of one of them.

    It is the newest one with the given name and places. `dag_id` is as in `trainings`.
    """
    runs = DatasetRuns(dag_ids if dag_id is None else dag_ids & {dag_id})
    given = DatasetName(dataset_name, workspace or "", publish_uri or "")
    is_whole = workspace is not None and publish_uri is not None
    found = [name for name in runs.names if name == given or (not is_whole and dataset_name in ("", name.dataset_name))]
    names = [name._asdict() for name in runs.names]
    answer: dict[str, Any] = {"names": names, "looked_up": runs.looked_up, "shown": None, "words": ""}
    if not found:
        answer["words"] = "No run that you may see has made such a dataset." if runs.names else _NO_DATES
        return JSONResponse(answer)
    answer["shown"] = runs.names.index(found[0])
    try:
        return JSONResponse({**answer, **state_of_dates(runs, found[0], may_read_log, request.app.state.questions)})
    # ValueError, KeyError and TypeError: somebody changed a file or an XCom.
    except (TenfoldError, OSError, ValueError, KeyError, TypeError) as error:
        message = f"the dates cannot be read: {error}".encode("utf-8", "backslashreplace").decode()
        return JSONResponse({**answer, "words": message})


def start_page() -> HTMLResponse:
    """Return the page that starts a run. It starts the run with Airflow's own API, with the rights of the user."""
    return _page("start.html")


def start(request: Request, dag_id: str, form: Annotated[dict[str, Any], Body()]) -> Response:
    """Return what is wrong with a form, and what is at its source: see `check_form`. Starts nothing."""
    # In ASCII: a path may have half of a surrogate pair, which cannot be written in UTF-8.
    answer = json.dumps(check_form(dag_id, form, request.app.state.looks))
    return Response(answer, media_type="application/json")


def run_page(request: Request) -> HTMLResponse:
    """Return the page of a run. It requests its content from `data`, also whether there is such a run."""
    page = _page("run.html")
    # The first request of static/run.js: the answer is on its way while the browser still reads the scripts.
    query = request.scope["query_string"].decode("latin-1")
    page.headers["Link"] = f"<data?{query}>; rel=preload; as=fetch; crossorigin"
    return page


def _page(name: str) -> HTMLResponse:
    return HTMLResponse((STATIC / name).read_text(encoding="utf-8"))


def data(
    request: Request,
    dag_id: str,
    run_id: str,
    may_read_log: Annotated[MayRead, Depends(readable_logs)],
    is_editor: Annotated[bool, Depends(may_edit)],
    after: Annotated[float | None, Query()] = None,
    start: Annotated[float | None, Query()] = None,
    end: Annotated[float | None, Query()] = None,
    shown: Annotated[str, Query()] = "",
) -> Response:
    """Return the status of a run and its curves, with its figures unless the page has shown those.

    Times are in ms since the start. With `after`, only rows after this time are returned. Rows from `start` to `end`
    are returned in full resolution. `shown` is the name of the figures that the page has, from an earlier answer.
    """
    run = find_run(dag_id, run_id, request.app.state.sources.times_left)
    if run and not may_read_log(dag_id):
        run = run.without_error_message()
    if run is None or run.training is None:
        without_training = _status_without_training(run)
        links = [*_links(request.app.state.questions, run, without_training)] if run else []
        return JSONResponse({"status": {**without_training, "links": links}})
    closer = None if start is None or end is None else (start, end)
    try:
        content = _content(request.app.state, run, run.training, after, closer, shown)
        content["status"]["changes"]["token"] = token_of(request, dag_id, run_id) if is_editor else ""
        return JSONResponse(content)
    # ValueError and KeyError: a file has text where a number belongs, or lacks a value.
    except (TenfoldError, OSError, ValueError, KeyError) as error:
        message = f"the training cannot be read: {error}".encode("utf-8", "backslashreplace").decode()
        status = {"state": "unknown", "words": message}
        # If a bucket does not answer, the page does not wait for it once more with each link.
        links = [] if isinstance(error, StorageError) else list(_links(request.app.state.questions, run, status))
        return JSONResponse({"status": {**status, "links": links}})


def _content(
    state: Any, run: AirflowRun, training: Place, after: float | None, closer: tuple[float, float] | None, shown: str
) -> dict[str, Any]:
    from pipeline.watch.page_data import page_data, span_of

    require_folder(training)
    copies: Copies = state.copies
    folder = copies.local_folder(training)
    span = span_of(folder, *closer) if closer else None
    if span:
        try:
            span = copies.fetch_span(training, span)
        except StorageError:  # Its bucket is slow. The page asks again, and shows the overview until then.
            span = span._replace(is_close=False)
    content = page_data(
        folder,
        run.is_over,
        after,
        span,
        shown,
        state.heartbeats,
        builds_dataset=run.dag_id in DAGS,
        is_copy=not isinstance(training, Path),
    )
    _add_airflow_state(run, content["status"])
    content["status"]["name"] = STATE_NAMES[content["status"]["state"]]
    [counts] = counts_in_time([run.dataset], state.questions)
    content["status"]["examples"] = counts.words if counts else ""
    content["status"]["links"] = list(_links(state.questions, run, content["status"]))
    return content


def _add_airflow_state(run: AirflowRun, status: dict[str, Any]) -> None:
    """Add what the training waits for, and which task failed, to the status of a training."""
    if run.stage and run.stage.state == "waiting" and status["state"] != "trained":
        status["words"] += f"; {run.stage.words}."
    if run.is_over and run.failure:
        status["words"] += f". {run.failure.sentence}"
        status["state"] = "failed" if status["state"] == "stopped" else status["state"]


def _links(questions: "Questions", run: AirflowRun, status: Mapping[str, Any]) -> Iterator[Link]:
    """Yield the links to the other pages of a run."""
    query, documents = urlencode({"dag_id": run.dag_id, "run_id": run.run_id}), _documents(run)

    def links_to(*addresses: str) -> Iterator[Link]:
        for address in addresses:
            if address in documents and _exists(questions, documents[address]):
                yield DOCUMENTS[address], f"{address}?{query}"

    # An old report may be all that this version can show of a training.
    if status["state"] in ("trained", "unknown"):
        yield from links_to("report")
    if run.log:
        yield run.log
    yield from links_to("card", "inputs")
    if str(status.get("comet")).startswith("https://"):
        yield "Comet", str(status["comet"])


def _documents(run: AirflowRun) -> dict[str, Place]:
    """Return the place of each document of a run, by the address of its page. A document may not be written yet."""
    from pipeline.dataset.manifest import CARD
    from pipeline.report import REPORT

    places = {
        "report": run.training and run.training / REPORT,
        "card": run.dataset and run.dataset / CARD,
        "inputs": run.comparison and run.comparison / INPUTS_PAGE,
    }
    return {address: place for address, place in places.items() if place}


def _exists(questions: "Questions", place: Place) -> bool:
    """Return whether a file exists; False if its bucket does not answer in time."""
    if isinstance(place, Path):
        return place.exists()
    try:
        return questions.ask(place.bucket, ("exists", place), place.exists)
    except (TenfoldError, OSError):
        return False


def _status_without_training(run: AirflowRun | None) -> dict[str, str]:
    if run is None:
        return {"state": "unknown", "words": "There is no run with this id."}
    if run.refusal and not run.failure:
        return {"state": "unknown", "words": f"The files of this run cannot be read: {run.refusal}"}
    if isinstance(run.comparison, Path) and not run.failure:
        return {"state": "none", "words": _comparison_words(run.comparison)}
    if not run.has_training_task:
        return {"state": "none", "words": "No task of this DAG trains a model."}
    if run.is_over and run.failure:
        hint = "" if run.failure.message else " Its log says why."
        return {"state": "failed", "words": f"The training never started. {run.failure.sentence}{hint}"}
    if run.stage is None:
        return {"state": "none", "words": "This run has no training, or its files were removed."}
    tasks = f" Done: {run.stage.done}." if run.stage.done else ""
    return {"state": run.stage.state, "words": f"The training has not started: {run.stage.words}.{tasks}"}


def _comparison_words(folder: Path) -> str:
    from pipeline.tuning.measurement import describe_progress

    try:
        return describe_progress(folder)
    except TenfoldError as error:
        return f"This run compares inputs, but its files cannot be read: {error}"
    except (OSError, ValueError, KeyError, TypeError):
        return "This run compares inputs, but its files cannot be read."


def document(address: str, request: Request, dag_id: str, run_id: str) -> Response:
    """Return one of the DOCUMENTS of a run.

    Raises 404 if it does not exist, 403 if the administrator does not allow its place, 413 if it is too large, and 503
    if its bucket does not answer.
    """
    run = find_run(dag_id, run_id)
    place = _documents(run).get(address) if run else None
    if run and run.refusal and not place:
        raise HTTPException(403, run.refusal)
    try:
        content = _read_document(request.app.state.questions, place) if place else None
    except StorageError as error:
        raise HTTPException(503, str(error)) from error
    except SizeError as error:
        raise HTTPException(413, str(error)) from error
    except (TenfoldError, OSError):
        content = None
    if content is None:
        raise HTTPException(404, f"this run has no {DOCUMENTS[address].lower()} yet, or never had one")
    return HTMLResponse(content, headers=DOCUMENT_HEADERS)


def _read_document(questions: "Questions", place: Place) -> bytes:
    """Read a document. A symbolic link is refused, because it may lead to a file that only the api-server may read."""
    if not isinstance(place, Path):
        return questions.ask(place.bucket, ("read", place), partial(read_limited, place, MAX_DOCUMENT_BYTES))
    # O_NONBLOCK: without it, opening a pipe would wait until somebody writes into it.
    with open(place, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        # Of the open file, because the name may lead to another one by now.
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{place} is not a page of a run")
        require_size(place, status.st_size, MAX_DOCUMENT_BYTES)
        return file.read(MAX_DOCUMENT_BYTES)


def comparison(
    request: Request,
    may_see_runs_of: Annotated[MayRead, Depends(readable_runs)],
    dag_id: Annotated[list[str], Query()],
    run_id: Annotated[list[str], Query()],
) -> Response:
    """Return the page that compares runs. The address names the DAG and the id of each run, in the same order.

    Runs that cannot be read are left out, and the page says why. Answers with a page that says why there is none, and
    with 422 if there are too many runs, 403 if the user may see none of them, and 404 if fewer than two can be read.
    """
    from pipeline.report.compare import MAX_RUNS, Comparison
    from pipeline.report.compare_page import render

    asked = [*dict.fromkeys(zip(dag_id, run_id, strict=False))]
    if len(dag_id) != len(run_id) or len(asked) > MAX_RUNS:
        return _no_comparison(422, f"A comparison has 2 to {MAX_RUNS} runs, each with its dag_id and its run_id.")
    if not any(may_see_runs_of(each) for each, _ in asked):
        return _no_comparison(403, "You do not have permission to see the runs of these DAGs.")
    runs = [_asked_run(*ids, may_see_runs_of) for ids in asked]
    found, left_out = _compared_and_left_out(request.app.state.record_folders, runs)
    if len(found) < 2:
        return _no_comparison(404, "Two runs are needed for a comparison.", *left_out)
    is_live = any(each.run and not each.run.is_over for each in runs)
    compared, named = zip(*found, strict=True)
    page = render(Comparison(compared), named, left_out, RELOAD_S if is_live else None)
    return HTMLResponse(page.encode("utf-8", "backslashreplace"), headers=DOCUMENT_HEADERS)


def _no_comparison(status: int, *sentences: str) -> HTMLResponse:
    """Return a page that says why there is no comparison. A bucket, or a run, may be ready later."""
    paragraphs = "\n".join(f"<p>{escape(each)}</p>" for each in sentences)
    page = (STATIC / "no_comparison.html").read_text(encoding="utf-8").replace("<p>WHY</p>", paragraphs)
    return HTMLResponse(page.encode("utf-8", "backslashreplace"), status)


@dataclass(frozen=True)
class _Asked:
    """A run that a person wants to compare."""

    name: str
    run: AirflowRun | None = None
    """None if there is none, or if the user may not see it."""
    why_not: str = ""
    """Why it is left out; empty if it can be compared."""

    def left_out(self, why: str) -> str:
        return f"{self.name} is left out: {why}."


def _asked_run(dag_id: str, run_id: str, may_see_runs_of: MayRead) -> _Asked:
    name = f"{run_id} of {dag_id}"
    if not may_see_runs_of(dag_id):
        return _Asked(name, why_not="you do not have permission to see the runs of this DAG")
    run = find_run(dag_id, run_id)
    if run is None:
        return _Asked(name, why_not="there is no run with this id")
    why_not = "" if run.training else run.refusal or "it has no training yet, or never had one"
    return _Asked(name, run, why_not)


def _compared_and_left_out(
    folders: "RecordFolders", runs: Sequence[_Asked]
) -> "tuple[list[tuple[ComparedRun, Named]], list[str]]":
    """Return what a comparison shows of each run, and a sentence for each run that is left out."""
    from pipeline.system.parallel import ordered_map
    from pipeline.watch.questions import MAX_PER_BUCKET
    from pipeline.watch.records import Room

    found, left_out, answers_bytes = [], [], MAX_ANSWERS_BYTES
    # A silent bucket lets each of its runs wait, so they wait together.
    records = ordered_map(partial(_record_of, folders, Room()), runs, MAX_PER_BUCKET)
    for asked, folder in zip(runs, records, strict=True):
        each = folder if isinstance(folder, str) else _compared(asked, folder, answers_bytes)
        if isinstance(each, str):
            left_out.append(asked.left_out(each))
        else:
            found.append(each)
            answers_bytes -= each[0].answers_bytes
    return found, left_out


def _record_of(folders: "RecordFolders", room: "Room", asked: _Asked) -> Path | str:
    """Return a local folder with the record of a run, or why it is left out."""
    if asked.why_not or asked.run is None or asked.run.training is None:
        return asked.why_not
    try:
        require_folder(asked.run.training)
        return folders.local_folder(asked.run.training, room)
    except (TenfoldError, OSError) as error:
        return f"it cannot be read: {error}"


def _compared(asked: _Asked, folder: Path, answers_bytes: int) -> "tuple[ComparedRun, Named] | str":
    """Return what a comparison shows of a run, or why it is left out. Its answers have at most `answers_bytes`."""
    from pipeline.report.compare_page import Named
    from pipeline.report.compared_run import load_compared

    assert asked.run is not None
    try:
        compared = load_compared(folder, answers_bytes)
    # The last ones: a file has text or a list where a number belongs, or lacks a value.
    except (TenfoldError, OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        return f"it cannot be read: {error}"
    if not compared.files.run:
        return "its files were removed"
    dag, quoted = (quote(each, safe="") for each in (asked.run.dag_id, asked.run.run_id))
    return compared, Named(asked.run.dag_id, f"../dags/{dag}/runs/{quoted}/plugin/training")
