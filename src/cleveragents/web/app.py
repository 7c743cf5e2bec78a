"""The application: which address shows what. Only POST changes something, by running a command."""

from contextlib import suppress
from importlib.resources import files
from shlex import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from cleveragents.errors import AgentsError
from cleveragents.integrations.conversation import current
from cleveragents.lookup import typed_plan
from cleveragents.model.plan import Step
from cleveragents.model.settings import Settings
from cleveragents.plan_handle import PlanHandle
from cleveragents.web.acts import Acts
from cleveragents.web.guard import Guard, Keys
from cleveragents.web.live import events, mark, running_call, step_of
from cleveragents.web.render import render
from cleveragents.web.site import Page, error_response, plan_id
from cleveragents.web.view.changes import summary, summary_of_changes
from cleveragents.web.view.cluster import seen_of
from cleveragents.web.view.compare import Shown, comparison
from cleveragents.web.view.facts import facts_of
from cleveragents.web.view.fold import Fold, folded
from cleveragents.web.view.line import rows_of
from cleveragents.web.view.panel import chosen_row, panel_of
from cleveragents.web.view.plan import inside, moment, plan_view, tracks_of
from cleveragents.web.view.plans import listing
from cleveragents.workspace import Workspace, open_workspace

FOLDED = 200
TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class Screens(Acts):
    """What is shown; nothing here changes anything."""

    def plans(self, ws: Workspace, request: Request) -> Response:
        query = request.query_params.get("q", "").strip()
        before = request.query_params.get("before", "")
        return self.html("plans.html", listing=listing(ws, query, before), query=query)

    def cluster(self, ws: Workspace, _request: Request) -> Response:
        """The machines that share this store."""
        from cleveragents.cluster.status import cluster_status

        return self.html("cluster.html", now=seen_of(ws, cluster_status(ws.ctx)))

    def plan(self, ws: Workspace, request: Request) -> Response:
        at = request.query_params.get("at", "")
        opened = frozenset(request.query_params.getlist("open"))
        view = plan_view(ws, plan_id(ws, request), self.shelf, opened)
        plan = view.facts.plan
        rows = list(view.all_rows)
        row = chosen_row(view, rows, at)
        asked = "since" in request.query_params and not plan.is_final
        running = running_call(ws, plan.plan_id) if view.running else None
        decision = running.call.decision_id if running else None
        parent = ws.ctx.store.plans.get(plan.parent_plan_id) if plan.parent_plan_id else None
        return self.html(
            "plan.html",
            view=view,
            plan=plan,
            at=at,
            parent=parent,
            conversation=current(ws.ctx, plan.plan_id),
            panel=panel_of(ws, view, rows, row, self.shelf) if row else None,
            running=running,
            shown=mark(step_of(view.facts, running)),
            running_place=_place(view.facts.steps, running.call.step_id) if running else "",
            running_decision=view.facts.decisions.get(decision or ""),
            notice=self.told(plan.plan_id, request.query_params.get("done", "")),
            since=None if running or not asked else _since(PlanHandle(ws.ctx, plan.plan_id)),
            can_stop=view.facts.held is not None and not view.facts.in_place,
        )

    def panel(self, ws: Workspace, request: Request) -> Response:
        view = plan_view(ws, plan_id(ws, request), self.shelf)
        rows = list(view.all_rows)
        row = chosen_row(view, rows, request.query_params.get("at", ""))
        if row is None:
            raise HTTPException(404)
        panel = panel_of(ws, view, rows, row, self.shelf)
        return self.html("panel.html", view=view, plan=view.facts.plan, panel=panel)

    def inside(self, ws: Workspace, request: Request) -> Response:
        """The rows of a child plan, loaded when it is opened."""
        view = plan_view(ws, plan_id(ws, request), self.shelf)
        items = inside(ws, view.facts.plan.plan_id, self.shelf)
        return self.html("inside.html", items=items, view=view, plan=view.facts.plan)

    def diff(self, ws: Workspace, request: Request) -> Response:
        handle, query = PlanHandle(ws.ctx, plan_id(ws, request)), request.query_params
        correction, whose = query.get("correction", ""), query.get("whose", "")
        start, end = query.get("from", ""), query.get("to", "")
        seen = Shown(self.album, self.shelf)
        return self.html(
            "diff.html",
            c=comparison(ws, handle, start, end, correction, whose, seen),
            plan=handle.plan,
            side=query.get("lines") == "side",
            whose=whose,
            correction=correction,
        )

    def picture(self, request: Request) -> Response:
        """A picture that a comparison has shown; the kind is never the browser's to guess."""
        found = self.album.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return Response(found[1], media_type=found[0].kind)

    def output(self, ws: Workspace, request: Request) -> Response:
        """All that a step printed, in every call."""
        handle, step = PlanHandle(ws.ctx, plan_id(ws, request)), request.path_params["step"]
        calls = [call for call in handle.tool_calls() if call.step_id == step]
        if not calls:
            raise HTTPException(404)
        typed = quote(typed_plan(ws.ctx.store, handle.plan))
        return self.html("output.html", plan=handle.plan, typed=typed, step=step, calls=calls)

    def fold(self, ws: Workspace, request: Request) -> Response:
        """Rows that are folded, loaded when they are opened."""
        facts = facts_of(ws, plan_id(ws, request))
        items = folded(facts, rows_of(facts))
        key = request.path_params["key"]
        found = next((f for f in items if isinstance(f, Fold) and f.key == key), None)
        if found is None:
            raise HTTPException(404)
        tracks = tracks_of(facts)
        rows = [moment(ws, facts, row, self.shelf, tracks) for row in found.rows[:FOLDED]]
        more = len(found.rows) - len(rows)
        return self.html("inside.html", items=rows, plan=facts.plan, more=more, key=key)

    async def events(self, request: Request) -> Response:
        def known() -> str:
            with open_workspace(settings=self.settings) as ws:
                return plan_id(ws, request)

        try:
            name = await run_in_threadpool(known)
        except AgentsError as error:
            return error_response(error)
        told = events(self.settings, name, request.query_params.get("shown", ""))
        return StreamingResponse(told, media_type="text/event-stream")

    def since(self, ws: Workspace, request: Request) -> Response:
        """What a person edited that no checkpoint has yet."""
        handle = PlanHandle(ws.ctx, plan_id(ws, request))
        tracks = tracks_of(facts_of(ws, handle.plan_id))
        return self.html("since.html", since=_since(handle), plan=handle.plan, tracks=tracks)

    def bring(self, ws: Workspace, request: Request) -> Response:
        """What apply would bring, in a sentence."""
        handle = PlanHandle(ws.ctx, plan_id(ws, request))
        return self.html("bring.html", did=summary(handle.diff()))

    def lines(self, ws: Workspace, request: Request) -> Response:
        """What rows changed, with lines and tables; asked for once the page is there."""
        view = plan_view(ws, plan_id(ws, request), self.shelf)
        facts, wanted = view.facts, set(request.query_params.get("rows", "").split(","))
        handle = PlanHandle(ws.ctx, facts.plan.plan_id)
        for item in view.rows:
            after = item.row.failed_id or item.row.group_id
            if item.row.key in wanted and item.row.is_beginning:
                with suppress(AgentsError):  # it keeps the words it has
                    self.shelf.count(handle, item.row.key)
            if item.row.key in wanted and item.row.before_id and after:
                pairs = [(handle, item.row.before_id, after)]
                pairs += [
                    (PlanHandle(ws.ctx, child.plan_id), *child.between)
                    for child in item.children
                    if child.between
                ]
                for pair in pairs:
                    with suppress(AgentsError):  # the row says already what is wrong with its group
                        self.shelf.exact(*pair)
        rows = [moment(ws, facts, item.row, self.shelf, view.tracks) for item in view.rows]
        rows = [item for item in rows if item.row.key in wanted]
        return self.html("lines.html", rows=rows)


def _since(handle: PlanHandle) -> dict[str, object]:
    """What a person edited that no checkpoint has yet."""
    changes = handle.preview_resume().changes
    head = handle.plan.head_group_id
    did = summary(handle.diff(head)) if changes and head else summary_of_changes(changes)
    return {"changes": changes, "did": did}


def _place(steps: tuple[Step, ...], step_id: str) -> str:
    """`Step 3 of 6`; empty for a step of a child plan."""
    index = next((step.index + 1 for step in steps if step.step_id == step_id), 0)
    return f"Step {index} of {len(steps)}" if 0 < index <= len(steps) else ""


def static(request: Request) -> Response:
    name = request.path_params["name"]
    file = files("cleveragents.web").joinpath("static", name)
    kind = TYPES.get(name.rpartition(".")[2], "text/plain")
    if "/" in name or not file.is_file():
        raise HTTPException(404)
    return Response(file.read_bytes(), media_type=kind)


def create_app(
    settings: Settings, keys: Keys, port: int, overrides: dict[str, str] | None = None
) -> Starlette:
    site = Screens(settings, keys, overrides)

    def get(path: str, show: Page) -> Route:
        return Route(path, site.page(show), methods=["GET"])

    app = Starlette(
        routes=[
            get("/", site.plans),
            get("/cluster", site.cluster),
            Route("/static/{name}", static, methods=["GET"]),
            Route("/pictures/{name}", site.picture, methods=["GET"]),
            get("/plans/{plan}", site.plan),
            get("/plans/{plan}/panel", site.panel),
            get("/plans/{plan}/inside", site.inside),
            get("/plans/{plan}/lines", site.lines),
            get("/plans/{plan}/since", site.since),
            get("/plans/{plan}/bring", site.bring),
            get("/plans/{plan}/diff", site.diff),
            get("/plans/{plan}/output/{step:path}", site.output),
            get("/plans/{plan}/fold/{key}", site.fold),
            Route("/plans/{plan}/events", site.events, methods=["GET"]),
            get("/plans/{plan}/{verb}", site.preview),
            Route("/plans/{plan}/{verb}", site.act, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, keys=keys, port=port)],
        exception_handlers={404: _not_found, 405: _not_allowed},
    )
    app.state.commands = site.commands
    return app


def _not_found(_request: Request, _error: Exception) -> Response:
    return HTMLResponse(render("wrong.html", message="there is no such page", hint=""), 404)


def _not_allowed(_request: Request, _error: Exception) -> Response:
    return PlainTextResponse("this address does not take that\n", 405)
