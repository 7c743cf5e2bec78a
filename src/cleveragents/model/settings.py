"""The settings in force, as one frozen value, and the table of everything that can be set."""

from typing import Any

import msgspec

from cleveragents.model.triggers import DEFAULT as DEFAULT_TRIGGERS


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    home: str
    """The store's directory."""
    auto_create_on: tuple[str, ...] = tuple(str(name) for name in DEFAULT_TRIGGERS)
    max_checkpoints_per_plan: int = 50
    sandbox_dir: str = ""
    """Where sandboxes are made; empty: `<home>/sandboxes`."""
    allow_wide: tuple[str, ...] = ()
    """Directories that are sandboxed although they hold your home or the store."""
    sandbox_cleanup: str = "on_apply"
    carry_limit_bytes: int = 1_000_000_000
    carry_limit_files: int = 100_000
    confine: str = "auto"
    writable: tuple[str, ...] = ()
    gc_grace: float = 3600.0
    """Seconds that unreferenced content stays on disk after it was condemned."""
    content_budget: int = 0
    """Bytes the content store may take; 0: as much as the disk has."""
    output_limit: int = 1_000_000
    """Bytes of a tool's output that are kept."""
    run_hooks: bool = False
    """Whether a commit that apply makes runs the repository's hooks."""
    keep_applied: int = 1
    """For how many applied plans the earlier state of a database is kept on its server."""
    answer_timeout: float = 600.0
    """Seconds an actor may take for its next answer."""

    @property
    def sandboxes(self) -> str:
        return self.sandbox_dir or f"{self.home}/sandboxes"


CONFINE = ("off", "auto", "landlock", "required", "bwrap")
"""Values of sandbox.confine, each stronger than the one before."""
ANY = ("*",)


class Key(msgspec.Struct, frozen=True):
    """A setting's public name, the field it fills, and what it may be."""

    name: str
    field: str
    kind: str
    """path | paths | integer | bytes | duration | triggers | choice | flag"""
    help: str
    choices: tuple[str, ...] = ()
    alias: str = ""
    minimum: int = 0
    personal: tuple[str, ...] = ()
    """Values a project's file may not give, or ANY: a clone must not loosen what protects you."""

    @property
    def names(self) -> tuple[str, ...]:
        """What the setting may be called: its name, its alias alone or in the same table."""
        table = self.name.rpartition(".")[0]
        return (self.name, self.alias, f"{table}.{self.alias}") if self.alias else (self.name,)


KEYS: tuple[Key, ...] = (
    Key(
        "sandbox.checkpoint.auto-create-on",
        "auto_create_on",
        "triggers",
        "events that make a checkpoint group; an empty list turns them off",
    ),
    Key(
        "sandbox.checkpoint.max-checkpoints-per-plan",
        "max_checkpoints_per_plan",
        "integer",
        "groups kept per plan; older ones are pruned",
        alias="max_checkpoints_per_plan",
        minimum=1,
    ),
    Key("sandbox.dir", "sandbox_dir", "path", "where sandboxes are made", personal=ANY),
    Key(
        "sandbox.allow-wide",
        "allow_wide",
        "paths",
        "directories that are sandboxed although they hold your home or the store",
        personal=ANY,
    ),
    Key(
        "sandbox.cleanup",
        "sandbox_cleanup",
        "choice",
        "when sandboxes are removed",
        ("on_apply", "on_terminal", "manual"),
    ),
    Key("sandbox.carry-limit", "carry_limit_bytes", "bytes", "largest tree copied without asking"),
    Key(
        "sandbox.carry-limit-files",
        "carry_limit_files",
        "integer",
        "most files copied without asking",
    ),
    Key(
        "sandbox.confine",
        "confine",
        "choice",
        "how tools are confined",
        ("auto", "required", "bwrap", "landlock", "off"),
        personal=("off", "auto", "landlock"),
    ),
    Key(
        "sandbox.writable",
        "writable",
        "paths",
        "extra paths tools may write; not rolled back",
        personal=ANY,
    ),
    Key(
        "store.gc-grace",
        "gc_grace",
        "duration",
        "how long unreferenced content stays",
        personal=ANY,
    ),
    Key(
        "store.budget", "content_budget", "bytes", "largest size of the content store", personal=ANY
    ),
    Key("tools.output-limit", "output_limit", "bytes", "bytes of a tool's output that are kept"),
    Key(
        "apply.run-hooks",
        "run_hooks",
        "flag",
        "whether a commit that apply makes runs the repository's hooks",
        personal=ANY,
    ),
    Key(
        "postgres.keep-applied",
        "keep_applied",
        "integer",
        "applied plans per database that can be reverted; each costs a copy of it",
    ),
    Key(
        "actors.answer-timeout",
        "answer_timeout",
        "duration",
        "how long an actor may take for its next answer",
    ),
)
BY_NAME: dict[str, Key] = {name: key for key in KEYS for name in key.names}


def confine_in_force(setting: str, policy: str | None) -> str:
    """A plan may ask to be confined otherwise; what the user requires it can only strengthen."""
    if policy is None:
        return setting
    if setting in ("off", "auto"):
        return policy
    return max(setting, policy, key=CONFINE.index)


def shown(settings: Settings, key: Key) -> Any:
    return msgspec.to_builtins(getattr(settings, key.field))
