"""Git repositories that have only an address: by `file://`, or by a server on loopback."""

import base64
import os
import subprocess
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LOGIN = "robot:s3cret-w0rd"


def git(folder: Path, *argv: str) -> str:
    done = subprocess.run(["git", *argv], cwd=folder, check=True, capture_output=True)
    return os.fsdecode(done.stdout).strip()


class Origin:
    """A bare repository with a branch `main`, and somebody else who works on it."""

    def __init__(self, top: Path) -> None:
        self.path, self.other = top / "origin.git", top / "other"
        self.leaked: list[str] = []
        """Arguments of processes that had the password in them while somebody was served."""
        top.mkdir(parents=True, exist_ok=True)
        git(top, "init", "-q", "--bare", "-b", "main", "origin.git")
        git(top, "init", "-q", "-b", "main", "other")
        self.commit("base", {"kept.txt": "1\n2\n3\n4\n5\n6\n7\n", "sub/deep.txt": "deep\n"})
        self.commit("second", {"second.txt": "second\n"})

    @property
    def url(self) -> str:
        return f"file://{self.path}"

    def commit(self, message: str, files: dict[str, str]) -> str:
        """Somebody else's commit on the branch as it is there now."""
        if git(self.path, "for-each-ref"):
            git(self.other, "fetch", "-q", self.url, "main")
            git(self.other, "reset", "-q", "--hard", "FETCH_HEAD")
        for name, text in files.items():
            path = self.other / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        git(self.other, "add", "-A")
        git(self.other, "commit", "-qm", message)
        git(self.other, "push", "-q", self.url, "HEAD:main")
        return git(self.other, "rev-parse", "HEAD")

    def tip(self, branch: str = "main") -> str:
        return git(self.path, "rev-parse", branch)

    def log(self, branch: str = "main") -> list[str]:
        """Subjects, the newest first."""
        return git(self.path, "log", "--format=%s", branch).splitlines()

    def show(self, path: str, branch: str = "main") -> str:
        return git(self.path, "show", f"{branch}:{path}")

    def refs(self) -> str:
        return git(self.path, "for-each-ref")

    def hook(self, name: str, script: str) -> None:
        path = self.path / "hooks" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


def _arguments() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield os.fsdecode(path.read_bytes())


@contextmanager
def served(origin: Origin) -> Generator[str]:
    """The repository over HTTP, for who logs in; the address without a login."""
    git(origin.path, "config", "http.receivepack", "true")
    expected = f"Basic {base64.b64encode(LOGIN.encode()).decode()}"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") != expected:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            origin.leaked += [text for text in _arguments() if LOGIN.partition(":")[2] in text]
            self._ask_git()

        def do_POST(self) -> None:
            self.do_GET()

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", "0")))
            found = b""
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found

        def _ask_git(self) -> None:
            path, _, query = self.path.partition("?")
            body = self._body()
            done = subprocess.run(
                ["git", "http-backend"],
                input=body,
                capture_output=True,
                check=True,
                env={
                    "PATH": os.environ["PATH"],
                    "GIT_PROJECT_ROOT": str(origin.path.parent),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "REQUEST_METHOD": self.command,
                    "PATH_INFO": path,
                    "QUERY_STRING": query,
                    "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                    "CONTENT_LENGTH": str(len(body)),
                    "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                    "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                    "REMOTE_USER": "robot",
                },
            )
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
            self.send_response(int(fields.pop("Status", "200").split()[0]))
            for name, value in fields.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None: ...

    with listening(Handler) as address:
        yield f"{address}/origin.git"


@contextmanager
def redirected(path: str) -> Generator[tuple[str, list[str]]]:
    """An address that leads to another server, and what is said to log in at that one."""
    said: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said.extend(self.headers.get_all("Authorization") or [])
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="elsewhere"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...

    with listening(Elsewhere) as there:

        class Leading(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(302)
                self.send_header("Location", f"{there}{self.path}")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        with listening(Leading) as here:
            yield f"{here}{path}", said


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
