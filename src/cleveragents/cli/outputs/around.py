"""What commands print that are about no plan."""

from typing import Any, NotRequired, TypedDict

from cleveragents.apply.database_backups import Held
from cleveragents.config import ConfigValue


class NewResource(TypedDict):
    name: str
    kind: str
    path: str


class Started(TypedDict):
    folder: str
    written: list[str]
    kept: list[str]
    resources: list[NewResource]
    next: list[str]


class NewStep(TypedDict):
    id: str
    run: str
    on: NotRequired[str]


class NewPlan(TypedDict):
    file: str
    name: str
    resources: list[NewResource]
    steps: list[NewStep]
    next: list[str]


class PlanProblem(TypedDict):
    file: str
    line: int
    key: str
    message: str


class Linted(TypedDict):
    files: list[str]
    problems: list[PlanProblem]
    warnings: list[str]


class Databases(TypedDict):
    databases: list[Held]


class Script(TypedDict):
    shell: str
    script: str


class SettingsList(TypedDict):
    settings: list[ConfigValue]


class SettingUnset(TypedDict):
    key: str
    file: str


class SettingSet(SettingUnset):
    value: str


class HookFile(TypedDict):
    path: str
    changed: bool
    remark: str | None


class HooksChanged(TypedDict):
    agent: str
    scope: str
    dry_run: bool
    files: list[HookFile]


class HookLine(TypedDict):
    agent: str
    installed: list[str]
    last_session: str | None
    plan: str | None
    remark: str | None


class HooksStatus(TypedDict):
    agents: list[HookLine]


class DemoCommand(TypedDict):
    command: str
    exit_code: int
    data: dict[str, Any]


class Demo(TypedDict):
    folder: str
    kept: bool
    seconds: float
    commands: list[DemoCommand]


class SchemaNames(TypedDict):
    names: list[str]


class OneSchema(TypedDict):
    name: str
    schema: dict[str, Any]
