"""LangGraph: a checkpoint of the graph and a checkpoint group of the plan are one.

`PlanSaver` goes around any saver and notes with each checkpoint of the graph the group that holds
the files and databases of that moment. `PlanMiddleware` makes every tool call a step; before the
first thing that runs from an earlier checkpoint (`invoke(None, old_config)`), it restores them.
"""

from cleveragents.integrations import not_installed

try:
    from cleveragents.integrations.langgraph.middleware import PlanMiddleware
    from cleveragents.integrations.langgraph.saver import PlanSaver
except ModuleNotFoundError as _error:
    raise not_installed(_error, "langgraph") from None

__all__ = ["PlanMiddleware", "PlanSaver"]
