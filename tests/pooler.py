"""What PgBouncer does between us and PostgreSQL: it knows a few parameters of a connection only."""

import select
import socket
import struct
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

KNOWN = b"user database application_name client_encoding datestyle timezone".split()
ENCRYPTED = (80877103, 80877104)
"""Requests for TLS and GSSAPI, which it has none of."""
NEW = 196608
"""A connection of protocol 3.0; newer ones begin with a higher number."""


@contextmanager
def pooled(url: str) -> Generator[str]:
    """The URL of the same database behind it, with `pool_mode = session`."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    target = parts.hostname, parts.port
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, target), daemon=True).start()
        port = listener.getsockname()[1]
        yield url.replace(f":{parts.port}/", f":{port}/")
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, target: tuple[str, int]) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client, target), daemon=True).start()


def _serve(client: socket.socket, target: tuple[str, int]) -> None:
    with client, suppress(OSError):
        first = _first(client)
        while (kind := struct.unpack("!I", first[4:8])[0]) in ENCRYPTED:
            client.sendall(b"N")
            first = _first(client)
        given = first[8:].split(b"\0")[0:-2:2] if kind >= NEW else []
        for name in given:
            if name not in KNOWN:
                said = b"unsupported startup parameter: " + name
                fields = b"SFATAL\0C08P01\0M" + said + b"\0\0"
                client.sendall(b"E" + struct.pack("!I", len(fields) + 4) + fields)
                return
        with socket.create_connection(target) as server:
            server.sendall(first)
            while True:
                for one in select.select([client, server], [], [])[0]:
                    data = one.recv(1 << 20)
                    if not data:
                        return
                    (server if one is client else client).sendall(data)


def _first(client: socket.socket) -> bytes:
    size = client.recv(4, socket.MSG_WAITALL)
    return size + client.recv(struct.unpack("!I", size)[0] - 4, socket.MSG_WAITALL)
