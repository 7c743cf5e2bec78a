"""A browser without a window: the page's application in this process, as its own visitor."""

import re
from html import unescape

from httpx import Response
from starlette.testclient import TestClient

from cleveragents.web.app import create_app
from cleveragents.web.commands import Commands
from cleveragents.web.guard import Keys
from cleveragents.workspace import settings_here

PORT = 4567
HERE = f"http://127.0.0.1:{PORT}"


class Visitor:
    """Somebody who opened the address that `agents web` printed."""

    def __init__(self, enter: bool = True) -> None:
        self.keys = Keys()
        app = create_app(settings_here(), self.keys, PORT)
        self.commands: Commands = app.state.commands
        self.client = TestClient(app, base_url=HERE, follow_redirects=False)
        self.token = self.keys.token
        if enter:
            assert self.client.get("/enter", params={"token": self.token}).status_code == 303

    def get(self, path: str, expect: int = 200) -> str:
        answer = self.client.get(path)
        assert answer.status_code == expect, (path, answer.status_code, words(answer.text))
        return answer.text

    def post(self, path: str, expect: int = 303, **fields: str | list[str]) -> Response:
        """Send the page's own form."""
        data = {"form": self.keys.form, **fields}
        answer = self.client.post(path, data=data, headers={"Origin": HERE})
        assert answer.status_code == expect, (path, answer.status_code, words(answer.text))
        return answer


def words(html: str) -> str:
    """What one reads on a page."""
    body = re.sub(r"<(style|script|svg)\b.*?</\1>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def rows(html: str) -> list[str]:
    """The rows of the line, each as one reads it."""
    parts = re.split(r'(?=<li class="(?:moment|op|cut|since))|</ol>', html)
    return [words(part) for part in parts if part.startswith('<li class="moment')]


def classes(html: str) -> list[str]:
    """What kind of row each is."""
    return re.findall(r'<li class="(moment[^"]*)"', html)
