"""Addresses of git repositories: what of them is stored, shown and given to git."""

import pytest

from cleveragents.cluster.needs import missing
from cleveragents.errors import UsageError
from cleveragents.model.plan_spec import PlanSpec
from cleveragents.model.resource import Resource
from cleveragents.sandbox.git.address import Address, read, storable

TOKEN = "gh0-t0ken"


@pytest.mark.parametrize(
    ("url", "stored"),
    [
        ("https://host/team/code.git", "https://host/team/code.git"),
        ("https://alice@host/code", "https://alice@host/code"),
        ("http://127.0.0.1:80/x", "http://127.0.0.1:80/x"),
        ("ssh://git@host:22/x.git", "ssh://git@host:22/x.git"),
        ("git@host:team/code.git", "git@host:team/code.git"),
        ("build:code.git", "build:code.git"),
        ("file:///srv/code.git", "file:///srv/code.git"),
        ("git://host/x", "git://host/x"),
    ],
)
def test_addresses_without_variables_are_stored_as_they_are(url: str, stored: str) -> None:
    found = read(storable(url, url, "fix/#12 é$x".replace(" ", "-")))
    assert found == Address(stored, "fix/#12-é$x")
    assert found.login({}) == ("", "")


@pytest.mark.parametrize(
    ("written", "environ", "login"),
    [
        ("$URL", {"URL": f"https://bot:{TOKEN}@host/x"}, ("bot", TOKEN)),
        ("https://bot:$T@host/x", {"T": TOKEN}, ("bot", TOKEN)),
        ("https://$T@host/x", {"T": TOKEN}, (TOKEN, "")),
        ("https://${U}:${T}@host/x", {"U": "b%40c", "T": "p%2Fq"}, ("b@c", "p/q")),
    ],
)
def test_what_comes_from_variables_is_not_stored_and_found_again(
    written: str, environ: dict[str, str], login: tuple[str, str]
) -> None:
    expanded = written
    for name, value in environ.items():
        expanded = expanded.replace(f"${{{name}}}", value).replace(f"${name}", value)
    stored = storable(expanded, written, "main")
    assert TOKEN not in stored
    address = read(stored)
    assert (address.url, address.branch, address.written) == ("https://host/x", "main", written)
    assert address.login(environ) == login
    assert address.login({}) == ("", ""), "the variables are not set any more"


def test_a_login_is_not_given_to_another_place() -> None:
    address = read(storable("https://bot:word@host/x", "$URL", ""))
    assert address.login({"URL": "https://bot:word@host/x"}) == ("bot", "word")
    assert address.login({"URL": "https://bot:word@other/x"}) == ("", "")
    assert address.login({"URL": "no address"}) == ("", "")


@pytest.mark.parametrize(
    "url", ["https://bot:word@host/x", "https://token:@host/x", "https://bot:a$B@host/x"]
)
def test_a_password_in_the_plan_file_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="contains a password") as refused:
        storable(url, url, "")
    assert "word" not in str(refused.value).replace("password", "")


@pytest.mark.parametrize(
    "url",
    ["", "/srv/x", "x", "ext::sh -c id", "ext::sh", "fd::7", "https://h/x?token=1", "https://h/x#y",
     "-u:x", "--upload-pack=x:y", "ftp://h/x", "C:/code", "host:/x y"],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="not the address of a git repository"):
        storable(url, url, "")


@pytest.mark.parametrize("name", ["-x", "a b", "a..b", "x.lock", "/a", "a/", "a//b", "HEAD", "a~1"])
def test_what_no_branch_can_be_called_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid branch name"):
        storable("https://h/x", "https://h/x", name)


def test_a_machine_needs_the_variables_and_not_what_looks_like_one() -> None:
    path = storable("https://bot:word@host/x", "https://bot:$T@host/x", "has$dollar")
    code = Resource(
        resource_id="r", plan_id="p", name="code", kind="git-remote", path=path, strategy="clone"
    )
    spec = PlanSpec(name="x", resources=(), steps=())
    assert missing(spec, [code], {}, lambda _: None) == ["T is not set"]
    assert missing(spec, [code], {"T": "word"}, lambda _: None) == []
