"""The web application that Airflow's api-server mounts. It reads, and never writes.

Everybody has to be logged in, and may see the runs of those DAGs that Airflow lets them read. What a page shows comes
as JSON and is put there as text, so that no name of a file, a label or a run is ever read as markup.
"""

import os
import stat
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlencode

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from starlette.middleware.gzip import GZipMiddleware

from pipeline.errors import TenfoldError
from pipeline.storage import Place
from plugins.training_monitor.runs import Found, find_run, newest_trainings

if TYPE_CHECKING:
    from pipeline.watch.copies import Copies
    from pipeline.watch.summary import Summaries

STATIC = Path(__file__).with_name("static")
ASSETS = ("monitor.css", "axes.js", "monitor.js", "run.js", "trainings.js", "icon.svg", "icon-dark.svg")
MOST_ROWS = 1000
LARGEST_NUMBER = 2**31 - 1
"""Of a run in Airflow's database: a larger one is an error there."""
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


def build() -> FastAPI:
    """The application, whose every address asks for a log-in."""
    from pipeline.watch.copies import Copies
    from pipeline.watch.summary import Summaries

    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, dependencies=[Depends(get_user)])
    app.state.copies = Copies()
    app.state.summaries = Summaries()
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=4)
    app.middleware("http")(_with_headers)
    app.get("/assets/{name}")(asset)
    app.get("/trainings")(trainings_page)
    app.get("/trainings.json", dependencies=_OF_THE_RUN)(trainings)
    app.get("/run", dependencies=_OF_THE_RUN)(run_page)
    app.get("/data", dependencies=_OF_THE_RUN)(data)
    app.get("/report", dependencies=_OF_THE_RUN)(report)
    app.get("/card", dependencies=_OF_THE_RUN)(card)
    return app


async def _with_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    for name, value in PAGES.items():
        response.headers.setdefault(name, value)
    return response


def asset(name: str) -> FileResponse:
    """A file that the pages are made of. Raises 404 for any other."""
    import bokeh

    ours = {each: STATIC / each for each in ASSETS}
    known = {**ours, "bokeh.js": Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"}
    if name not in known:
        raise HTTPException(404, f"no file {name!r}")
    return FileResponse(known[name], headers={"Cache-Control": "private, max-age=3600"})


def trainings_page() -> HTMLResponse:
    """The page of all trainings. It asks `trainings` for them."""
    return _page("trainings.html")


def trainings(
    request: Request,
    dag_ids: Annotated[set[str], Depends(readable_dags)],
    limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 100,
    before: Annotated[int | None, Query(ge=0, le=LARGEST_NUMBER)] = None,
    dag_id: Annotated[str | None, Query()] = None,
) -> JSONResponse:
    """The newest trainings of the DAGs that the user may read, or those ``before`` a number that a row has.

    With ``dag_id``, only those of this DAG: the right to see runs was checked for it alone. ``more`` says whether there
    are older ones.
    """
    found = newest_trainings(dag_ids if dag_id is None else dag_ids & {dag_id}, limit + 1, before)
    rows = list(_rows(request.app.state.summaries, found[:limit]))
    return JSONResponse({"rows": rows, "more": len(found) > limit})


def _rows(summaries: "Summaries", runs: Sequence[Found]) -> Iterator[dict[str, Any]]:
    from pipeline.watch.summary import GONE, Training

    told = iter(summaries.of([Training(run.training, run.is_over) for run in runs if run.training]))
    for run in runs:
        ids = {"number": run.number, "dag_id": run.dag_id, "run_id": run.run_id}
        yield {**ids, "start": run.start and run.start.isoformat(), **asdict(next(told) if run.training else GONE)}


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
    after: Annotated[float | None, Query()] = None,
    start: Annotated[float | None, Query()] = None,
    end: Annotated[float | None, Query()] = None,
    shown: Annotated[str, Query()] = "",
) -> Response:
    """What there is to see of a run now, with its figures unless those are ``shown``.

    With ``after`` (ms from the start) of the curves only what is newer; with ``start`` and ``end`` (also ms) between
    those as closely as it was measured.
    """
    found = find_run(dag_id, run_id)
    if found is None or found.training is None:
        links = [*_log_link(found), *_card_link(found)]
        return JSONResponse({"status": {**_without_training(found), "links": links}})
    closer = None if start is None or end is None else (start, end)
    try:
        return JSONResponse(_content(request.app.state.copies, found, found.training, after, closer, shown))
    except (TenfoldError, OSError, ValueError) as error:  # ValueError: what others wrote there is no number, or no text
        words = str(error).encode("utf-8", "backslashreplace").decode()
        return JSONResponse({"status": {"state": "unknown", "words": words}})


def _content(
    copies: "Copies",
    found: Found,
    training: Place,
    after: float | None,
    closer: tuple[float, float] | None,
    shown: str,
) -> dict[str, Any]:
    from pipeline.watch.data import data as drawn
    from pipeline.watch.data import span_of

    folder = copies.at_hand(training)
    span = closer and span_of(folder, *closer)
    if span:
        copies.bring(training, span)
    content = drawn(folder, found.is_over, after, span, shown)
    if found.waits and content["status"]["state"] != "trained":
        content["status"]["words"] += f"; {found.waits}"
    content["status"]["links"] = list(_links(found, content["status"]))
    return content


def _links(found: Found, status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(words, address) of what else there is to see of a run."""
    from pipeline.report import REPORT

    query = _query(found)
    if found.training and status["state"] == "trained" and (found.training / REPORT).exists():
        yield "Report", f"report?{query}"
    yield from _card_link(found)
    if str(status["comet"]).startswith("https://"):
        yield "Comet", str(status["comet"])


def _card_link(found: Found | None) -> Iterator[tuple[str, str]]:
    from pipeline.report import CARD

    if found and found.dataset and (found.dataset / CARD).exists():
        yield "Data set card", f"card?{_query(found)}"


def _log_link(found: Found | None) -> Iterator[tuple[str, str]]:
    if found and found.failed:
        dag_id, run_id, task_id = (quote(each, safe="") for each in (found.dag_id, found.run_id, found.failed))
        yield f"Log of {found.failed}", f"../dags/{dag_id}/runs/{run_id}/tasks/{task_id}"


def _query(found: Found) -> str:
    return urlencode({"dag_id": found.dag_id, "run_id": found.run_id})


def _without_training(found: Found | None) -> dict[str, str]:
    if found is None:
        return {"state": "unknown", "words": "There is no run of this id."}
    if not found.trains:
        return {"state": "none", "words": "No task of this DAG trains a model."}
    if found.is_over and found.failed:
        return {
            "state": "none",
            "words": f"This run trained nothing: its task {found.failed} failed. Its log says why.",
        }
    if found.is_over:
        return {"state": "none", "words": "This run trained nothing, or what it left was cleared."}
    words = found.waits or "the tasks before it are still at work."
    return {"state": "waiting", "words": f"The training has not begun: {words}"}


def report(dag_id: str, run_id: str) -> Response:
    """The report of a run's training. Raises 404 where there is none yet."""
    from pipeline.report import REPORT

    found = find_run(dag_id, run_id)
    return _document(found and found.training and found.training / REPORT, "report")


def card(dag_id: str, run_id: str) -> Response:
    """The card of the data set that a run made or took. Raises 404 where there is none yet."""
    from pipeline.report import CARD

    found = find_run(dag_id, run_id)
    return _document(found and found.dataset and found.dataset / CARD, "data set card")


def _document(place: Place | None, what: str) -> Response:
    try:
        content = _content_of(place) if place else None
    except (TenfoldError, OSError):
        content = None
    if content is None:
        raise HTTPException(404, f"this run has no {what}, or none yet")
    return HTMLResponse(content, headers=DOCUMENTS)


def _content_of(place: Place) -> bytes:
    """Read a document. A symbolic link is refused, because it may lead to a file that only the api-server may read."""
    if not isinstance(place, Path):
        return place.read_bytes()
    descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_DOCUMENT_BYTES:
            raise OSError(f"{place} is no document of a run")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_DOCUMENT_BYTES)
    finally:
        os.close(descriptor)
