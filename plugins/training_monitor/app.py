"""The web application that Airflow's api-server mounts. It reads, and never writes.

Everybody has to be logged in, and may see the runs of those DAGs that Airflow lets them read. What a page shows comes
as JSON and is put there as text, so that no name of a file, a label or a run is ever read as markup.
"""

import os
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache, partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
from anyio import CapacityLimiter, to_thread
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from starlette.middleware.gzip import GZipMiddleware

from pipeline.errors import StorageError, TenfoldError
from pipeline.storage import Place
from pipeline.watch.states import STATE_NAMES
from plugins.training_monitor.links import Link, log_link
from plugins.training_monitor.listing import Column, MayRead, listed, zone_of
from plugins.training_monitor.listing import Query as Asked
from plugins.training_monitor.runs import Found, Trainings, find_run

if TYPE_CHECKING:
    from pipeline.watch.copies import Copies
    from pipeline.watch.questions import Questions

STATIC = Path(__file__).with_name("static")
ASSETS = ("monitor.css", "axes.js", "monitor.js", "run.js", "trainings.js", "icon.svg", "icon-dark.svg")
MAX_ROWS = 1000
MAX_SEARCH = 200
"""Most letters of a search, and of the name of a time zone."""
LARGEST_NUMBER = 2**31 - 1
"""Of a run in Airflow's database: a larger one is an error there."""
MAX_THREADS = 8
"""Most threads of all Tenfold pages at once. Without it, they would share the 40 threads of Airflow's pages."""
MAX_DOCUMENT_BYTES = 64 << 20
"""A report is far smaller. The api-server must not read a file of gigabytes into its memory."""
PAGES = {
    # Bokeh puts its style sheets into the page as elements; everything else has to be a file of ours.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
DOCUMENTS = {
    **PAGES,
    # Written by tasks into a workspace that others may write to: without allow-same-origin it is nobody, and what a
    # script in it might do is done without the reader's log-in.
    "Content-Security-Policy": (
        "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    ),
}
_read_runs = requires_access_dag(method="GET", access_entity=DagAccessEntity.RUN)


def may_see_runs(request: Request, user: Annotated[Any, Depends(get_user)]) -> None:
    """Raises 403 without the right to see the runs of the DAG in the address, or any runs where it names none."""
    # PostgreSQL takes no text with a zero byte, and Airflow's check would end in an error. No DAG has such an id.
    if "\0" in request.query_params.get("dag_id", ""):
        request = Request({**request.scope, "query_string": b""})
    _read_runs(request, user)


_OF_THE_RUN = [Depends(may_see_runs)]


def readable_dags(user: Annotated[Any, Depends(get_user)]) -> set[str]:
    """Ids of the DAGs that the user may read."""
    # Airflow's own dependency looks for the manager in the application that is asked, which is ours here.
    dag_ids: set[str] = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    return dag_ids


def readable_logs(user: Annotated[Any, Depends(get_user)]) -> MayRead:
    """Return a function that says whether the user may read the logs of a DAG, by its id."""

    @cache
    def may_read(dag_id: str) -> bool:
        asked = {"access_entity": DagAccessEntity.TASK_LOGS, "details": DagDetails(id=dag_id)}
        return bool(get_auth_manager().is_authorized_dag(method="GET", user=user, **asked))

    return may_read


def build() -> FastAPI:
    """The application, whose every address asks for a log-in."""
    from pipeline.watch.copies import Copies
    from pipeline.watch.heartbeats import Heartbeats
    from pipeline.watch.questions import Questions
    from pipeline.watch.summary import Summaries

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, dependencies=[Depends(get_user)])
    app.state.questions = Questions()
    app.state.copies = Copies(app.state.questions)
    app.state.heartbeats = Heartbeats()
    app.state.summaries = Summaries()
    # A search reads up to 2000 trainings. If they are in a slow bucket, ordinary lists must not wait for them.
    app.state.searches = Summaries()
    bounded = partial(_bounded, limiter=CapacityLimiter(MAX_THREADS))
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=4)
    app.middleware("http")(_with_headers)
    app.get("/assets/{name}")(asset)
    app.get("/trainings")(trainings_page)
    app.get("/trainings.json", dependencies=_OF_THE_RUN)(bounded(trainings))
    app.get("/run", dependencies=_OF_THE_RUN)(run_page)
    app.get("/data", dependencies=_OF_THE_RUN)(bounded(data))
    app.get("/report", dependencies=_OF_THE_RUN)(bounded(report))
    app.get("/card", dependencies=_OF_THE_RUN)(bounded(card))
    return app


def _bounded(endpoint: Callable[..., Response], limiter: CapacityLimiter) -> Callable[..., Awaitable[Response]]:
    """Run an endpoint in one of a few threads, so that Airflow's own pages never wait for Tenfold's."""

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
    """A file that the pages are made of. Raises 404 for any other."""
    import bokeh

    import pipeline.report

    ours = {each: STATIC / each for each in ASSETS}
    library = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"
    known = {**ours, "words.js": Path(pipeline.report.__file__).with_name("words.js"), "bokeh.js": library}
    if name not in known:
        raise HTTPException(404, f"no file {name!r}")
    return FileResponse(known[name], headers={"Cache-Control": "private, max-age=3600"})


def trainings_page() -> HTMLResponse:
    """The page of all trainings. It asks `trainings` for them."""
    return _page("trainings.html")


def trainings(
    request: Request,
    dag_ids: Annotated[set[str], Depends(readable_dags)],
    may_read_log: Annotated[MayRead, Depends(readable_logs)],
    limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 100,
    offset: Annotated[int, Query(ge=0, le=LARGEST_NUMBER)] = 0,
    before: Annotated[int | None, Query(ge=0, le=LARGEST_NUMBER)] = None,
    dag_id: Annotated[str | None, Query()] = None,
    search: Annotated[str, Query(max_length=MAX_SEARCH)] = "",
    sort: Column = "started",
    up: bool = False,
    zone: Annotated[str, Query(max_length=MAX_SEARCH)] = "",
) -> JSONResponse:
    """Return a page of the trainings of the DAGs that the user may read, or of those `before` the number of a row.

    With `dag_id`, the page has only trainings of this DAG, because the right to see runs was checked for it alone.
    `Query` in listing.py describes the other parameters, and `listed` the answer.
    """
    trainings = Trainings(dag_ids if dag_id is None else dag_ids & {dag_id}, before)
    asked = Asked(limit, offset, search, sort, up, zone_of(zone))
    state = request.app.state
    summaries = state.summaries if asked.is_of_newest else state.searches
    return JSONResponse(listed(trainings, summaries, asked, may_read_log))


def run_page(request: Request) -> HTMLResponse:
    """The page of a run. It asks `data` for all that it shows, also whether there is such a run."""
    page = _page("run.html")
    if "other_run_id" not in request.query_params:
        # What static/run.js asks for first; so it is on its way while the browser still reads the scripts.
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
    after: Annotated[float | None, Query()] = None,
    start: Annotated[float | None, Query()] = None,
    end: Annotated[float | None, Query()] = None,
    shown: Annotated[str, Query()] = "",
) -> Response:
    """What there is to see of a run now, with its figures unless those are `shown`.

    With `after` (ms from the start) of the curves only what is newer; with `start` and `end` (also ms) between
    those as closely as it was measured.
    """
    found = find_run(dag_id, run_id)
    if found and not may_read_log(dag_id):
        found = found.without_words()
    if found is None or found.training is None:
        links = [*_links_of_run(request.app.state.questions, found)] if found else []
        return JSONResponse({"status": {**_without_training(found), "links": links}})
    closer = None if start is None or end is None else (start, end)
    try:
        return JSONResponse(_content(request.app.state, found, found.training, after, closer, shown))
    except (TenfoldError, OSError, ValueError) as error:  # ValueError: what others wrote there is no number, or no text
        words = str(error).encode("utf-8", "backslashreplace").decode()
        return JSONResponse({"status": {"state": "unknown", "words": words}})


def _content(
    state: Any,
    found: Found,
    training: Place,
    after: float | None,
    closer: tuple[float, float] | None,
    shown: str,
) -> dict[str, Any]:
    from pipeline.watch.page_data import data as drawn
    from pipeline.watch.page_data import span_of

    copies: Copies = state.copies
    folder = copies.at_hand(training)
    span = copies.bring(training, span_of(folder, *closer)) if closer else None
    content = drawn(folder, found.is_over, after, span, shown, state.heartbeats)
    _add_run(found, content["status"])
    content["status"]["name"] = STATE_NAMES[content["status"]["state"]]
    content["status"]["links"] = list(_links(state.questions, found, content["status"]))
    return content


def _add_run(found: Found, status: dict[str, Any]) -> None:
    """Add what Airflow knows of the run to the status of its training."""
    if found.waits and status["state"] != "trained":
        status["words"] += f"; {found.waits}"
    if found.is_over and found.failure:
        status["words"] += f". {found.failure.sentence}"
        status["state"] = "failed" if status["state"] == "stopped" else status["state"]


def _links(questions: "Questions", found: Found, status: Mapping[str, Any]) -> Iterator[Link]:
    """Yield the links to the other pages of a run."""
    from pipeline.report import REPORT

    query = _query(found)
    if found.training and status["state"] == "trained" and _exists(questions, found.training / REPORT):
        yield "Report", f"report?{query}"
    yield from _links_of_run(questions, found)
    if str(status["comet"]).startswith("https://"):
        yield "Comet", str(status["comet"])


def _links_of_run(questions: "Questions", found: Found) -> Iterator[Link]:
    from pipeline.dataset.manifest import CARD

    if link := log_link(found):
        yield link
    if found.dataset and _exists(questions, found.dataset / CARD):
        yield "Data set card", f"card?{_query(found)}"


def _exists(questions: "Questions", place: Place) -> bool:
    """Whether a file exists. False if its bucket does not answer in time."""
    if isinstance(place, Path):
        return place.exists()
    try:
        return questions.ask(place.bucket, ("exists", place), place.exists)
    except (TenfoldError, OSError):
        return False


def _query(found: Found) -> str:
    return urlencode({"dag_id": found.dag_id, "run_id": found.run_id})


def _without_training(found: Found | None) -> dict[str, str]:
    if found is None:
        return {"state": "unknown", "words": "There is no run of this id."}
    if not found.trains:
        return {"state": "none", "words": "No task of this DAG trains a model."}
    if found.is_over and found.failure:
        hint = "" if found.failure.words else " Its log says why."
        return {"state": "failed", "words": f"This run trained nothing. {found.failure.sentence}{hint}"}
    if found.is_over:
        return {"state": "none", "words": "This run trained nothing, or what it left was cleared."}
    words = found.waits or "the tasks before it are still at work."
    return {"state": "waiting", "words": f"The training has not begun: {words}"}


def report(request: Request, dag_id: str, run_id: str) -> Response:
    """Return the report of a run's training. Raises 404 if there is none yet, 503 if its bucket does not answer."""
    from pipeline.report import REPORT

    found = find_run(dag_id, run_id)
    return _document(request.app.state.questions, found and found.training and found.training / REPORT, "report")


def card(request: Request, dag_id: str, run_id: str) -> Response:
    """Return the card of a run's dataset. Raises 404 if there is none yet, 503 if its bucket does not answer."""
    from pipeline.dataset.manifest import CARD

    found = find_run(dag_id, run_id)
    return _document(request.app.state.questions, found and found.dataset and found.dataset / CARD, "data set card")


def _document(questions: "Questions", place: Place | None, what: str) -> Response:
    try:
        content = _content_of(questions, place) if place else None
    except StorageError as error:
        raise HTTPException(503, str(error)) from error
    except (TenfoldError, OSError):
        content = None
    if content is None:
        raise HTTPException(404, f"this run has no {what}, or none yet")
    return HTMLResponse(content, headers=DOCUMENTS)


def _content_of(questions: "Questions", place: Place) -> bytes:
    """Read a document. A symbolic link is refused, because it may lead to a file that only the api-server may read."""
    if not isinstance(place, Path):
        return questions.ask(place.bucket, ("read", place), place.read_bytes)
    descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_DOCUMENT_BYTES:
            raise OSError(f"{place} is no document of a run")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_DOCUMENT_BYTES)
    finally:
        os.close(descriptor)
