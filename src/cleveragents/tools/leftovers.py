"""Ends processes that a tool left running, also outside its process group.

Children inherit the plan's and the step's id, and `/proc/<pid>/environ` shows a process's initial
environment. One with a clean environment (`env -i setsid ...`) is not found, and nothing is found
without `/proc`.
"""

import os
import signal
import time

PATIENCE = 5.0
PAUSE = 0.002


def end_leftovers(plan_id: str, step_id: str | None = None) -> int:
    """Kill what a step (or any of the plan) left, and wait; returns how many."""
    marks = {f"AGENTS_PLAN_ID={plan_id}".encode()}
    if step_id is not None:
        marks.add(f"AGENTS_STEP_ID={step_id}".encode())
    spared = ancestry()
    ended: set[int] = set()
    give_up = time.monotonic() + PATIENCE
    while found := [pid for pid in _own_processes() - spared if _is_marked(pid, marks)]:
        ended.update(pid for pid in found if kill_marked(pid, marks))
        if time.monotonic() > give_up:
            break
        time.sleep(PAUSE)
    return len(ended)


def _own_processes() -> set[int]:
    uid = os.geteuid()
    found: set[int] = set()
    try:
        names = os.listdir("/proc")
    except OSError:
        return found
    for name in names:
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == uid:
                    found.add(int(name))
            except OSError:
                continue
    return found


def _is_marked(pid: int, marks: set[bytes]) -> bool:
    """Whether a process has the marks; a zombie has no environment and counts as gone."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return marks <= set(file.read().split(b"\0"))
    except OSError:
        return False


def pidfd(pid: int) -> int | None:
    """A pidfd of the process, if the system supports it and the process exists."""
    try:
        return os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None


def kill_marked(pid: int, marks: set[bytes]) -> bool:
    """Kill by pidfd after checking again: the pid may belong to another process by now."""
    fd = pidfd(pid)
    try:
        if not _is_marked(pid, marks):
            return False
        if fd is None:
            os.kill(pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        if fd is not None:
            os.close(fd)
    return True


def ancestry() -> set[int]:
    """This process and its ancestors, which are never killed."""
    pid, found = os.getpid(), set[int]()
    while pid and pid not in found:
        found.add(pid)
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return found
