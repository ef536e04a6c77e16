"""The relay that campaigns put in front of storage nodes does to a link what it says."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from relay import Relay

SILENCE_S = 0.3
ANSWER_S = 10.0
SLOW_S = 0.1


class EchoServer:
    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.taken = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.taken += 1
            threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    @staticmethod
    def _echo(connection: socket.socket) -> None:
        with connection:
            while piece := connection.recv(1000):
                connection.sendall(piece)

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def server() -> Iterator[EchoServer]:
    made = EchoServer()
    yield made
    made.close()


@pytest.fixture
def relay(server: EchoServer) -> Iterator[Relay]:
    made = Relay(server.port)
    yield made
    made.close()


def connect(relay: Relay) -> socket.socket:
    return socket.create_connection(("127.0.0.1", relay.port), timeout=ANSWER_S)


def ask(client: socket.socket, text: bytes) -> bytes:
    client.sendall(text)
    return receive(client, len(text))


def receive(client: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count and (piece := client.recv(count - len(got))):
        got += piece
    return got


def is_silent(client: socket.socket) -> bool:
    client.settimeout(SILENCE_S)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(ANSWER_S)
    return False


def is_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.quick
def test_a_cut_link_is_silent_and_loses_nothing(server: EchoServer, relay: Relay) -> None:
    with connect(relay) as client:
        assert ask(client, b"one") == b"one"
        relay.cut()
        client.sendall(b"two")
        assert is_silent(client)
        with connect(relay) as late:
            late.sendall(b"three")
            assert is_silent(late) and server.taken == 1
            relay.mend()
            assert receive(client, 3) == b"two"
            assert receive(late, 5) == b"three"


@pytest.mark.quick
def test_reset_ends_the_connections_there_are(relay: Relay) -> None:
    with connect(relay) as client:
        assert ask(client, b"one") == b"one"
        relay.cut()
        client.sendall(b"two")
        relay.reset()
        assert is_ended(client)
    with connect(relay) as client:
        assert ask(client, b"three") == b"three"


@pytest.mark.quick
def test_a_slow_link_passes_each_piece_later(relay: Relay) -> None:
    with connect(relay) as client:
        assert ask(client, b"one") == b"one"
        relay.slow(SLOW_S)
        began = time.monotonic()
        assert ask(client, b"two") == b"two"
        assert time.monotonic() - began >= 2 * SLOW_S


@pytest.mark.quick
def test_where_nobody_listens_the_client_is_sent_away() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        relay = Relay(mute.getsockname()[1])
        try:
            with connect(relay) as client:
                assert is_ended(client)
        finally:
            relay.close()
