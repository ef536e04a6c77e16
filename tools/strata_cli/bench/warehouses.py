"""TPC-C for several servers with warehouses of their own: its nine tables, and what must hold of them after a run. Its
transactions are bench/sysbench/tpcc.lua. For one server there is tpcc.py, whose driver is another program, in Go.

Consistency conditions 1 to 4 are those of the specification (3.3.2). A transaction that is lost as a whole breaks none of them;
so orders, lines, payments, amounts and stocks must also have grown by what the clients have committed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from .own_mix import Ask, Facts, asked, differences

DISTRICTS = 10
SYLLABLES = ("BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING")
NAMES_MAX = 1000
DELIVERED_SHARE = 0.7  # of the orders at first
PERMUTATION = 1009  # a prime, so that every customer of a district has one of its orders at first
CENTS_AT_FIRST = 1000  # of each customer's payment
DISTRICT_YTD = 30_000
WORD = "REPEAT(MD5(RAND()), 2)"  # 64 letters

# What must not be: warehouses, or districts, for which a condition does not hold.
CONDITIONS = {
    "1: W_YTD is the sum of D_YTD": "SELECT COUNT(*) FROM warehouse JOIN (SELECT d_w_id, SUM(d_ytd) ytd FROM district"
    " GROUP BY d_w_id) d ON d_w_id = w_id WHERE w_ytd <> ytd",
    "2: D_NEXT_O_ID is behind the last order": "SELECT COUNT(*) FROM district LEFT JOIN (SELECT o_w_id, o_d_id, MAX(o_id) last"
    " FROM orders GROUP BY o_w_id, o_d_id) o ON o_w_id = d_w_id AND o_d_id = d_id WHERE d_next_o_id - 1 <> last OR last IS NULL",
    "2: D_NEXT_O_ID is behind the last new order": "SELECT COUNT(*) FROM district JOIN (SELECT no_w_id, no_d_id,"
    " MAX(no_o_id) last FROM new_order GROUP BY no_w_id, no_d_id) n ON no_w_id = d_w_id AND no_d_id = d_id"
    " WHERE d_next_o_id - 1 <> last",
    "3: new orders have no gaps": "SELECT COUNT(*) FROM (SELECT MAX(no_o_id) - MIN(no_o_id) + 1 span, COUNT(*) there"
    " FROM new_order GROUP BY no_w_id, no_d_id) n WHERE span <> there",
    "4: O_OL_CNT is the number of lines": "SELECT COUNT(*) FROM (SELECT o_w_id, o_d_id, SUM(o_ol_cnt) said FROM orders"
    " GROUP BY o_w_id, o_d_id) o LEFT JOIN (SELECT ol_w_id, ol_d_id, COUNT(*) there FROM order_line GROUP BY ol_w_id, ol_d_id) l"
    " ON ol_w_id = o_w_id AND ol_d_id = o_d_id WHERE there IS NULL OR said <> there",
}
# What grows by what the clients count, by its name here and there.
GROWING = {
    "orders": ("SELECT COUNT(*) FROM orders", "ordered"),
    "order lines": ("SELECT COUNT(*) FROM order_line", "lines"),
    "payments": ("SELECT COUNT(*) FROM history", "paid"),
    "cents paid to warehouses": ("SELECT 100 * SUM(w_ytd) FROM warehouse", "cents"),
    "cents paid by customers": ("SELECT 100 * SUM(c_ytd_payment) FROM customer", "cents"),
    "cents in the history": ("SELECT 100 * SUM(h_amount) FROM history", "cents"),
    "payments of customers": ("SELECT SUM(c_payment_cnt) FROM customer", "paid"),
    "pieces taken from stocks": ("SELECT SUM(s_ytd) FROM stock", "quantity"),
    "lines taken from stocks": ("SELECT SUM(s_order_cnt) FROM stock", "lines"),
    "lines taken from other warehouses": ("SELECT SUM(s_remote_cnt) FROM stock", "remote_lines"),
    "deliveries to customers": ("SELECT SUM(c_delivery_cnt) FROM customer", "delivered"),
}
NEW_ORDERS = "new orders"
QUESTIONS = {what: question for what, (question, _) in GROWING.items()} | {NEW_ORDERS: "SELECT COUNT(*) FROM new_order"}


@dataclass(frozen=True)
class Warehouses:
    each: int  # of each server
    servers: int
    items: int
    engine: str

    script = "tpcc"
    transactions = ("new_order", "payment", "order_status", "delivery", "stock_level")

    @property
    def customers(self) -> int:
        """Of a district, as many as the specification's to its items."""
        return max(10, self.items * 3 // 100)

    def options(self, shared: int, servers: int) -> list[str]:
        sizes = {"warehouses": self.each, "servers": servers, "items": self.items, "customers": self.customers}
        return [f"--{name}={value}" for name, value in sizes.items()]

    # --- its tables --------------------------------------------------------------------------------------------

    def load(self, ask: Ask) -> None:
        for table in self._tables():
            ask(f"{table} ENGINE={self.engine}")
        items = f"seq, 1 + MOD(seq, 10000), LEFT({WORD}, 24), 1 + RAND() * 99, {_data()}"
        ask(f"INSERT INTO item SELECT {items} FROM seq_1_to_{self.items}")
        for warehouse in range(1, self.each * self.servers + 1):
            for fill in self._warehouse(warehouse):
                ask(fill)
            for district in range(1, DISTRICTS + 1):
                for fill in self._district(warehouse, district):
                    ask(fill)

    def _tables(self) -> list[str]:
        place = "street_1 VARCHAR(20), {0}_street_2 VARCHAR(20), {0}_city VARCHAR(20), {0}_state CHAR(2), {0}_zip CHAR(9)"

        def address(of: str) -> str:
            return f"{of}_{place.format(of)}"

        infos = ", ".join(f"s_dist_{number:02} CHAR(24)" for number in range(1, DISTRICTS + 1))
        return [
            f"CREATE TABLE warehouse (w_id INT PRIMARY KEY, w_name VARCHAR(10), {address('w')}, w_tax DECIMAL(4,4),"
            " w_ytd DECIMAL(14,2) NOT NULL)",
            f"CREATE TABLE district (d_id INT, d_w_id INT, d_name VARCHAR(10), {address('d')}, d_tax DECIMAL(4,4),"
            " d_ytd DECIMAL(14,2) NOT NULL, d_next_o_id INT NOT NULL, PRIMARY KEY (d_w_id, d_id))",
            f"CREATE TABLE customer (c_id INT, c_d_id INT, c_w_id INT, c_first VARCHAR(16), c_middle CHAR(2), c_last VARCHAR(16),"
            f" {address('c')}, c_phone CHAR(16), c_since DATETIME, c_credit CHAR(2), c_credit_lim DECIMAL(12,2),"
            " c_discount DECIMAL(4,4), c_balance DECIMAL(14,2) NOT NULL, c_ytd_payment DECIMAL(14,2) NOT NULL,"
            " c_payment_cnt INT NOT NULL, c_delivery_cnt INT NOT NULL, c_data VARCHAR(500), PRIMARY KEY (c_w_id, c_d_id, c_id),"
            " KEY by_name (c_w_id, c_d_id, c_last, c_first))",
            "CREATE TABLE history (h_c_id INT, h_c_d_id INT, h_c_w_id INT, h_d_id INT, h_w_id INT, h_date DATETIME,"
            " h_amount DECIMAL(6,2), h_data VARCHAR(24))",
            "CREATE TABLE orders (o_id INT, o_d_id INT, o_w_id INT, o_c_id INT, o_entry_d DATETIME, o_carrier_id INT,"
            " o_ol_cnt INT, o_all_local INT, PRIMARY KEY (o_w_id, o_d_id, o_id), KEY by_customer (o_w_id, o_d_id, o_c_id, o_id))",
            "CREATE TABLE new_order (no_o_id INT, no_d_id INT, no_w_id INT, PRIMARY KEY (no_w_id, no_d_id, no_o_id))",
            "CREATE TABLE order_line (ol_o_id INT, ol_d_id INT, ol_w_id INT, ol_number INT, ol_i_id INT, ol_supply_w_id INT,"
            " ol_delivery_d DATETIME, ol_quantity INT, ol_amount DECIMAL(6,2), ol_dist_info CHAR(24),"
            " PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number))",
            "CREATE TABLE item (i_id INT PRIMARY KEY, i_im_id INT, i_name VARCHAR(24), i_price DECIMAL(5,2), i_data VARCHAR(50))",
            f"CREATE TABLE stock (s_i_id INT, s_w_id INT, s_quantity INT NOT NULL, {infos}, s_ytd INT NOT NULL,"
            " s_order_cnt INT NOT NULL, s_remote_cnt INT NOT NULL, s_data VARCHAR(50), PRIMARY KEY (s_w_id, s_i_id))",
        ]

    def _warehouse(self, warehouse: int) -> list[str]:
        infos = ", ".join(f"LEFT({WORD}, 24)" for _ in range(DISTRICTS))
        return [
            f"INSERT INTO warehouse VALUES ({warehouse}, 'W{warehouse}', {_address()}, RAND() * 0.2, {DISTRICTS * DISTRICT_YTD})",
            f"INSERT INTO stock SELECT seq, {warehouse}, 10 + FLOOR(RAND() * 91), {infos}, 0, 0, 0, {_data()}"
            f" FROM seq_1_to_{self.items}",
            f"INSERT INTO district SELECT seq, {warehouse}, CONCAT('D', seq), {_address()}, RAND() * 0.2, {DISTRICT_YTD},"
            f" {self.customers + 1} FROM seq_1_to_{DISTRICTS}",
        ]

    def _district(self, warehouse: int, district: int) -> list[str]:
        of, count = f"{district}, {warehouse}", self.customers
        delivered = int(count * DELIVERED_SHARE)
        lines = f"5 + MOD(CRC32(CONCAT_WS('-', {warehouse}, {district}, o.seq)), 11)"
        return [
            f"INSERT INTO customer SELECT seq, {of}, LEFT({WORD}, 12), 'OE', {_last_name()}, {_address()},"
            " LPAD(FLOOR(RAND() * 1e12), 16, '0'), NOW(), IF(RAND() < 0.1, 'BC', 'GC'), 50000, RAND() * 0.5, -10, 10, 1, 0,"
            f" REPEAT(MD5(RAND()), 12) FROM seq_1_to_{count}",
            f"INSERT INTO history SELECT seq, {of}, {of}, NOW(), {CENTS_AT_FIRST / 100}, LEFT({WORD}, 20) FROM seq_1_to_{count}",
            f"INSERT INTO orders SELECT o.seq, {of}, 1 + MOD(o.seq * {PERMUTATION}, {count}), NOW(),"
            f" IF(o.seq <= {delivered}, 1 + FLOOR(RAND() * 10), NULL), {lines}, 1 FROM seq_1_to_{count} o",
            f"INSERT INTO new_order SELECT seq, {of} FROM seq_{delivered + 1}_to_{count}",
            f"INSERT INTO order_line SELECT o.seq, {of}, l.seq, 1 + FLOOR(RAND() * {self.items}), {warehouse},"
            f" IF(o.seq <= {delivered}, NOW(), NULL), 5, IF(o.seq <= {delivered}, 0, 0.01 + RAND() * 9999.98), LEFT({WORD}, 24)"
            f" FROM seq_1_to_{count} o JOIN seq_1_to_15 l WHERE l.seq <= {lines}",
        ]

    # --- what must hold ----------------------------------------------------------------------------------------

    def facts(self, ask: Ask) -> Facts:
        return asked(ask, QUESTIONS)

    def problems(self, ask: Ask, before: Facts, counted: Mapping[str, int]) -> list[str]:
        wanted = {what: before[what] + counted.get(name, 0) for what, (_, name) in GROWING.items()}
        wanted[NEW_ORDERS] = before[NEW_ORDERS] + counted.get("ordered", 0) - counted.get("delivered", 0)
        broken = [f"condition {what}: not so {count:,} times" for what, count in asked(ask, CONDITIONS).items() if count]
        return broken + differences(wanted, self.facts(ask))

    def rate(self, transactions: float, counted: Mapping[str, int]) -> float:
        """New orders a minute, of those that were committed."""
        mixed = sum(counted.get(name, 0) for name in self.transactions)
        return 60 * transactions * counted.get("ordered", 0) / mixed if mixed else 0.0


def _last_name() -> str:
    """The first ones in their order, so that each name is there; the others not evenly, as the specification has it."""
    drawn = f"MOD(CRC32(CONCAT('name', seq)), 256) | MOD(CRC32(CONCAT('of', seq)), {NAMES_MAX})"
    number = f"IF(seq <= {NAMES_MAX}, seq - 1, MOD({drawn}, {NAMES_MAX}))"
    syllables = ", ".join(f"'{syllable}'" for syllable in SYLLABLES)
    digits = (f"{number} DIV 100", f"{number} DIV 10 MOD 10", f"{number} MOD 10")
    return f"CONCAT({', '.join(f'ELT(1 + ({digit}), {syllables})' for digit in digits)})"


def _address() -> str:
    return f"LEFT({WORD}, 15), LEFT({WORD}, 15), LEFT({WORD}, 15), 'ST', LPAD(FLOOR(RAND() * 10000), 9, '1')"


def _data() -> str:
    """One of ten is an original, as the specification calls it."""
    return f"CONCAT(LEFT({WORD}, 30), IF(RAND() < 0.1, 'ORIGINAL', ''))"
