"""The address of a remote git repository: stored and shown without secrets.

What is stored is `URL#BRANCH#TEXT`. The branch is empty for the one that the remote's HEAD names.
The text is the plan file's, if that names environment variables: from these user and password are
read again for each connection.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote

from cleveragents.errors import UsageError
from cleveragents.sandbox.postgres.address import VARIABLE, expand

FORMS = "https://HOST/PATH, ssh://USER@HOST/PATH, USER@HOST:PATH or file:///PATH"
_URL = re.compile(r"(https?|ssh|git|file)://(?:([^/]*)@)?([^?#\s]*)")
_LIKE_SCP = re.compile(r"([^/@:\s]+@)?[^/@:\s-][^/@:\s]*:(?!/{0,1}/)[^:#?\s][^#?\s]*")
_WITH_LOGIN = ("http", "https")
_NO_BRANCH = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^[-/.]|/\.|[/.]$|\.lock$|^@$|^HEAD$")


class Address(NamedTuple):
    url: str
    """Without password."""
    branch: str
    """Without `refs/heads/`; empty: the one that the remote's HEAD names."""
    written: str = ""

    @property
    def stored(self) -> str:
        return "#".join((self.url, quote(self.branch), quote(self.written, safe="")))

    @property
    def server(self) -> str:
        """Scheme, host and port of a URL."""
        return "/".join(self.url.split("/")[:3])

    def login(self, environ: Mapping[str, str]) -> tuple[str, str]:
        """User and password from the variables as set now; both empty: git finds them itself."""
        try:
            expanded = expand(self.written, environ)
            given = _URL.fullmatch(expanded)
            if given is None or given[1] not in _WITH_LOGIN or _public(expanded, True) != self.url:
                return "", ""
        except (KeyError, UsageError):
            return "", ""
        user, _, password = (given[2] or "").partition(":")
        return unquote(user), unquote(password)


def read(stored: str) -> Address:
    url, branch, written = stored.split("#")
    return Address(url, unquote(branch), unquote(written))


def storable(expanded: str, written: str, branch: str) -> str:
    """The part of a plan file's URL that may be stored."""
    if branch and _NO_BRANCH.search(branch):
        raise UsageError(f"{branch!r} is not a valid branch name", "git check-ref-format --help")
    if has_secret(written):
        raise UsageError(
            "the URL contains a password, and the plan file is kept in the store",
            "url: $GIT_URL, or leave it to a credential helper of git",
        )
    from_variables = any(not match[1] for match in VARIABLE.finditer(written))
    return Address(
        _public(expanded, from_variables), branch, written if from_variables else ""
    ).stored


def has_secret(written: str) -> bool:
    """Whether the text holds a password itself, not just names of variables."""
    match = _URL.fullmatch(written)
    _, colon, password = (match[2] or "").partition(":") if match else ("", "", "")
    return bool(colon) and (not password or bool(VARIABLE.sub("", password)))


def _public(url: str, from_variables: bool) -> str:
    """The URL without password, and without user if that may be a token from a variable."""
    match = _URL.fullmatch(url)
    if match is None:
        if _LIKE_SCP.fullmatch(url) and "::" not in url:
            return url
        raise UsageError("not the address of a git repository", FORMS)
    scheme, login, rest = match[1], match[2] or "", match[3]
    user = "" if from_variables and scheme in _WITH_LOGIN else login.partition(":")[0]
    return f"{scheme}://{user}@{rest}" if user else f"{scheme}://{rest}"
