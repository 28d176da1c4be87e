"""A training that needs more slots of its pool than there are is refused when its run is asked for.

Its servers would otherwise wait for each other until they give up. Airflow's tasks cannot ask how many slots a pool has
(3.3 tells them of no pools); its api-server can, through which all runs by hand, by REST and of backfills come.
"""

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dags.defaults import form_defaults
from dags.places import GPU_POOL

DAGS = ("image_training", "retrain")
_SETTING = "num_training_servers"
_ASKED = re.compile(r"/api/v2/(dags/(?P<dag>[^/]+)/dagRuns|backfills)/?$")


class EnoughSlots:
    """A middleware of the api-server: lets all pass but such a run, and whoever is not logged in."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = _ASKED.search(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if not asked:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        body = await request.body()
        if await _is_known(request) and (words := await run_in_threadpool(refusal, asked["dag"], body)):
            await JSONResponse({"detail": words}, 400)(scope, receive, send)
        else:
            await self._app(scope, _once_more(body, receive), send)


def refusal(dag_id: str | None, body: bytes) -> str:
    """Why a run cannot be made; empty where it can, or where Airflow itself will say what is wrong with it."""
    try:
        asked = json.loads(body)
        conf = asked.get("conf") or asked.get("dag_run_conf") or {}
        servers = int(conf.get(_SETTING, form_defaults().num_training_servers))
    except (ValueError, TypeError, AttributeError):
        return ""
    return _too_few(servers) if (dag_id or asked.get("dag_id")) in DAGS else ""


def _too_few(servers: int) -> str:
    from airflow.models.pool import Pool

    pool = Pool.get_pool(GPU_POOL)
    if pool is None or pool.slots < 0 or servers <= pool.slots:  # -1: as many as one likes
        return ""
    return (
        f"{_SETTING}={servers} needs as many slots of the pool {GPU_POOL!r}, which has {pool.slots}: "
        "give it more under Admin, Pools, or train on fewer servers"
    )


async def _is_known(request: Request) -> bool:
    """Whether somebody is logged in. Who is not is told so by Airflow, and learns nothing here."""
    from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
    from airflow.api_fastapi.core_api.security import resolve_user_from_token
    from fastapi import HTTPException

    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    given: Mapping[str, str] = request.cookies
    try:
        await resolve_user_from_token(token if scheme.lower() == "bearer" else given.get(COOKIE_NAME_JWT_TOKEN))
    except HTTPException:
        return False
    return True


def _once_more(body: bytes, receive: Receive) -> Callable[[], Awaitable[Message]]:
    """Gives the body that was read to whoever comes next."""
    left: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return left.pop() if left else await receive()

    return again
