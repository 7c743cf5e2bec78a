"""The OpenAI Agents SDK: a session that is rolled back with the files.

`PlanSession` goes around a session of the SDK and notes with each group how many items it had;
after a rollback or undo of the plan, the next run finds the conversation as it was then. Its
`hooks`, given to `Runner.run`, make every tool call a step.
"""

from cleveragents.integrations import not_installed

try:
    from cleveragents.integrations.openai_agents.session import PlanSession
except ModuleNotFoundError as _error:
    raise not_installed(_error, "openai-agents") from None

__all__ = ["PlanSession"]
