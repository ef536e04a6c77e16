"""No number of a sequence is given out twice, whatever kill -9 comes in between, and whatever is rolled back."""

import threading
import time

import pymysql
from strata_cli.server import Server

LIVES = 3
SESSIONS = 3
LIFE_S = 0.7


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
        time.sleep(LIFE_S)
        server.kill()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        server.start(server.settings())
    for name, numbers in given.items():
        numbers.append(int(server.query(f"SELECT NEXTVAL(test.{name})")[0][0]))
        assert len(numbers) > LIVES * SESSIONS, name
        assert len(set(numbers)) == len(numbers), f"{name}: {sorted(n for n in set(numbers) if numbers.count(n) > 1)[:5]}"
