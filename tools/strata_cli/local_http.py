"""Asking a process on this machine something over HTTP. The system's proxy settings do not count."""

import http.client

ANSWER_BYTES_MAX = 1 << 20


class NoAnswer(Exception):
    """Nobody listens, it takes too long, or what came is not HTTP."""


def get(port: int, path: str, timeout_s: float) -> tuple[int, bytes]:
    """Status code and body. Raises NoAnswer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(ANSWER_BYTES_MAX)
    except TimeoutError:
        raise NoAnswer(f"no answer on port {port} within {timeout_s:g} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswer(f"no answer on port {port}: {error}") from None
    finally:
        connection.close()
