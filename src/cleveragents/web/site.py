"""Shared by all pages: a workspace per request, templates, cached results."""

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from cleveragents.errors import AgentsError
from cleveragents.model.settings import Settings
from cleveragents.web.commands import Commands
from cleveragents.web.guard import Keys
from cleveragents.web.render import render
from cleveragents.web.view.changes import Shelf
from cleveragents.web.view.pictures import Album
from cleveragents.web.view.words import first_upper
from cleveragents.workspace import Workspace, open_workspace

Page = Callable[[Workspace, Request], Response]


class Notice(msgspec.Struct, frozen=True):
    """A message at the top of a page."""

    text: str
    hint: str = ""
    failed: bool = False
    more: tuple[str, ...] = ()


class Site:
    """What all pages share."""

    def __init__(
        self, settings: Settings, keys: Keys, overrides: dict[str, str] | None = None
    ) -> None:
        self.settings = settings
        self.keys = keys
        self.shelf: Shelf = Shelf()
        self.album: Album = Album()
        self.commands: Commands = Commands(settings, overrides)

    def page(self, show: Page) -> Callable[[Request], Response]:
        """An endpoint with a workspace of its own; Starlette runs it in a thread."""

        def endpoint(request: Request) -> Response:
            try:
                with open_workspace(settings=self.settings) as ws:
                    return show(ws, request)
            except AgentsError as error:
                return error_response(error)

        return endpoint

    def html(self, template: str, status: int = 200, **values: Any) -> Response:
        return HTMLResponse(
            render(
                template, form=self.keys.form, is_shared=bool(self.settings.store_url), **values
            ),
            status,
        )

    def told(self, plan_id: str, done: str) -> Notice | None:
        """The message of the last command started here."""
        job = self.commands.of(plan_id)
        outcome = job.ended() if job else None
        if job is None or outcome is None or (outcome.ok and not done):
            return None
        if outcome.ok:
            return Notice(f"{DONE.get(done, 'Done')}.", job.shown, more=outcome.messages)
        return Notice(first_upper(outcome.message), outcome.hint, failed=not outcome.interrupted)


DONE = {
    "rollback": "Rolled back",
    "undo": "Undone",
    "redo": "Done again",
    "correct": "Corrected",
    "resume": "Resumed, and it came to its end",
    "apply": "Applied",
    "keep": "Kept as a moment",
    "cancel": "Cancelled",
}
"""What the last command did, by its verb."""


def plan_id(ws: Workspace, request: Request) -> str:
    """The plan in the address: its whole id, else whatever names it in a terminal."""
    return ws.find(request.path_params["plan"]).plan_id


def error_response(error: AgentsError) -> Response:
    """An error as the command line says it."""
    code = {2: 400, 3: 404, 4: 409}.get(error.exit_code, 500)
    return HTMLResponse(render("wrong.html", message=error.message, hint=error.hint), code)
