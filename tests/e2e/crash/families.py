"""Parents and children: what a foreign key does to other rows is there, or not, with the row it follows from.

Each worker owns its families. A row says in `who` to which it belongs, whatever id the parent has by now.
"""

from dataclasses import dataclass, replace

from .session import Refused, Session
from .worker import StateWorker

TABLES = {"parents": ["who_key"], "children": ["parent_key", "who_key"], "guests": ["parent_key", "who_key"]}
FAMILIES_MAX = 12
ROWS_MAX = 300  # of children, and of guests
NO_PARENT = 1452


@dataclass(frozen=True)
class Family:
    parent: int  # its id; 0: it has gone, and its children with it
    children: int  # go along with the parent
    guests: int  # stay without one


State = dict[int, Family]


def create(session: Session, engine: str) -> None:
    session.execute(f"CREATE TABLE parents (id BIGINT PRIMARY KEY, who BIGINT NOT NULL, KEY who_key (who)) ENGINE={engine}")
    rows = "id BIGINT AUTO_INCREMENT PRIMARY KEY, parent BIGINT, who BIGINT NOT NULL, KEY parent_key (parent), KEY who_key (who)"
    for table, on_delete in (("children", "CASCADE"), ("guests", "SET NULL")):
        session.execute(
            f"CREATE TABLE {table} ({rows}, CONSTRAINT {table}_of FOREIGN KEY (parent) REFERENCES parents (id)"
            f" ON DELETE {on_delete} ON UPDATE CASCADE) ENGINE={engine}"
        )
    session.commit()


class FamiliesWorker(StateWorker[Family]):
    rollback_chance = 0.2

    def change(self, session: Session, work: State) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self._statement(session, work)

    def _statement(self, session: Session, work: State) -> None:
        there = [who for who, family in work.items() if family.parent]
        chance = self.rng.random()
        if not there or (chance < 0.3 and len(work) < FAMILIES_MAX):
            return self._found(session, work)
        who = self.rng.choice(sorted(there))
        family = work[who]
        if chance < 0.5:
            rows = self.rng.randint(1, ROWS_MAX)
            session.execute(f"INSERT INTO children (parent, who) SELECT {family.parent}, {who} FROM seq_1_to_{rows}")
            work[who] = replace(family, children=family.children + rows)
        elif chance < 0.7:
            parent, self.next_id = self.next_id, self.next_id + 1
            session.execute("UPDATE parents SET id = %s WHERE id = %s", (parent, family.parent))
            work[who] = replace(family, parent=parent)
        elif chance < 0.75:
            self._orphan(session)
        else:
            session.execute("DELETE FROM parents WHERE id = %s", (family.parent,))
            work[who] = Family(0, 0, family.guests)
        gone = [old for old, one in work.items() if not one.parent]
        if len(work) >= FAMILIES_MAX and gone:
            session.execute("DELETE FROM guests WHERE who = %s", (gone[0],))
            del work[gone[0]]

    def _found(self, session: Session, work: State) -> None:
        who, self.next_id = self.next_id, self.next_id + 1
        rows = self.rng.randint(1, ROWS_MAX)
        session.execute("INSERT INTO parents VALUES (%s, %s)", (who, who))
        for table in ("children", "guests"):
            session.execute(f"INSERT INTO {table} (parent, who) SELECT {who}, {who} FROM seq_1_to_{rows}")
        work[who] = Family(who, rows, rows)

    def _orphan(self, session: Session) -> None:
        """A statement that must fail and leave its transaction as it was."""
        nobody, self.next_id = self.next_id, self.next_id + 1
        try:
            session.execute("INSERT INTO children (parent, who) VALUES (%s, %s)", (nobody, nobody))
        except Refused as error:
            if error.code != NO_PARENT:
                raise
        else:
            raise AssertionError(f"a child of the parent {nobody}, who is not there, was accepted")


def verify(session: Session, worker: FamiliesWorker) -> list[str]:
    """Also settles the worker's state to what is there."""
    problems: list[str] = []
    parents = {who: parent for parent, who in session.execute("SELECT id, who FROM parents")}
    counts: dict[str, dict[int, int]] = {}
    for table in ("children", "guests"):
        counts[table] = {}
        for who, rows, fewest, most in session.execute(
            f"SELECT who, COUNT(*), MIN(IFNULL(parent, 0)), MAX(IFNULL(parent, 0)) FROM {table} GROUP BY who"
        ):
            counts[table][who] = rows
            if (fewest, most) != (parents.get(who, 0), parents.get(who, 0)) or (table == "children" and who not in parents):
                problems.append(f"{table} of {who} have the parents {fewest} to {most}, and there is {parents.get(who)}")
    everybody = parents.keys() | counts["children"].keys() | counts["guests"].keys()
    actual = {who: Family(parents.get(who, 0), counts["children"].get(who, 0), counts["guests"].get(who, 0)) for who in everybody}
    if actual != worker.committed and actual != worker.candidate:
        unknown = "an unanswered COMMIT besides" if worker.candidate is not None else "no transaction in doubt"
        wanted = worker.committed
        both = ((who, wanted.get(who), actual.get(who)) for who in wanted.keys() | actual.keys())
        different = [one for one in both if one[1] != one[2]]
        problems.append(f"families (who, committed, there): {different[:3]} ({unknown})")
    worker.committed, worker.candidate = actual, None
    return problems[:10]
