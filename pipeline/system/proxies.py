"""Proxies in the environment. Their addresses may contain a password."""

from urllib.request import getproxies

from urllib3.exceptions import LocationParseError
from urllib3.util import parse_url

from pipeline.errors import SettingsError


def require_proxies() -> None:
    """Refuse a proxy whose address cannot be parsed. Other libraries would show all of it, including its password.

    Raises SettingsError, which does not show the address.
    """
    for name, address in getproxies().items():
        # NO_PROXY is a list of hosts.
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
