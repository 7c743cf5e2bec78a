"""A server that is further away: what goes there and what comes back takes a while."""

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def delayed(port: int, journey: float) -> Generator[int]:
    """The port of a proxy on loopback; there and back take `journey` seconds longer."""
    loop = asyncio.new_event_loop()
    found: list[int] = []
    ready = threading.Event()

    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 20):
            await asyncio.sleep(journey / 2)
            writer.write(data)
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(passed_on(reader, to), passed_on(there, writer))

    async def serve() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        found.append(server.sockets[0].getsockname()[1])
        ready.set()
        await server.serve_forever()

    threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True).start()
    ready.wait()
    yield found[0]
