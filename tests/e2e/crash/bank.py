"""Bank transfers: each moves money between two rows and writes a row that says so, in one transaction.

The balance of every account must equal its initial balance plus what the transfer rows say: a half-applied transfer
shows up whichever half is missing.
"""

import random

from .ledger import Ledger, missing_and_wrong
from .session import Connector, Refused, ServerGone, Session
from .worker import TXNS_PER_WORKER, Worker

ACCOUNTS = 24
INITIAL_BALANCE = 1000

TABLES = {
    "bank_accounts": ["balance_key"],
    "bank_transfers": ["from_key", "to_key"],
}


def create(session: Session, engine: str) -> None:
    session.execute(
        f"CREATE TABLE bank_accounts (id INT PRIMARY KEY, balance BIGINT NOT NULL, KEY balance_key (balance)) ENGINE={engine}"
    )
    session.execute(
        "CREATE TABLE bank_transfers (id BIGINT PRIMARY KEY, from_id INT NOT NULL, to_id INT NOT NULL,"
        " amount BIGINT NOT NULL, memo VARCHAR(300) NOT NULL, KEY from_key (from_id), KEY to_key (to_id, amount))"
        f" ENGINE={engine}"
    )
    values = ", ".join(f"({n}, {INITIAL_BALANCE})" for n in range(ACCOUNTS))
    session.execute(f"INSERT INTO bank_accounts VALUES {values}")
    session.commit()


class BankWorker(Worker):
    def __init__(self, server: Connector, database: str, number: int, rng: random.Random, ledger: Ledger) -> None:
        super().__init__(server, database, number, rng)
        self._ledger = ledger
        self._next = 1 + max((t for t in ledger.begun if t // TXNS_PER_WORKER == number), default=number * TXNS_PER_WORKER)
        self._txn = 0

    def step(self, session: Session) -> None:
        giver, taker = self.rng.sample(range(ACCOUNTS), 2)
        if self.rng.random() < 0.7:  # Mostly in order; the rest makes deadlocks.
            giver, taker = sorted((giver, taker))
        amount = self.rng.randint(1, 50) * self.rng.choice((1, -1))
        self._txn, self._next = self._next, self._next + 1
        self._ledger.begin(self._txn, [giver, taker, amount])
        try:
            self._transfer(session, giver, taker, amount)
        except ServerGone:
            self._ledger.abort(self._txn)  # COMMIT was not sent, so the transaction must not be there.
            raise
        if self.rng.random() < 0.08:
            self._ledger.abort(self._txn)
            session.rollback()
            return
        try:
            session.commit()
        except Refused:
            self._ledger.abort(self._txn)
            raise
        self._ledger.ack(self._txn)

    def _transfer(self, session: Session, giver: int, taker: int, amount: int) -> None:
        if self.rng.random() < 0.3:
            session.execute("SELECT balance FROM bank_accounts WHERE id IN (%s, %s) FOR UPDATE", (giver, taker))
        session.execute("UPDATE bank_accounts SET balance = balance - %s WHERE id = %s", (amount, giver))
        memo = "m" * self.rng.randint(0, 200)
        transfer = (self._txn, giver, taker, amount, memo)
        session.execute("INSERT INTO bank_transfers VALUES (%s, %s, %s, %s, %s)", transfer)
        session.execute("UPDATE bank_accounts SET balance = balance + %s WHERE id = %s", (amount, taker))

    def abandon(self, session: Session) -> None:
        self._ledger.abort(self._txn)
        super().abandon(session)


class Auditor(Worker):
    """Reads while the others write: whatever a statement sees, the money in it is all there."""

    def step(self, session: Session) -> None:
        hint = self.rng.choice(["", "FORCE INDEX (balance_key)", "IGNORE INDEX (balance_key)"])
        found = session.execute(f"SELECT COUNT(*), SUM(balance) FROM bank_accounts {hint} WHERE balance > -1000000000")
        if [tuple(map(int, row)) for row in found] != [(ACCOUNTS, ACCOUNTS * INITIAL_BALANCE)]:
            raise AssertionError(f"a reader saw {found[0]} as number of accounts and sum of balances ({hint})")
        if self.rng.random() < 0.5:
            session.commit()
        self._halt.wait(0.01)


def verify(session: Session, ledger: Ledger) -> list[str]:
    balances: dict[int, int] = dict(session.execute("SELECT id, balance FROM bank_accounts"))
    transfers = session.execute("SELECT id, from_id, to_id, amount FROM bank_transfers")
    problems = missing_and_wrong(ledger, {row[0] for row in transfers}, "bank")
    expected = dict.fromkeys(range(ACCOUNTS), INITIAL_BALANCE)
    for txn, giver, taker, amount in transfers:
        expected[giver] -= amount
        expected[taker] += amount
        if ledger.begun.get(txn, [giver, taker, amount]) != [giver, taker, amount]:
            problems.append(f"bank: transfer {txn} is not what its client wrote")
    if wrong := [n for n in expected if balances.get(n) != expected[n]]:
        shown = [(n, balances.get(n), expected[n]) for n in wrong[:4]]
        problems.append(f"bank: half a transfer: balances differ from the transfers (account, is, should be): {shown}")
    if sum(balances.values()) != ACCOUNTS * INITIAL_BALANCE:
        problems.append(f"bank: the sum of balances is {sum(balances.values())}, not {ACCOUNTS * INITIAL_BALANCE}")
    return problems
