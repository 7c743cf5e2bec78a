"""Pages that change something: a preview, and the form that does it."""

import secrets
from urllib.parse import parse_qs

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from cleveragents.errors import AgentsError
from cleveragents.lease import holder
from cleveragents.plan_handle import PlanHandle
from cleveragents.web.commands import Outcome
from cleveragents.web.forms import Fields, argv_of
from cleveragents.web.site import Notice, Site, plan_id
from cleveragents.web.verbs import PREVIEWS, RUNS_STEPS, stop
from cleveragents.workspace import Workspace

LONGEST_FORM = 1 << 20


class Acts(Site):
    """Previews by GET, commands by POST."""

    def preview(self, ws: Workspace, request: Request) -> Response:
        handle = PlanHandle(ws.ctx, plan_id(ws, request))
        query = dict(request.query_params)
        verb = request.path_params["verb"]
        if verb not in PREVIEWS:
            raise HTTPException(405 if verb == "stop" else 404)
        return self._preview(ws, handle, verb, query)

    def _preview(
        self,
        ws: Workspace,
        handle: PlanHandle,
        verb: str,
        query: dict[str, str],
        failed: Outcome | None = None,
    ) -> Response:
        """The preview; after a failed command also the reason."""
        notice = Notice(failed.message, failed.hint, failed=True) if failed else None
        status = 409 if failed else 200
        try:
            preview = PREVIEWS[verb](ws, handle, query)
        except AgentsError as error:
            notice = notice or Notice(error.message, error.hint, failed=True)
            values = {"plan": handle.plan, "notice": notice, "verb": verb}
            return self.html("refused.html", status=409, **values)
        values = {"preview": preview, "plan": handle.plan, "notice": notice, "query": query}
        return self.html("preview.html", status=status, **values)

    async def act(self, request: Request) -> Response:
        """Run a form's command, and redirect the browser to the result."""
        body = await request.body()
        fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=False)
        sent = (fields.get("form") or [""])[0]
        if len(body) > LONGEST_FORM or not secrets.compare_digest(
            sent.encode(), self.keys.form.encode()
        ):
            return PlainTextResponse("this is no form of the page\n", 403)
        return await run_in_threadpool(self.page(lambda ws, r: self._act(ws, r, fields)), request)

    def _act(self, ws: Workspace, request: Request, fields: Fields) -> Response:
        handle = PlanHandle(ws.ctx, plan_id(ws, request))
        verb, name = request.path_params["verb"], handle.plan_id
        if verb not in (*PREVIEWS, "stop"):
            raise HTTPException(404)
        if verb == "stop":
            stop(ws, name)
            return RedirectResponse(f"/plans/{name}", 303)

        def works() -> bool:
            """Whether the command has started its long work."""
            held, job = holder(ws.ctx.store, name), self.commands.of(name)
            return (
                verb in RUNS_STEPS and held is not None and job is not None and held.pid == job.pid
            )

        outcome = self.commands.run(name, argv_of(verb, name, fields), works)
        if outcome is None or outcome.ok or _went_through(verb, outcome):
            return RedirectResponse(f"/plans/{name}?done={verb}", 303)
        query = {name: values[0] for name, values in fields.items()}
        return self._preview(ws, handle, verb, query, outcome)


def _went_through(verb: str, outcome: Outcome) -> bool:
    """A plan whose steps failed was resumed nevertheless: its own page says how it stands."""
    return verb in RUNS_STEPS and "plan_id" in outcome.data
