"""Running servers of PostgreSQL and Redis. Each user has its own database and key prefix, which are deleted at the end.

TENFOLD_TEST_POSTGRES and TENFOLD_TEST_REDIS are their addresses, with user and password if the servers require them.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg2
import psycopg2.extensions
import redis
from sqlalchemy import make_url

POSTGRES = os.environ.get("TENFOLD_TEST_POSTGRES") or "postgresql://127.0.0.1:5432/postgres"
REDIS = os.environ.get("TENFOLD_TEST_REDIS") or "redis://127.0.0.1:6379/0"
_WAIT_S = 3


def silent() -> str:
    """Return which of the two servers do not answer, and why, or an empty string if both answer."""
    reasons = []
    try:
        _connect().close()
    except psycopg2.OperationalError as error:
        reasons.append(f"PostgreSQL: {error}".strip())
    try:
        with closing(_redis()) as client:
            client.ping()
    except redis.RedisError as error:
        reasons.append(f"Redis: {error}")
    return "; ".join(reasons)


@contextmanager
def database() -> Iterator[str]:
    """Yield the address of a new database."""
    name = f"tenfold_test_{secrets.token_hex(6)}"
    _execute(f'CREATE DATABASE "{name}"')
    try:
        yield make_url(POSTGRES).set(drivername="postgresql+psycopg2", database=name).render_as_string(False)
    finally:
        _execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextmanager
def key_prefix() -> Iterator[str]:
    """Yield a prefix that no other key has."""
    prefix = f"tenfold-test-{secrets.token_hex(6)}:"
    yield prefix
    with closing(_redis()) as client:
        for key in client.scan_iter(f"{prefix}*"):
            client.delete(key)


def _execute(statement: str) -> None:
    connection = _connect()
    try:
        connection.autocommit = True  # a database cannot be created within a transaction
        connection.cursor().execute(statement)
    finally:
        connection.close()


def _connect() -> psycopg2.extensions.connection:
    return psycopg2.connect(POSTGRES, connect_timeout=_WAIT_S)


def _redis() -> redis.Redis:
    return redis.Redis.from_url(REDIS, socket_connect_timeout=_WAIT_S, socket_timeout=_WAIT_S)
