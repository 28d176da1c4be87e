"""The pages of the plugin from a server of this process, with the tables and the log-in of Airflow but no Airflow.

The start page asks Airflow's own API, of which there are only the answers that it needs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

from tests.waiting import until


@contextmanager
def serving() -> Iterator[str]:
    """Yield the address of the pages. Everything of the plugin is below /tenfold, as in Airflow."""
    import uvicorn
    from airflow.api_fastapi.app import init_auth_manager
    from fastapi import FastAPI, Response

    from plugins.training_monitor.app import build
    from tests.plugins.test_start import AirflowApi

    init_auth_manager()
    site, api = FastAPI(), AirflowApi()
    site.get("/api/v2/{path:path}")(lambda path: api.answer("GET", f"/api/v2/{path}", None))
    site.get("/favicon.ico")(lambda: Response(status_code=204))  # every browser asks for it
    site.mount("/tenfold", build())
    server = uvicorn.Server(uvicorn.Config(site, host="127.0.0.1", port=0, log_level="error"))
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def login_of(url: str, *teams: str, role: str = "viewer") -> list[Any]:
    """Return the cookie of a user of these teams, as the page of Airflow leaves it in the browser."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    user = SimpleAuthManagerUser(username="somebody", role=role, teams=list(teams))
    token = get_auth_manager().generate_jwt(user, expiration_time_in_seconds=86_400)
    return [{"name": "_token", "value": token, "url": url, "sameSite": "Lax"}]
