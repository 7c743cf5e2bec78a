"""Die at a fault point, in a child."""

import os
import signal
from collections.abc import Callable

from cleveragents.content import fsio


def killed_at(number: int, action: Callable[[], object]) -> bool:
    """Do it in a child that dies at its n-th fault point; False if it got to its end."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            fsio.arm(number)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            action()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the action failed in the child"
    return False
