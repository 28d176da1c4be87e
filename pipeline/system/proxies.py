"""Proxies of the environment, whose addresses may hold a password."""

from urllib.request import getproxies

from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from pipeline.errors import SettingsError


def require_proxies() -> None:
    """Refuse a proxy whose address cannot be read: every library that meets it says the whole of it, password included.

    Raises SettingsError, which does not.
    """
    for name, address in getproxies().items():
        if name != "no" and not _is_readable(address):
            raise SettingsError(
                f"the environment variable {name.upper()}_PROXY is not the address of a proxy (not shown, because it "
                "may contain a password): write http://user:password@host:port, with %2F for each / in the password"
            )


def _is_readable(address: str) -> bool:
    try:
        parse_url(address)
    except LocationParseError:
        return False
    return True
