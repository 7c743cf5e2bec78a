"""An S3 server on loopback, and a proxy before it that is slow, away, or forgets conditions."""

import threading
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OWN = ("transfer-encoding", "connection", "date", "server", "content-length")
"""Headers that the proxy gives itself."""


@contextmanager
def s3_server() -> Generator[str]:
    """The address of moto's server, with an empty bucket."""
    import logging

    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"{host}:{port}"
    finally:
        server.stop()


def make_bucket(address: str, name: str) -> None:
    request = urllib.request.Request(f"http://{address}/{name}", method="PUT")
    urllib.request.urlopen(request).close()


class Proxy:
    """Passes requests on to an S3 server; what goes wrong on the way can be set at any time."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.delay = 0.0
        """Seconds before each answer."""
        self.is_away = False
        """Connections are closed without an answer."""
        self.forgets_conditions = False
        """As buckets do that know no conditional puts."""
        self.requests: list[tuple[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Proxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def pass_on(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                if proxy.is_away:
                    self.close_connection = True
                    return
                proxy.requests.append((self.command, self.path))
                time.sleep(proxy.delay)
                dropped = {"host", "connection"}
                if proxy.forgets_conditions:
                    dropped.add("if-none-match")
                headers = {k: v for k, v in self.headers.items() if k.lower() not in dropped}
                there = HTTPConnection(proxy.target)
                try:
                    there.request(self.command, self.path, body, headers)
                    answer = there.getresponse()
                    data = answer.read()
                finally:
                    there.close()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in OWN:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Connection", "close")  # so no thread waits for another request
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_DELETE = pass_on  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None: ...

        return Handler
