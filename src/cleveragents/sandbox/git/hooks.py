"""The hooks of the user's repository, run only when the user asks for them.

The user's own git runs them in the user's own environment, as it would for `git commit`.
"""

import os

from cleveragents.content import fsio
from cleveragents.errors import ApplyRefused
from cleveragents.sandbox.git.command import LOCAL, Repository


def run_hook(repository: Repository, name: str, *arguments: str, may_fail: bool = False) -> None:
    """Run a hook if there is one; if it rejects, its last line is the error."""
    import subprocess

    own = {key: value for key, value in os.environ.items() if key not in LOCAL}
    done = subprocess.run(
        ["git", "hook", "run", "--ignore-missing", name, "--", *arguments],
        cwd=repository.top,
        env={**own, "GIT_INDEX_FILE": f"{repository.git_dir}/index", "GIT_EDITOR": ":"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode and not may_fail:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
        why = said[-1] if said else f"exit code {done.returncode}"
        raise ApplyRefused(
            f"hook {name} rejected the commit: {why}",
            "no target was changed; fix the cause and apply again, or apply without --hooks",
        )


def message_after_hooks(repository: Repository, message: str, staging: str, asked: bool) -> str:
    """The commit message after `prepare-commit-msg` and `commit-msg`."""
    if not asked:
        return message
    path = f"{staging}/message"
    fsio.unlink_if_there(path)
    fsio.write_new(path, message.encode())
    run_hook(repository, "prepare-commit-msg", path, "message")
    run_hook(repository, "commit-msg", path)
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
