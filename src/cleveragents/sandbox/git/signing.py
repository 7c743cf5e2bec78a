"""Commits of ours are signed where the user's own would be.

Whether and with which key comes from the configuration, the repository's included. The programs
come from the user's own files only: a repository must not choose what is run.
"""

import os

import msgspec

from cleveragents.sandbox.git import command

_WHAT = ("gpg.format", "user.signingkey")
_PROGRAMS = {
    "gpg.program": "gpg",
    "gpg.openpgp.program": "gpg",
    "gpg.x509.program": "gpgsm",
    "gpg.ssh.program": "ssh-keygen",
    "gpg.ssh.defaultKeyCommand": "false",
}
_THEIRS = ("HOME", "GNUPGHOME", "SSH_AUTH_SOCK", "GPG_TTY", "XDG_RUNTIME_DIR")


class Signing(msgspec.Struct, frozen=True):
    """Arguments that make `commit-tree` sign; empty: it does not."""

    config: tuple[str, ...] = ()
    flag: tuple[str, ...] = ()
    environment: dict[str, str] = {}


def signing(top: str) -> Signing:
    if command.user_config(top, "--type=bool", "--get", "commit.gpgsign") != ["true"]:
        return Signing()
    values = {key: found[-1] for key in _WHAT if (found := command.user_config(top, "--get", key))}
    general = _own(top, "gpg.program")
    for key, default in _PROGRAMS.items():
        fallback = general if key == "gpg.openpgp.program" and general else default
        values[key] = _own(top, key) or fallback
    config = tuple(part for key, value in values.items() for part in ("-c", f"{key}={value}"))
    theirs = {name: os.environ[name] for name in _THEIRS if name in os.environ}
    return Signing(config, ("-S",), theirs)


def _own(top: str, key: str) -> str | None:
    """A value from the user's own files, not the repository's."""
    found = command.user_config(top, "--show-scope", "--get-all", key)
    mine = [
        value
        for scope, value in zip(found[::2], found[1::2], strict=True)
        if scope not in ("local", "worktree")
    ]
    return mine[-1] if mine else None
