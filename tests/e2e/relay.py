"""A TCP relay in front of a server, so that its link can be cut or slowed while both ends live."""

import asyncio
import socket
import threading
from collections.abc import Coroutine

PIECE = 64 << 10  # Bytes passed on at a time, in each direction of each connection.
CALL_TIMEOUT_S = 10.0


class Relay:
    """Forwards 127.0.0.1:port to another port of this machine. Calls come from one thread and return when they have effect.

    A cut link swallows nothing and answers nothing: what is sent waits, new connections are taken and lead nowhere, and neither
    end hears of it, as when a cable is pulled. mend() lets everything go on where it stood; reset() ends what was connected."""

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._loop = asyncio.new_event_loop()
        self._open = asyncio.Event()
        self._open.set()
        self._delay_s = 0.0
        self._connections: set[asyncio.Task[None]] = set()
        listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = listening.getsockname()[1]
        self._thread = threading.Thread(target=self._run, args=(listening,), daemon=True)
        self._thread.start()

    def cut(self) -> None:
        self._call(self._set(is_open=False, delay_s=0.0))

    def slow(self, delay_s: float) -> None:
        """Each piece, in each direction, takes so much longer."""
        self._call(self._set(is_open=True, delay_s=delay_s))

    def mend(self) -> None:
        self._call(self._set(is_open=True, delay_s=0.0))

    def reset(self) -> None:
        """As mend(), but those who were connected have to connect again."""
        self._call(self._end_connections())
        self.mend()

    def close(self) -> None:
        self._call(self._end_connections())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)

    # --- in the relay's thread -----------------------------------------------------------------------------------

    def _run(self, listening: socket.socket) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=listening))
        self._loop.run_forever()
        server.close()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _call(self, work: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_TIMEOUT_S)

    async def _set(self, *, is_open: bool, delay_s: float) -> None:
        self._delay_s = delay_s
        (self._open.set if is_open else self._open.clear)()

    async def _end_connections(self) -> None:
        ended = list(self._connections)
        for connection in ended:
            connection.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        this = asyncio.current_task()
        assert this is not None
        self._connections.add(this)
        writers = [writer]
        try:
            await self._open.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(back)
            # The end of one direction is the end of both: the protocol has no half-closed connections.
            pumps = [asyncio.create_task(self._pump(reader, back)), asyncio.create_task(self._pump(there, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(this)
            for one in writers:
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE):
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            await self._open.wait()
            writer.write(piece)
            await writer.drain()
        await self._open.wait()  # Nobody hears through a cut link that the other end has gone.
