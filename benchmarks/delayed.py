"""A server that is further away: what goes there and what comes back takes a while.

With threads: an event loop waits in whole milliseconds, and they are what is measured.
"""

import queue
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager


def _start(work: Callable[..., None], *given: object) -> None:
    threading.Thread(target=work, args=given, daemon=True).start()


def _passed_on(source: socket.socket, target: socket.socket, delay: float) -> None:
    """What arrives is sent on when it is due; what follows does not wait for that."""
    on_the_way: queue.Queue[tuple[float, bytes]] = queue.Queue()
    _start(_delivered, on_the_way, target)
    data = b"."
    while data:
        try:
            data = source.recv(1 << 20)
        except OSError:
            data = b""
        on_the_way.put((time.monotonic() + delay, data))


def _delivered(on_the_way: "queue.Queue[tuple[float, bytes]]", target: socket.socket) -> None:
    while True:
        due, data = on_the_way.get()
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            if not data:
                target.shutdown(socket.SHUT_RDWR)
                return
            target.sendall(data)
        except OSError:
            return


def _accept(listener: socket.socket, port: int, delay: float) -> None:
    while True:
        try:
            here, _ = listener.accept()
        except OSError:
            return
        there = socket.create_connection(("127.0.0.1", port))
        for one in (here, there):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _start(_passed_on, here, there, delay)
        _start(_passed_on, there, here, delay)


@contextmanager
def delayed(port: int, journey: float) -> Generator[int]:
    """The port of a proxy on loopback; there and back take `journey` seconds longer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _start(_accept, listener, port, journey / 2)
        yield listener.getsockname()[1]
