"""No number of a sequence is given out twice, whatever kill -9 comes in between, and whatever is rolled back."""

import threading

import pymysql
from strata_cli.server import Server
from strata_cli.waiting import wait_until

LIVES = 3
SESSIONS = 3
NUMBERS = 40  # that each sequence gives, at least, in a life
LIFE_TIMEOUT_S = 60.0


def test_no_number_comes_twice_after_kill(server: Server) -> None:
    server.query("CREATE SEQUENCE test.often NOCACHE")
    server.query("CREATE SEQUENCE test.cached CACHE 20")
    given: dict[str, list[int]] = {"often": [], "cached": []}

    def take(name: str) -> None:
        try:
            with server.connect(database="test", autocommit=False) as connection, connection.cursor() as cursor:
                while True:
                    cursor.execute(f"SELECT NEXTVAL({name})")
                    given[name].append(int(cursor.fetchall()[0][0]))
                    if given[name][-1] % 3 == 0:
                        connection.rollback()
        except (pymysql.MySQLError, OSError):
            pass  # killed

    for _ in range(LIVES):
        threads = [threading.Thread(target=take, args=(name,), daemon=True) for name in given for _ in range(SESSIONS)]
        for thread in threads:
            thread.start()
        before = {name: len(numbers) for name, numbers in given.items()}
        assert wait_until(lambda before=before: all(len(given[n]) >= before[n] + NUMBERS for n in given), LIFE_TIMEOUT_S)  # type: ignore[misc]
        server.kill()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        server.start(server.settings())
    for name, numbers in given.items():
        numbers.append(int(server.query(f"SELECT NEXTVAL(test.{name})")[0][0]))
        assert len(numbers) > LIVES * SESSIONS, name
        assert len(set(numbers)) == len(numbers), f"{name}: {sorted(n for n in set(numbers) if numbers.count(n) > 1)[:5]}"
