"""Machines that share a PostgreSQL server and a bucket, and nothing else.

This process is one of them. Another is a set of namespaces: a host name, processes and a home of
its own; killing it takes all of its processes.
"""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from cleveragents.cluster.procrastinate_queue import ProcrastinateQueue
from cleveragents.store.postgres import SCHEMA
from tests.harness import Agents
from tests.schemas import wrong_with
from tests.scratch import wait_until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces with mounts need root")
UNSHARE = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")


class Team:
    def __init__(self, agents: Agents, url: str) -> None:
        self.agents, self.url, self.top = agents, url, agents.work.parent
        self.queue = ProcrastinateQueue(url, SCHEMA, 2.0)
        self.env = {
            "CLEVERAGENTS_STORE_URL": url,
            "CLEVERAGENTS_STORE_LEASE": "2s",
            "CLEVERAGENTS_CONTENT_URL": f"file://{self.top / 'bucket'}",
            "CLEVERAGENTS_SANDBOX_CONFINE": "off",
        }
        self._workers: dict[str, list[subprocess.Popen[str]]] = {}
        agents.run("store", "init", env=self.env).expect(0)

    def run(self, *words: str, expect: int = 0) -> Any:
        """On this machine."""
        said = self.agents.run(*words, "--json", env=self.env).expect(expect)
        assert not wrong_with(said.json, is_closed=True)
        return said.data

    def started(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """The same beside what the test does; say what becomes of its streams."""
        argv = [sys.executable, "-m", "cleveragents", *words]
        env = self.agents.env | self.env
        return subprocess.Popen(argv, env=env, cwd=self.agents.work, text=True, **more)

    def on(self, host: str, *words: str, prepare: str = ":", **more: Any) -> subprocess.Popen[str]:
        """On the machine of that name; `prepare`: what is done to it first, in a shell."""
        env = self.agents.env | self.env | {"CLEVERAGENTS_HOME": f"{self.top}/store-of-{host}"}
        script = f'hostname "$0" && {prepare} && exec "$@"'
        command = (sys.executable, "-m", "cleveragents", *words)
        return subprocess.Popen(
            [*UNSHARE, "sh", "-c", script, host, *command],
            env=env,
            cwd=self.agents.work,
            text=True,
            **more,
        )

    @contextmanager
    def worker(
        self, host: str, *options: str, prepare: str = ":"
    ) -> Generator[subprocess.Popen[str]]:
        """Until the end of the block, or until it is killed; begins when it has been heard of."""
        with open(self.top / f"{host}.log", "a") as log:
            process = self.on(host, "worker", *options, prepare=prepare, stdout=log, stderr=log)
        mine = self._workers.setdefault(host, [])
        mine.append(process)
        try:
            alive = len([one for one in mine if one.poll() is None])
            wait_until(lambda: len(self.heard(host)) >= alive, f"the worker on {host}")
            yield process
        finally:
            process.kill()
            process.wait()

    def heard(self, host: str) -> list[str]:
        found = self.queue.workers()
        return [one.name for one in found if one.host == host and one.at_once and one.seen < 2]
