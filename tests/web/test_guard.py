"""Nobody but the browser that was given the address gets in, and only the page changes anything."""

import pytest
from starlette.testclient import TestClient

from cleveragents.web.guard import POLICY
from cleveragents.workspace import open_workspace
from tests.in_process import Yard
from tests.web.visitor import HERE, Visitor


@pytest.fixture
def plan_id(yard: Yard) -> str:
    with open_workspace() as ws:
        return yard.done(ws).plan_id


def test_the_token_is_good_for_one_browser(yard: Yard) -> None:
    visitor = Visitor(enter=False)
    assert visitor.client.get("/").status_code == 403
    assert visitor.client.get("/enter", params={"token": "wrong"}).status_code == 403
    entered = visitor.client.get("/enter", params={"token": visitor.token})
    assert entered.status_code == 303
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert visitor.client.get("/").status_code == 200

    other = TestClient(visitor.client.app, base_url=HERE)
    assert other.get("/enter", params={"token": visitor.token}).status_code == 403
    assert other.get("/").status_code == 403


def test_a_request_without_the_cookie_learns_nothing(plan_id: str) -> None:
    stranger = Visitor(enter=False).client
    for path in ("/", f"/plans/{plan_id}", "/static/style.css", f"/plans/{plan_id}/panel"):
        answer = stranger.get(path)
        assert answer.status_code == 403
        assert plan_id not in answer.text
    assert stranger.get("/", headers={"Cookie": "agents=guessed"}).status_code == 403
    assert stranger.get("/", headers={"Cookie": "a=\x01;;=="}).status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:4567", "127.0.0.1:80", "", "127.0.0.1"]
)
def test_another_host_is_refused_even_with_the_cookie(yard: Yard, host: str) -> None:
    visitor = Visitor()
    assert visitor.client.get("/", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]"])
def test_this_machine_has_three_names(yard: Yard, name: str) -> None:
    assert Visitor().client.get("/", headers={"Host": f"{name}:4567"}).status_code == 200


def test_every_answer_forbids_what_the_page_does_not_need(yard: Yard) -> None:
    visitor = Visitor()
    for answer in (
        visitor.client.get("/"),
        visitor.client.get("/plans/none"),
        visitor.client.put("/"),
    ):
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
    assert "unsafe" not in POLICY
    assert "http" not in POLICY


def test_pages_load_nothing_from_elsewhere_and_have_nothing_inline(plan_id: str) -> None:
    visitor = Visitor()
    for path in ("/", f"/plans/{plan_id}"):
        text = visitor.get(path)
        assert "<style" not in text
        assert ' style="' not in text
        assert "<script>" not in text
        assert ' onclick="' not in text
        for found in ("http://", "https://", '"//'):
            assert found not in text.replace("http://www.w3.org/2000/svg", "")


def test_what_is_served_beside_pages_is_only_what_belongs_to_them(yard: Yard) -> None:
    visitor = Visitor()
    assert "htmx" in visitor.get("/static/htmx.min.js")
    assert "Zero-Clause BSD" in visitor.get("/static/htmx.LICENSE")
    for path in ("/static/none.css", "/static/..%2Fapp.py", "/static/%2e%2e/app.py", "/nowhere"):
        assert visitor.client.get(path).status_code == 404
