"""The tables that are there all the time; whatever else statements name comes and goes."""

TABLES = 3  # s.t0 to s.t2, and as many of whatever has a number
ROWS = 40
ACCOUNTS = 30
AMOUNT = 100

# What clients of wild statements use. Nobody drops these tables, or takes away the columns that statements name.
WILD = (
    "CREATE DATABASE s",
    *(
        f"CREATE TABLE s.t{k} (a INT AUTO_INCREMENT PRIMARY KEY, b INT, c VARCHAR(100), KEY (b)) ENGINE=STRATA"
        for k in range(TABLES)
    ),
    "CREATE TABLE s.parent (a INT PRIMARY KEY) ENGINE=STRATA",
    "CREATE TABLE s.child (id INT AUTO_INCREMENT PRIMARY KEY, t INT,"
    " FOREIGN KEY (t) REFERENCES s.parent (a) ON UPDATE CASCADE ON DELETE CASCADE) ENGINE=STRATA",
    "CREATE TABLE s.log (id INT AUTO_INCREMENT PRIMARY KEY, t INT, a INT) ENGINE=STRATA",
    "CREATE TABLE s.lob (id INT PRIMARY KEY, d LONGBLOB, t MEDIUMTEXT) ENGINE=STRATA",
    "CREATE TABLE s.gen (a INT AUTO_INCREMENT PRIMARY KEY, b INT, v INT AS (b * 2) VIRTUAL, p INT AS (b + 1) PERSISTENT,"
    " KEY (v), KEY (p), CHECK (b < 900)) ENGINE=STRATA",
    "CREATE TABLE s.hist (id INT PRIMARY KEY, b INT) ENGINE=STRATA WITH SYSTEM VERSIONING",
    "CREATE TABLE s.kinds (id INT PRIMARY KEY, d DATE, n DECIMAL(10,2), e ENUM('x','y','z'), j JSON, f DOUBLE, bt BIT(9),"
    " u VARCHAR(20) UNIQUE, ts TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)) ENGINE=STRATA",
)
# What is counted. Statements change its indexes, its comment and where it lies, never its rows.
BANK = (
    "CREATE DATABASE bank",
    "CREATE TABLE bank.account (id INT PRIMARY KEY, amount INT NOT NULL, note VARCHAR(40)) ENGINE=STRATA",
    f"INSERT INTO bank.account (id, amount) VALUES {', '.join(f'({i}, {AMOUNT})' for i in range(ACCOUNTS))}",
    "CREATE TABLE bank.ledger (id INT PRIMARY KEY, client INT NOT NULL) ENGINE=STRATA",
)
