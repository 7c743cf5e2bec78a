"""Shared by commands that show or roll back an agent's conversation."""

import functools
import os
import sys
from collections.abc import Callable
from shlex import join
from typing import Any

import msgspec

from cleveragents.cli.common import Options
from cleveragents.cli.render import Reply, Text
from cleveragents.context import Context
from cleveragents.errors import NotAllowed, UsageError
from cleveragents.integrations.conversation import AGAIN, Return, current, shown
from cleveragents.model.checkpoint import CheckpointGroup
from cleveragents.model.conversation import Conversation
from cleveragents.plan_handle import PlanHandle
from cleveragents.workspace import Workspace


class Part(msgspec.Struct, frozen=True):
    """What to roll back: files, conversation, or both."""

    files: bool = True
    conversation: bool = True

    def remember(self, going: Return) -> Callable[[Any], Any]:
        return going.remember if self.conversation else going.stay


BOTH = Part()


def part_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--files-only` and `--conversation-only`, passed on as `part`."""
    import click

    @click.option("--files-only", is_flag=True, help="Leave the agent's conversation as it is.")
    @click.option(
        "--conversation-only", is_flag=True, help="Leave files, databases and the plan as they are."
    )
    @functools.wraps(function)
    def both(*words: Any, files_only: bool, conversation_only: bool, **options: Any) -> Any:
        if files_only and conversation_only:
            raise UsageError(
                "--files-only and --conversation-only exclude each other",
                "leave both out to roll back both",
            )
        part = Part(files=not conversation_only, conversation=not files_only)
        return function(*words, part=part, **options)

    return both


def going_of(ws: Workspace, one: PlanHandle, again: bool = False) -> Return:
    return Return(ws.ctx, one.plan_id, os.environ, again)


def roll_back_alone(
    one: PlanHandle, going: Return, group: CheckpointGroup, notes: tuple[str, ...], dry_run: bool
) -> Reply:
    """Roll back the conversation without the files."""
    if going.conversation is None:
        raise NotAllowed(
            f"plan {one.plan.name!r} follows no agent: it has no conversation",
            f"agents plan rollback {one.plan_id} {group.group_id}",
        )
    reply = Reply(data={}, blocks=(), messages=notes)
    if dry_run:
        return would_change(reply, going.conversation)
    return with_conversation(reply, going.at(group.actor_state))


def with_conversation(reply: Reply, conversation: Conversation | None) -> Reply:
    """The reply, with the session to continue and the command that does."""
    data = {**reply.data, "conversation": shown(conversation)}
    if conversation is None:
        return msgspec.structs.replace(reply, data=data)
    line = Text(f"continue the conversation: {join(conversation.continue_)}")
    return msgspec.structs.replace(reply, data=data, blocks=(*reply.blocks, line))


def would_change(reply: Reply, conversation: Conversation | None, part: Part = BOTH) -> Reply:
    """The reply of a dry run, in which the session is still the old one."""
    data = {**reply.data, "conversation": shown(conversation)}
    if conversation is None or not part.conversation or data.get("conflicts"):
        return msgspec.structs.replace(reply, data=data)
    line = Text(f"the conversation would change too: {conversation.session_id}")
    return msgspec.structs.replace(reply, data=data, blocks=(*reply.blocks, line))


def conversation_data(ctx: Context, plan_id: str) -> dict[str, Any] | None:
    return shown(current(ctx, plan_id))


def resumed(ws: Workspace, options: Options, one: PlanHandle) -> Reply | None:
    """Continue an agent's conversation in its own terminal; None if the plan follows none."""
    conversation = current(ws.ctx, one.plan_id)
    if conversation is None:
        return None
    return continued(options, one, conversation)


def continued(options: Options, one: PlanHandle, conversation: Conversation) -> Reply:
    """Start the agent in a terminal; else print its command."""
    if options.interactive and one.plan.plan_dir and os.path.isdir(one.plan.plan_dir):
        os.chdir(one.plan.plan_dir)
        argv = conversation.continue_
        if argv[0] == AGAIN[0]:
            argv = (sys.executable, "-m", "cleveragents", *argv[1:])
        try:
            os.execvp(argv[0], argv)
        except OSError as error:
            raise NotAllowed(
                f"cannot start {conversation.continue_[0]}: {error.strerror}",
                join(conversation.continue_),
            ) from None
    data = {"plan_id": one.plan_id, "name": one.plan.name}
    return with_conversation(Reply(data=data, blocks=(), messages=()), conversation)
