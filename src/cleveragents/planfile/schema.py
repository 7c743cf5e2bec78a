"""The plan file as JSON Schema, for editors.

The reader says what is wrong better than any schema can, so this only has what completion needs:
names, types and choices, all from the tables that the reader uses (`tests/test_schema.py`).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from cleveragents.model.plan import OnFailure
from cleveragents.model.plan_spec import LONGEST_NAME, ApplyAs, DecisionSpec
from cleveragents.model.resource import Carry
from cleveragents.model.triggers import valid_names
from cleveragents.planfile import ACTORS, CHECKPOINT_SCOPES, CONFINE, DEFAULT_KINDS
from cleveragents.planfile.resources import ADDRESS
from cleveragents.tools.builtin import BUILTINS, INPUTS, Input

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
WORD: Schema = {"type": ["string", "number", "boolean"]}
FLAG: Schema = {"type": "boolean"}
WORDS: Schema = {"anyOf": [WORD, {"type": "array", "items": WORD}]}
ARGV: Schema = {"type": "array", "items": WORD, "minItems": 1}
COMMAND: Schema = {"anyOf": [TEXT, ARGV]}
SECONDS: Schema = {"type": ["number", "string"]}
INPUT_TYPES: dict[str, Schema] = {
    "text": TEXT,
    "path": TEXT,
    "regex": TEXT,
    "flag": FLAG,
    "texts": {"type": "array", "items": WORD},
    "argv": ARGV,
    "params": {"type": ["array", "object"]},
    "mode": {"type": ["string", "integer"]},
}


def _choice(names: Iterable[str], text: str = "") -> Schema:
    found: Schema = {"enum": [str(name) for name in names]}
    return found | ({"description": text} if text else {})


def _described(schema: Schema, text: str) -> Schema:
    return {**schema, "description": text}


def _number(minimum: int) -> Schema:
    return {"type": "integer", "minimum": minimum}


def _object(properties: Schema, required: Iterable[str] = (), **more: Any) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


def _named(items: Schema, text: str) -> Schema:
    return {"type": "object", "additionalProperties": items, "description": text}


def _listed(items: Schema, text: str) -> Schema:
    return {"type": "array", "items": items, "description": text}


def plan_schema(kinds: Mapping[str, tuple[str, ...]] = DEFAULT_KINDS) -> Schema:
    """The whole file; `kinds` as the installation has them, with their strategies."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "cleveragents plan file",
        **_object(
            {
                "name": _described({**TEXT, "maxLength": LONGEST_NAME}, "what the plan is called"),
                "description": TEXT,
                "resources": _named({"$ref": "#/$defs/resource"}, "what the plan may change"),
                "tools": _named({"$ref": "#/$defs/tool"}, "tools of your own"),
                "policy": {"$ref": "#/$defs/policy"},
                "steps": _listed({"$ref": "#/$defs/step"}, "what is done, in this order"),
                "validate": _listed(
                    _object({"run": COMMAND, "on": WORD, "timeout": SECONDS}, ["run"]),
                    "has to succeed in the sandbox before anything is applied",
                ),
                "apply": _object(
                    {"as": _choice(ApplyAs), "message": TEXT, "ignored": FLAG},
                ),
                "actor": {"$ref": "#/$defs/actor"},
            },
            ["name"],
        ),
        "$defs": {
            "resource": _resource(kinds),
            "tool": _tool(),
            "policy": _policy(),
            "decision": _decision(),
            "step": _step(),
            "actor": _actor(),
        },
    }


def _resource(kinds: Mapping[str, tuple[str, ...]]) -> Schema:
    return _object(
        {
            "kind": _choice(kinds),
            "path": _described(TEXT, "relative to this file; $VAR is filled in"),
            "url": _described(TEXT, "of a database server or a git repository; $VAR is filled in"),
            "branch": _described(TEXT, "of a git-remote; else the one that its HEAD names"),
            "strategy": _choice(dict.fromkeys(name for names in kinds.values() for name in names)),
            "carry": _choice(Carry, "what comes along with what is committed"),
            "exclude": _described(WORDS, "never captured, restored or applied"),
            "require_sandbox": FLAG,
        },
        ["kind"],
        allOf=[
            {
                "if": {"properties": {"kind": {"const": str(kind)}}},
                "then": {
                    "properties": {"strategy": _choice(strategies)},
                    "required": [ADDRESS[kind]],
                },
            }
            for kind, strategies in kinds.items()
            if kind in ADDRESS
        ],
    )


def _tool() -> Schema:
    return _object(
        {
            "name": WORD,
            "description": TEXT,
            "run": _described(COMMAND, "a list of words, or a shell command"),
            "python": _described(TEXT, "module:callable"),
            "sql": TEXT,
            "writes": FLAG,
            "read_only": FLAG,
            "checkpointable": FLAG,
            "checkpoint_scope": _choice(CHECKPOINT_SCOPES),
            "write_scope": _described(WORDS, "paths and patterns; it may change nothing else"),
            "side_effects": _described(WORDS, "what it does outside the sandboxes"),
            "compensate": _described(COMMAND, "what undoes its side effects"),
            "idempotent": _described(FLAG, "may be repeated"),
            "unsafe": FLAG,
            "timeout": SECONDS,
            "network": FLAG,
            "env": {"type": "object", "additionalProperties": WORD},
        },
        oneOf=[{"required": [key]} for key in ("run", "python", "sql")],
    )


def _policy() -> Schema:
    return _object(
        {
            "on_failure": _choice(OnFailure),
            "max_retries_per_step": _number(0),
            "require_checkpoints": FLAG,
            "rollback_enabled": FLAG,
            "max_checkpoints_per_plan": _number(1),
            "auto_create_on": {
                "anyOf": [TEXT, {"type": "array", "items": _choice(valid_names())}],
                "description": "events that make a checkpoint; an empty list: none",
            },
            "keep": _object({"last": _number(1), "within": WORD, "bytes": WORD}),
            "max_parallel": _number(1),
            "fail_fast": FLAG,
            "allow_unsafe": FLAG,
            # `off` without quotes is a boolean for YAML.
            "confine": _choice(CONFINE) | {"enum": [*CONFINE, False]},
        }
    )


def _decision() -> Schema:
    texts = dict.fromkeys(DecisionSpec.__struct_fields__, TEXT)
    own = {
        "alternatives": WORDS,
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "parent": WORD,
        "influences": WORDS,
    }
    return _object({**texts, **own}, ["question", "chosen"])


def _step() -> Schema:
    steps = _listed({"$ref": "#/$defs/step"}, "the child plan's steps")
    subplan = {"file": TEXT, "steps": steps, "group": WORD, "needs": WORDS}
    return _object(
        {
            "id": _described(WORD, "letters, digits, '_', '.' and '-'"),
            "tool": {"anyOf": [_choice(BUILTINS), TEXT], "description": "built in, or yours"},
            "run": _described(COMMAND, "a shell command, or a list of words"),
            "subplan": _object(subplan, oneOf=[{"required": ["file"]}, {"required": ["steps"]}]),
            "on": _described(WORD, "the resource; may be left out when there is one"),
            "with": {"type": "object", "description": "the tool's inputs"},
            "decision": {"anyOf": [{"$ref": "#/$defs/decision"}, WORD]},
            "needs": _described(WORDS, "steps that have to be done before"),
            "checkpoint": _described(TEXT, "label of a checkpoint after this step"),
            "timeout": SECONDS,
            "on_failure": _choice(OnFailure),
            "retries": _number(0),
        },
        oneOf=[{"required": [key]} for key in ("tool", "run", "subplan")],
        allOf=[
            {
                "if": {"properties": {"tool": {"const": name}}, "required": ["tool"]},
                "then": {"properties": {"with": _inputs(inputs)}},
            }
            for name, inputs in INPUTS.items()
        ],
    )


def _inputs(inputs: tuple[Input, ...]) -> Schema:
    required = [each.name for each in inputs if each.required]
    return _object({each.name: INPUT_TYPES[each.type] for each in inputs}, required)


def _actor() -> Schema:
    return _object(
        {
            "kind": _choice(ACTORS),
            "python": _described(TEXT, "module:callable"),
            "command": ARGV,
            "model": _described(TEXT, "PROVIDER:NAME"),
            "goal": TEXT,
            "max_steps": _number(1),
            "max_tokens": _number(1),
        }
    )
