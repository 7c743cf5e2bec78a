"""The address of a database: a URL that is stored and shown without its password.

What is stored may end in `#` and the text of the plan file, if that names environment variables:
the password is read from them again for each connection.
"""

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from cleveragents.errors import UsageError

VARIABLE = re.compile(r"\$(?:(\$)|\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
SECRETS = ("password", "sslpassword")
_URL = re.compile(
    r"(?P<scheme>postgres(?:ql)?://)(?:(?P<user>[^:@/]*)(?::(?P<password>[^@/]*))?@)?"
    r"(?P<hosts>[^/?]*)(?:/(?P<database>[^?]*))?(?:\?(?P<query>.*))?",
    re.DOTALL,
)


def expand(text: str, environ: Mapping[str, str]) -> str:
    """The text with `$VAR` and `${VAR}` filled in; `$$` is a plain dollar."""
    return VARIABLE.sub(lambda m: m[1] or environ[m[2] or m[3]], text)


def storable(expanded: str, written: str) -> str:
    """The part of a plan file's URL that may be stored."""
    parts = _parts(expanded)
    if not parts["database"]:
        raise UsageError("the URL names no database", "postgresql://USER@HOST:PORT/DATABASE")
    if "/" in unquote(parts["database"]):
        raise UsageError("the URL names no database", "put a / before its name")
    if has_secret(written):
        raise UsageError(
            "the URL contains a password, and the plan file is kept in the store",
            "url: $DATABASE_URL, or put the password into PGPASSWORD or ~/.pgpass",
        )
    names_variables = any(not match[1] for match in VARIABLE.finditer(written))
    return _joined(parts) + (f"#{quote(written, safe='')}" if names_variables else "")


def has_secret(written: str) -> bool:
    """Whether the text holds a password itself, not just names of variables."""
    match = _URL.fullmatch(written)
    if match is None:
        return False
    given = [match["password"] or "", *_query(match["query"], secret=True).values()]
    return any(VARIABLE.sub("", text) for text in given)


def public(url: str) -> str:
    """A URL without its secrets."""
    return _joined(_parts(url))


def secrets_of(url: str) -> list[str]:
    """The secrets in a URL, plain and percent-encoded."""
    parts = _parts(url)
    given = [parts["password"], *_query(parts["query"], secret=True).values()]
    return [text for one in given if one for text in (one, unquote(one))]


def shown(stored: str) -> str:
    """The URL for people."""
    return stored.partition("#")[0]


def database_of(stored: str) -> str:
    return unquote(_parts(shown(stored))["database"])


def with_database(stored: str, name: str) -> str:
    """The URL of another database on the same server, without password."""
    return _joined(_parts(shown(stored)) | {"database": quote(name, safe="")})


def with_password(url: str, password: str) -> str:
    parts = _parts(url)
    return _joined(parts, f":{quote(password, safe='')}" if password else "")


def password_of(stored: str, environ: Mapping[str, str]) -> str:
    """The password from the plan file's variables as set now, else from PGPASSWORD.

    Empty: libpq finds it itself (~/.pgpass), or there is none.
    """
    url, _, written = stored.partition("#")
    try:
        parts = _parts(expand(unquote(written), environ))
    except (KeyError, UsageError):
        return environ.get("PGPASSWORD", "")
    if _joined(parts) != url:
        return environ.get("PGPASSWORD", "")
    secret = _query(parts["query"], secret=True).get("password", parts["password"])
    return unquote(secret) or environ.get("PGPASSWORD", "")


def _parts(url: str) -> dict[str, str]:
    match = _URL.fullmatch(url)
    if match is None:
        raise UsageError("not a PostgreSQL URL", "postgresql://USER@HOST:PORT/DATABASE")
    return {name: value or "" for name, value in match.groupdict().items()}


def _query(text: str | None, secret: bool) -> dict[str, str]:
    pairs = (one.partition("=") for one in (text or "").split("&") if one)
    return {name: value for name, _, value in pairs if (name in SECRETS) is secret}


def _joined(parts: dict[str, str], password: str = "") -> str:
    user = f"{parts['user']}{password}@" if parts["user"] or password else ""
    rest = "&".join(f"{n}={v}" for n, v in _query(parts["query"], secret=False).items())
    query = f"?{rest}" if rest else ""
    return f"postgresql://{user}{parts['hosts']}/{parts['database']}{query}"
