"""A plan's tools as a language model knows them."""

from typing import Any, cast

from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import ToolDefinition

Data = dict[str, Any]

DECIDE = "decide"
TYPES: dict[str, Data] = {
    "flag": {"type": "boolean"},
    "texts": {"type": "array", "items": {"type": "string"}},
    "argv": {"type": "array", "items": {"type": "string"}},
    "params": {"type": "object", "description": "values for :name in the SQL"},
}
DECISION = ToolDefinition(
    name=DECIDE,
    description="Record a decision before you act on it.",
    parameters_json_schema={
        "type": "object",
        "properties": {
            "question": {"type": "string"},
            "chosen": {"type": "string"},
            "alternatives": TYPES["texts"],
            "rationale": {"type": "string"},
            "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        },
        "required": ["question", "chosen", "alternatives", "confidence"],
    },
)


class Toolbox:
    """The definitions that go with every request, and the step that a call of the model means."""

    def __init__(self, plan: Data) -> None:
        self.definitions: list[ToolDefinition] = [DECISION]
        self._names: dict[str, str] = {}
        self._resources = list(plan["resources"])
        for name, tool in plan["tools"].items():
            known = self._known_as(name)
            self._names[known] = name
            schema = self._schema(tool["with"])
            about = tool["description"] or name
            self.definitions.append(
                ToolDefinition(name=known, parameters_json_schema=schema, description=about)
            )

    def _known_as(self, name: str) -> str:
        """Providers allow letters, digits, `_` and `-` only."""
        known = name.replace(".", "_")
        while known in self._names or known == DECIDE:
            known += "_"
        return known

    def _schema(self, inputs: Data | None) -> Data:
        properties: Data = {
            name: TYPES.get(each["type"], {"type": "string"})
            for name, each in (inputs or {}).items()
        }
        required = [name for name, each in (inputs or {}).items() if each["required"]]
        if len(self._resources) > 1:
            properties["on"] = {"type": "string", "enum": self._resources}
            required.append("on")
        schema = {"type": "object", "properties": properties, "required": required}
        return {**schema, "additionalProperties": True} if inputs is None else schema

    def step_for(self, call: ToolCallPart) -> Data:
        """What to propose; raises ValueError with what the model should know."""
        if call.tool_name not in self._names:
            raise ValueError(f"there is no tool {call.tool_name!r}")
        inputs = arguments(call)
        step: Data = {"type": "step", "tool": self._names[call.tool_name]}
        if len(self._resources) > 1:
            step["on"] = inputs.pop("on", None)
        # Models give null for what they leave out.
        given = {name: value for name, value in inputs.items() if value is not None}
        return {**step, "with": given}


def arguments(call: ToolCallPart) -> Data:
    try:
        return dict(call.args_as_dict(raise_if_invalid=True))
    except (ValueError, AssertionError):
        raise ValueError(f"the arguments of {call.tool_name} are not a JSON object") from None


def shown(call: ToolCallPart) -> str:
    """A call in one line: the tool and its first argument."""
    try:
        given = list(arguments(call).values())
    except ValueError:
        given = []
    return " ".join([call.tool_name, *(str(value)[:60] for value in given[:1])])


def decision_from(given: Data) -> Data:
    """The decision that the model asks to be recorded; raises ValueError."""
    question, chosen = given.get("question"), given.get("chosen")
    if not (isinstance(question, str) and question and isinstance(chosen, str)):
        raise ValueError("a decision has a question and what was chosen, both texts")
    confidence, others = given.get("confidence"), given.get("alternatives")
    sure = isinstance(confidence, int | float) and 0 <= confidence <= 1
    listed = cast("list[Any]", others) if isinstance(others, list) else []
    return {
        "type": "decision",
        "question": question,
        "chosen": chosen,
        "alternatives": [str(each) for each in listed],
        "rationale": str(given.get("rationale") or ""),
        "confidence": confidence if sure else None,
    }
