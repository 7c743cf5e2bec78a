"""The settings in force, as one frozen value, and the table of everything that can be set."""

import re
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
    store_url: str = ""
    """Where the rows are that several machines share; empty: in the home, for this one alone."""
    lease: float = 10.0
    """Seconds after which a machine that shares the store and is not heard of lost its plans."""
    gc_grace: float = 3600.0
    """Seconds that unreferenced content stays on disk after it was condemned."""
    content_budget: int = 0
    """Bytes the content store may take; 0: as much as the disk has."""
    content_url: str = ""
    """The bucket or shared folder that content is brought to; empty: none."""
    content_cache: int = 2_000_000_000
    """Bytes of content that need not be here, because the bucket has it, and yet is kept."""
    content_wait: float = 60.0
    """Seconds that a command waits for the bucket."""
    content_key_from: str = ""
    """`env:NAME` or `command:COMMAND` that gives the key content is encrypted with."""
    output_limit: int = 1_000_000
    """Bytes of a tool's output that are kept."""
    cover_limit: int = 200_000_000
    """Bytes of ignored files that are covered in place."""
    run_hooks: bool = False
    """Whether a commit that apply makes runs the repository's hooks."""
    keep_applied: int = 1
    """For how many applied plans the earlier state of a database is kept on its server."""
    answer_timeout: float = 600.0
    """Seconds an actor may take for its next answer."""
    session_resources: dict[str, str] = {}
    """Name -> path of what a session's plan covers beside the folder that it works in."""
    hook_budget: float = 2.0
    """Seconds an agent is kept waiting at an event."""
    fail_closed: bool = False
    """Whether a tool must not run when no checkpoint could be made before it."""
    model: str = ""
    """`provider:name` for `agents do`."""

    @property
    def sandboxes(self) -> str:
        return self.sandbox_dir or f"{self.home}/sandboxes"


MODEL_NAME = re.compile(r"[a-z][a-z0-9_/-]*:\S+")
"""`provider:name`."""
CONFINE = ("off", "auto", "landlock", "required", "bwrap")
"""Values of sandbox.confine, each stronger than the one before."""
ANY = ("*",)


class Key(msgspec.Struct, frozen=True):
    """A setting's public name, the field it fills, and what it may be."""

    name: str
    field: str
    kind: str
    """path | paths | integer | bytes | duration | triggers | choice | flag | model | url"""
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
        "store.url",
        "store_url",
        "url",
        "postgresql://USER@HOST/DATABASE: plans are there, for all machines that name it",
        ("postgresql://", "postgres://"),
        personal=ANY,
    ),
    Key(
        "store.lease",
        "lease",
        "duration",
        "how long a machine with a shared store may be silent before others take its plans",
        minimum=1,
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
    Key(
        "content.url",
        "content_url",
        "url",
        "the bucket or shared folder that content is brought to, such as s3://bucket/prefix",
        ("s3://", "gs://", "az://", "file:///"),
        personal=ANY,
    ),
    Key(
        "content.cache",
        "content_cache",
        "bytes",
        "largest size of what is kept here although the bucket has it",
        personal=ANY,
    ),
    Key(
        "content.wait",
        "content_wait",
        "duration",
        "how long a command waits for the bucket: at its end, and before a step with effects",
        personal=ANY,
    ),
    Key(
        "content.key-from",
        "content_key_from",
        "url",
        "where the key comes from that content in the bucket is encrypted with",
        ("env:", "command:"),
        personal=ANY,
    ),
    Key(
        "session.cover-limit",
        "cover_limit",
        "bytes",
        "ignored files that are checkpointed in place; what is beyond is named in status",
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
    Key(
        "actors.model",
        "model",
        "model",
        "the model of `agents do`, such as anthropic:claude-sonnet-4-5",
        personal=ANY,
    ),
    Key(
        "session.resources",
        "session_resources",
        "table",
        "what a session of an agent covers beside its folder: name = path",
    ),
    Key(
        "session.hook-budget",
        "hook_budget",
        "duration",
        "how long an agent is kept waiting at an event",
        personal=ANY,
    ),
    Key(
        "session.fail-closed",
        "fail_closed",
        "flag",
        "whether a tool is refused when no checkpoint can be made",
        personal=ANY,
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


_SECRET = re.compile(r"(?<=://)([^/@:]*):[^/@]*(?=@)|([?&])(?:ssl)?password=[^&]*")


def without_password(url: str) -> str:
    """A URL as it may be shown and stored."""
    return _SECRET.sub(lambda found: found[1] or found[2] or "", url)


def shown(settings: Settings, key: Key) -> Any:
    if key.kind == "url":
        return without_password(getattr(settings, key.field))
    return msgspec.to_builtins(getattr(settings, key.field))
