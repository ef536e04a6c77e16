"""Every kind of statement that clients send, and what each may be refused with.

A line is a kind: statements with " ;; " between them go one after the other on one connection, and end at the first that fails. Behind
" -- " are the errors that such a statement may give because of what others have done or not done (errors.py names them); those of ANY
may come always, and nothing else may. {k} and {j} are numbers of tables, {m} one of few rows, {n} any number, {q} a number nobody else
has, {file} a file with rows. 1062 of a row whose number the server chooses: somebody else has given that number to a row of their own in
the same moment. 1105 of who reads all routines: the server has no other word for one that is killed meanwhile.
4025 of rows for n{k}: a CHECK that another client has added. 4085 of RESTART 0: sequences begin with 1.
"""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import ANY
from .schema import ROWS, TABLES

BETWEEN = " ;; "
ERRORS = re.compile(r"^(?P<text>.*?)(?: -- (?P<codes>[0-9 ]+))?$")

ACCOUNTS = """
CREATE USER IF NOT EXISTS u{k} IDENTIFIED BY '{n}'
CREATE OR REPLACE USER u{k} IDENTIFIED BY '{n}'
CREATE USER u{k} -- 1396
DROP USER IF EXISTS u{k}
DROP USER u{k}, u{j} -- 1396
CREATE ROLE IF NOT EXISTS r{k}
DROP ROLE IF EXISTS r{k}
GRANT r{k} TO u{j} -- 1133 1959 1396
GRANT r{k} TO r{j} -- 1133 1959 1396 1961
REVOKE r{k} FROM u{j} -- 1133 1141 1959 1396 1962
GRANT SELECT, INSERT ON s.t{k} TO u{j} -- 1133 1146
GRANT SELECT (a), UPDATE (b) ON s.t{k} TO u{j} -- 1133 1146
GRANT ALL ON s.* TO u{j} WITH GRANT OPTION -- 1133
GRANT RELOAD, PROCESS ON *.* TO u{j} -- 1133
GRANT SELECT ON s.t{k} TO r{j} -- 1133 1146
REVOKE INSERT ON s.t{k} FROM u{j} -- 1133 1141 1147
REVOKE ALL ON s.* FROM u{j} -- 1133 1141
GRANT EXECUTE ON PROCEDURE s.p{k} TO u{j} -- 1133 1305
REVOKE EXECUTE ON FUNCTION s.f{k} FROM u{j} -- 1133 1141 1305 1403
REVOKE ALL PRIVILEGES, GRANT OPTION FROM u{j} -- 1269
SET DEFAULT ROLE r{k} FOR u{j} -- 1133 1959 1396
RENAME USER u{k} TO u{j} -- 1396
ALTER USER IF EXISTS u{k} WITH MAX_USER_CONNECTIONS {k}
ALTER USER u{k} ACCOUNT LOCK -- 1396
ALTER USER u{k} PASSWORD EXPIRE NEVER ACCOUNT UNLOCK -- 1396
SET PASSWORD FOR u{k} = PASSWORD('{n}') -- 1133
FLUSH PRIVILEGES
SHOW GRANTS FOR u{k} -- 1141
SHOW GRANTS FOR r{k} -- 1141
SHOW CREATE USER u{k} -- 1133 1141 1396
SELECT COUNT(*) FROM mysql.user
SELECT COUNT(*) FROM information_schema.user_privileges
SELECT COUNT(*) FROM information_schema.table_privileges
CREATE SERVER IF NOT EXISTS far{k} FOREIGN DATA WRAPPER mysql OPTIONS (HOST '127.0.0.{m}', USER 'u') -- 1477 1476
CREATE OR REPLACE SERVER far{k} FOREIGN DATA WRAPPER mysql OPTIONS (HOST '127.0.0.{m}') -- 1477 1476
ALTER SERVER far{k} OPTIONS (USER 'v{n}') -- 1477
DROP SERVER IF EXISTS far{k} -- 1477
"""

ROUTINES = """
CREATE OR REPLACE FUNCTION s.f{k}(x INT) RETURNS INT RETURN x + (SELECT COUNT(*) FROM s.t{j} WHERE a < 5) -- 1304
CREATE FUNCTION IF NOT EXISTS s.f{k}(x INT) RETURNS INT DETERMINISTIC RETURN x + {n}
DROP FUNCTION IF EXISTS s.f{k}
ALTER FUNCTION s.f{k} COMMENT '{n}' -- 1305
CREATE OR REPLACE PROCEDURE s.p{k}() UPDATE s.t{j} SET b = b + 1 WHERE a = {m} -- 1304
CREATE OR REPLACE PROCEDURE s.p{k}() BEGIN DECLARE x INT; SELECT COUNT(*) INTO x FROM s.t{j} WHERE a < {m}; INSERT INTO s.log (t, a) VALUES ({k}, x); END -- 1304
CREATE PROCEDURE s.p{k}() SELECT {n} -- 1304
DROP PROCEDURE IF EXISTS s.p{k}
DROP PROCEDURE s.p{k} -- 1305
CALL s.p{k}() -- 1305
SELECT s.f{k}({m}) -- 1305
SELECT COUNT(*) FROM s.t{k} WHERE a = s.f{j}({m}) -- 1305
SHOW CREATE PROCEDURE s.p{k} -- 1305
SHOW CREATE FUNCTION s.f{k} -- 1305
SHOW PROCEDURE STATUS -- 1105
SHOW FUNCTION STATUS WHERE db = 's' -- 1105
SELECT COUNT(*) FROM information_schema.routines WHERE routine_schema = 's' -- 1105
SELECT COUNT(*) FROM information_schema.parameters WHERE specific_schema = 's' -- 1105
CREATE OR REPLACE TRIGGER s.g{k} BEFORE INSERT ON s.t{k} FOR EACH ROW SET NEW.b = {n}
CREATE TRIGGER IF NOT EXISTS s.h{k} AFTER DELETE ON s.t{k} FOR EACH ROW INSERT INTO s.log (t, a) VALUES ({k}, OLD.a)
CREATE TRIGGER s.i{k} BEFORE UPDATE ON s.t{k} FOR EACH ROW FOLLOWS h{k} SET NEW.c = OLD.c -- 1359 1360 4031
DROP TRIGGER IF EXISTS s.g{k}
DROP TRIGGER s.h{k} -- 1360
SHOW TRIGGERS FROM s
SHOW CREATE TRIGGER s.g{k} -- 1360
SELECT COUNT(*) FROM information_schema.triggers WHERE trigger_schema = 's'
CREATE OR REPLACE EVENT s.e{k} ON SCHEDULE EVERY 1 SECOND DO INSERT INTO s.t{k} (b) VALUES (7)
CREATE EVENT IF NOT EXISTS s.e{k} ON SCHEDULE AT NOW() + INTERVAL 1 SECOND DO UPDATE s.t{k} SET b = b + 1 WHERE a = {m}
DROP EVENT IF EXISTS s.e{k}
ALTER EVENT s.e{k} DISABLE -- 1539
ALTER EVENT s.e{k} RENAME TO s.e{j} -- 1537 1539 1551
ALTER EVENT s.e{k} ON SCHEDULE EVERY 2 SECOND ENABLE COMMENT '{n}' -- 1539
SHOW CREATE EVENT s.e{k} -- 1539
SHOW EVENTS FROM s
"""

VIEWS = """
CREATE OR REPLACE VIEW s.v{k} AS SELECT a, b FROM s.t{j}
CREATE OR REPLACE ALGORITHM=TEMPTABLE VIEW s.v{k} AS SELECT b, COUNT(*) AS a FROM s.t{j} GROUP BY b
CREATE VIEW IF NOT EXISTS s.v{k} AS SELECT x.a, y.b FROM s.t{k} x JOIN s.t{j} y USING (a)
ALTER VIEW s.v{k} AS SELECT a, b FROM s.t{j} WHERE a < {n} -- 1146 1347
DROP VIEW IF EXISTS s.v{k}
DROP VIEW s.v{k} -- 4092 1051
SELECT COUNT(*) FROM s.v{k} -- 1146 1356
SELECT b FROM s.v{k} WHERE a = {m} -- 1146 1356
INSERT INTO s.v{k} (b) VALUES ({n}) -- 1146 1356 1471 1394 1393 1062 1423
UPDATE s.v{k} SET b = {n} WHERE a = {m} -- 1146 1356 1288 1395
SHOW CREATE VIEW s.v{k} -- 1146 1347 1356
SELECT COUNT(*) FROM information_schema.views WHERE table_schema = 's'
"""

ROW_CHANGES = """
INSERT INTO s.t{k} (b, c) VALUES ({n}, REPEAT('x', {m})) -- 1062
INSERT INTO s.t{k} (b, c) VALUES ({n}, 'a'), ({m}, 'b'), ({n}, 'c') RETURNING a, b -- 1062
INSERT INTO s.t{k} (b, c) SELECT b, c FROM s.t{j} WHERE a < {m} LIMIT 3 -- 1062
INSERT INTO s.t{k} (a, b) VALUES ({m}, 1) ON DUPLICATE KEY UPDATE b = b + 1
INSERT INTO s.t{k} (a, b) VALUES ({m}, 1) -- 1062
INSERT IGNORE INTO s.t{k} (a, b) VALUES ({m}, 1), ({m} + 1, 2)
REPLACE INTO s.t{k} (a, b) VALUES ({m}, 2)
REPLACE INTO s.t{k} (a, b) VALUES ({m}, 2) RETURNING a, b + 1
UPDATE s.t{k} SET b = b + 1 WHERE a = {m}
UPDATE s.t{k} SET b = {n} WHERE b = {m} ORDER BY a LIMIT 2
UPDATE s.t{k} SET a = a + 1000 WHERE a = {m} -- 1062
UPDATE s.t{k} x JOIN s.t{j} y USING (a) SET x.b = y.b WHERE a = {m}
DELETE FROM s.t{k} WHERE a = {m}
DELETE FROM s.t{k} WHERE a BETWEEN {m} AND {m} + 5 RETURNING a, b, c
DELETE s.t{k} FROM s.t{k} JOIN s.t{j} y USING (a) WHERE a = {m}
DELETE FROM s.t{k} WHERE a > 200 ORDER BY a LIMIT 50
LOAD DATA INFILE '{file}' IGNORE INTO TABLE s.t{k} FIELDS TERMINATED BY ',' (a, b, c)
LOAD DATA INFILE '{file}' REPLACE INTO TABLE s.t{k} FIELDS TERMINATED BY ',' (a, b, c)
LOAD DATA INFILE '{file}' INTO TABLE s.n{k} FIELDS TERMINATED BY ',' (a, b, c) -- 1146 1062 1054 1452 4025
SELECT a, b FROM s.t{k} INTO OUTFILE '{file}.{q}'
INSERT INTO s.child (t) VALUES ({m}) -- 1452
UPDATE s.child SET t = {m} WHERE t = {n} % 40 -- 1452
DELETE FROM s.child WHERE t = {m}
DELETE FROM s.parent WHERE a = {m} -- 1451
INSERT IGNORE INTO s.parent VALUES ({m})
UPDATE s.parent SET a = a + 100 WHERE a = {m} -- 1062 1451 1452
REPLACE INTO s.lob VALUES ({m}, REPEAT(CHAR({n} % 256), {n} * 90), REPEAT('t{n}', {n}))
UPDATE s.lob SET d = CONCAT(d, REPEAT('z', {n})) WHERE id = {m}
SELECT id, LENGTH(d), MD5(t) FROM s.lob WHERE id = {m}
DELETE FROM s.lob WHERE id = {m}
INSERT INTO s.gen (b) VALUES ({n}) -- 4025
UPDATE s.gen SET b = {n} WHERE v = {m} * 2 -- 4025
DELETE FROM s.gen WHERE p = {n}
SELECT COUNT(*), SUM(v - 2 * b), SUM(p - b - 1) FROM s.gen
INSERT INTO s.hist VALUES ({m}, {n}) -- 1062
UPDATE s.hist SET b = {n} WHERE id = {m}
DELETE FROM s.hist WHERE id = {m}
DELETE HISTORY FROM s.hist BEFORE SYSTEM_TIME NOW() - INTERVAL 5 SECOND
SELECT COUNT(*) FROM s.hist FOR SYSTEM_TIME ALL
SELECT COUNT(*) FROM s.hist FOR SYSTEM_TIME AS OF NOW() - INTERVAL 1 SECOND
REPLACE INTO s.kinds (id, d, n, e, j, f, bt, u) VALUES ({m}, '2026-01-01' + INTERVAL {n} DAY, {n} / 7, 'y', '{{"a": {n}}}', {n} / 3, {m}, 'u{n}')
UPDATE s.kinds SET j = JSON_SET(j, '$.b', {n}), u = 'u{m}' WHERE id = {m} -- 1062
SELECT e, COUNT(*), SUM(n), MAX(d), MIN(ts) FROM s.kinds GROUP BY e WITH ROLLUP
"""

READS = """
SELECT COUNT(*), SUM(b) FROM s.t{k}
SELECT * FROM s.t{k} WHERE a = {m} FOR UPDATE
SELECT * FROM s.t{k} WHERE a BETWEEN {m} AND {m} + 3 LOCK IN SHARE MODE
SELECT * FROM s.t{k} WHERE a = {m} FOR UPDATE SKIP LOCKED
SELECT * FROM s.t{k} WHERE a = {m} FOR UPDATE NOWAIT
SELECT * FROM s.t{k} WHERE b = {n} LOCK IN SHARE MODE WAIT 1
SELECT a, b, RANK() OVER (PARTITION BY b ORDER BY a) FROM s.t{k} LIMIT 20
SELECT x.a FROM s.t{k} x LEFT JOIN s.t{j} y ON x.b = y.b WHERE y.a IS NULL LIMIT 5
SELECT a FROM s.t{k} UNION SELECT a FROM s.t{j} EXCEPT SELECT {m} ORDER BY a DESC LIMIT 5
WITH RECURSIVE w AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM w WHERE i < {m}) SELECT COUNT(*) FROM w JOIN s.t{k} ON a = i
EXPLAIN SELECT * FROM s.t{k} x JOIN s.t{j} y USING (a) WHERE x.b < {n}
EXPLAIN EXTENDED UPDATE s.t{k} SET b = 1 WHERE b = {m}
EXPLAIN FORMAT=JSON SELECT COUNT(*) FROM s.t{k} GROUP BY b
ANALYZE SELECT COUNT(*) FROM s.t{k} WHERE b > {n}
ANALYZE UPDATE s.t{k} SET b = b + 1 WHERE a = {m}
ANALYZE FORMAT=JSON DELETE FROM s.t{k} WHERE a = {m}
SELECT * FROM s.t{k} PROCEDURE ANALYSE(10)
DO SLEEP(0.2)
SELECT SLEEP(0.1), COUNT(*) FROM s.t{k} LIMIT 1
SET STATEMENT max_statement_time = 1 FOR SELECT COUNT(*) FROM s.t{k} x, s.t{j} y, s.t{k} z -- 1969
SET STATEMENT lock_wait_timeout = 1 FOR SELECT COUNT(*) FROM s.n{k} -- 1146
HANDLER s.t{k} OPEN ;; HANDLER t{k} READ FIRST ;; HANDLER t{k} READ `PRIMARY` = ({m}) ;; HANDLER t{k} CLOSE -- 1066 1109
HANDLER s.t{k} OPEN -- 1066
SELECT GET_LOCK('l{k}', 0) ;; SELECT RELEASE_LOCK('l{k}')
"""

TABLES_THAT_COME_AND_GO = """
CREATE TABLE IF NOT EXISTS s.n{k} (a INT AUTO_INCREMENT PRIMARY KEY, b INT, c VARCHAR(100), KEY (b)) ENGINE=STRATA
CREATE TABLE s.n{k} (a INT AUTO_INCREMENT PRIMARY KEY, b INT UNIQUE, c TEXT, d{j} INT DEFAULT {n}) ENGINE=STRATA -- 1050
CREATE TABLE s.n{k} LIKE s.t{j} -- 1050
CREATE TABLE s.n{k} ENGINE=STRATA AS SELECT * FROM s.t{j} LIMIT 5 -- 1050
CREATE OR REPLACE TABLE s.n{k} ENGINE=STRATA AS SELECT * FROM s.t{j} LIMIT 5
CREATE OR REPLACE TABLE s.n{k} (a INT PRIMARY KEY, b INT, c VARCHAR(100), FOREIGN KEY (b) REFERENCES s.parent (a)) ENGINE=STRATA
DROP TABLE IF EXISTS s.n{k}
DROP TABLE s.n{k} -- 1051
DROP TABLE IF EXISTS s.n0, s.n1, s.n2
INSERT INTO s.n{k} (b) VALUES ({m}) -- 1146 1054 1062 1364 1452 4025
INSERT INTO s.n{k} (a, b) VALUES ({m}, {n}) ON DUPLICATE KEY UPDATE b = {m} -- 1146 1054 1062 1452 4025
SELECT COUNT(*) FROM s.n{k} -- 1146
DELETE FROM s.n{k} ORDER BY a LIMIT 1 -- 1146
TRUNCATE TABLE s.n{k} -- 1146 4137
RENAME TABLE s.n{k} TO s.n{j} -- 1050 1146
RENAME TABLE IF EXISTS s.n{k} TO s.n{j} -- 1050
RENAME TABLE s.t{k} TO s.tmp{q}, s.tmp{q} TO s.t{k}
RENAME TABLE s.n{k} TO s{j}x.n{k} -- 1050 1049 1146 1025
RENAME TABLE s{j}x.n{k} TO s.n{k} -- 1050 1049 1146 1025
ALTER TABLE s.n{k} ADD COLUMN d{j} INT -- 1146 1060 4119
ALTER TABLE s.n{k} ADD COLUMN IF NOT EXISTS d{j} INT NOT NULL DEFAULT {m} FIRST, ADD INDEX x{j} (b), COMMENT = '{n}' -- 1146 1061 1072 4119
ALTER TABLE s.n{k} DROP COLUMN d{j} -- 1146 1091 4119
ALTER TABLE s.n{k} RENAME COLUMN b TO bb, RENAME COLUMN c TO b, RENAME COLUMN bb TO c -- 1146 1054 1060 4119
ALTER TABLE s.n{k} RENAME COLUMN d{k} TO d{j} -- 1146 1054 1060 4119
ALTER TABLE s.n{k} CHANGE COLUMN c c VARCHAR(120) NULL, MODIFY b BIGINT -- 1146 1054 1833 1832 4119
ALTER TABLE s.n{k} AUTO_INCREMENT = {n} -- 1146
ALTER TABLE s.n{k} ADD FOREIGN KEY fk{j} (b) REFERENCES s.parent (a) -- 1146 1452 1005 1072 1061 1826 4119 1478
ALTER TABLE s.n{k} ADD CONSTRAINT c{j} CHECK (b <> {n}) -- 1146 4025 1826 1054 4119
ALTER TABLE s.n{k} DROP CONSTRAINT c{j} -- 1146 1091 4119
ALTER TABLE s.n{k} DROP FOREIGN KEY fk{j} -- 1146 1091 4119
ALTER TABLE s.n{k} ADD COLUMN v INT AS (b + 1) VIRTUAL, ADD KEY (v) -- 1146 1060 1054 4119
ALTER TABLE s.n{k} DROP PRIMARY KEY, ADD PRIMARY KEY (a, b) -- 1146 1091 1075 1072 1048 1265 1171 1833 4119
ALTER TABLE s.n{k} ADD SYSTEM VERSIONING -- 1146 4130 1215 1478 4119 4135
ALTER TABLE s.n{k} DROP SYSTEM VERSIONING -- 1146 4124 4119
ALTER TABLE s.n{k} RENAME TO s.n{j} -- 1146 1050
ALTER TABLE s.n{k} ADD COLUMN z INT, LOCK=NONE -- 1146 1060 1845 1846 4119
ALTER TABLE s.n{k} ENGINE=STRATA, ALGORITHM=COPY -- 1146 4119
ALTER TABLE s.n{k} CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin -- 1146 4119
ALTER TABLE s.n{k} ORDER BY b -- 1146 1054 4119
SHOW CREATE TABLE s.n{k} -- 1146
DESCRIBE s.n{k} -- 1146
LOCK TABLES s.n{k} WRITE ;; INSERT INTO s.n{k} (b) VALUES ({m}) ;; UNLOCK TABLES -- 1146 1054 1062 1364 1452 4025
LOCK TABLES s.n{k} WRITE ;; ALTER TABLE s.n{k} ADD COLUMN l{j} INT ;; TRUNCATE TABLE s.n{k} ;; UNLOCK TABLES -- 1146 1060 4119 4137
LOCK TABLES s.n{k} WRITE ;; DROP TABLE s.n{k} ;; UNLOCK TABLES -- 1146
CREATE TABLE s.once{q} (a INT PRIMARY KEY, b BLOB) ENGINE=STRATA ;; INSERT INTO s.once{q} VALUES (1, REPEAT('b', {n})) ;; ALTER TABLE s.once{q} ADD c INT ;; DROP TABLE s.once{q}
"""

TABLES_THAT_STAY = """
ALTER TABLE s.t{k} ADD INDEX i{j} (b) -- 1061
ALTER TABLE s.t{k} ADD INDEX i{j} (b, c(5)), ALGORITHM=INPLACE -- 1061
ALTER TABLE s.t{k} ADD UNIQUE INDEX w{j} (a, b), ALGORITHM=COPY -- 1061
ALTER TABLE s.t{k} DROP INDEX i{j} -- 1091
ALTER TABLE s.t{k} DROP INDEX IF EXISTS i{j}, DROP INDEX IF EXISTS w{k}, ADD INDEX IF NOT EXISTS i{k} (c(3))
ALTER TABLE s.t{k} RENAME INDEX i{k} TO i{j} -- 1061 1176
ALTER TABLE s.t{k} ALTER INDEX i{j} IGNORED -- 1176
ALTER TABLE s.t{k} ALTER COLUMN b SET DEFAULT {n}, ALGORITHM=INSTANT
ALTER TABLE s.t{k} ADD COLUMN IF NOT EXISTS d INT DEFAULT {n}
ALTER TABLE s.t{k} DROP COLUMN IF EXISTS d
ALTER TABLE s.t{k} MODIFY c VARCHAR(10{j})
ALTER TABLE s.t{k} COMMENT = '{n}'
ALTER TABLE s.t{k} ENGINE=STRATA
ALTER TABLE s.t{k} AUTO_INCREMENT = {n}
ALTER TABLE s.t{k} WAIT 1 ADD INDEX IF NOT EXISTS i{j} (c)
ALTER TABLE s.t{k} NOWAIT COMMENT = '{m}'
ALTER TABLE s.t{k} FORCE, LOCK=SHARED
ALTER TABLE s.t{k} DISABLE KEYS
CREATE INDEX IF NOT EXISTS i{j} ON s.t{k} (c(10))
DROP INDEX IF EXISTS i{j} ON s.t{k}
ALTER TABLE s.child ADD CONSTRAINT more{k} FOREIGN KEY (t) REFERENCES s.parent (a) ON DELETE CASCADE ON UPDATE CASCADE -- 1826 1005 1061
ALTER TABLE s.child DROP FOREIGN KEY more{k} -- 1091
ALTER TABLE s.gen ADD COLUMN IF NOT EXISTS w INT AS (b * 3) VIRTUAL
ALTER TABLE s.gen DROP COLUMN IF EXISTS w
ALTER TABLE s.lob COMMENT = '{n}'
ANALYZE TABLE s.t{k}, s.t{j} -- 1066
OPTIMIZE TABLE s.t{k}
REPAIR TABLE s.t{k}
CHECK TABLE s.t{k}
CHECK TABLE s.t{k}, s.t{j} EXTENDED -- 1066
CHECKSUM TABLE s.t{k}
SHOW CREATE TABLE s.t{k}
SHOW INDEX FROM s.t{k}
SHOW FULL COLUMNS FROM s.t{k}
ALTER TABLE bank.ledger ADD INDEX IF NOT EXISTS by_client (client)
ALTER TABLE bank.ledger DROP INDEX IF EXISTS by_client
ALTER TABLE bank.account COMMENT = '{n}'
ALTER TABLE bank.account ADD INDEX IF NOT EXISTS by_amount (amount), ALGORITHM=INPLACE
ALTER TABLE bank.account DROP INDEX IF EXISTS by_amount
OPTIMIZE TABLE bank.account
RENAME TABLE bank.account TO bank.aside{q}, bank.aside{q} TO bank.account
ANALYZE TABLE bank.ledger
"""

DATABASES = """
CREATE DATABASE IF NOT EXISTS s{k}x
CREATE DATABASE s{k}x CHARACTER SET latin1 -- 1007
CREATE OR REPLACE DATABASE s{k}x -- 1008 1007
CREATE DATABASE IF NOT EXISTS s{k}x ;; CREATE TABLE IF NOT EXISTS s{k}x.t (a INT PRIMARY KEY, b INT) ENGINE=STRATA ;; REPLACE INTO s{k}x.t VALUES ({m}, {n}) ;; CREATE OR REPLACE VIEW s{k}x.v AS SELECT a FROM s{k}x.t -- 1049 1146 1008 1005 1050
CREATE OR REPLACE PROCEDURE s{k}x.p() SELECT {n} -- 1049
CREATE OR REPLACE TRIGGER s{k}x.g BEFORE INSERT ON s{k}x.t FOR EACH ROW SET NEW.b = {n} -- 1049 1146
CREATE SEQUENCE IF NOT EXISTS s{k}x.q -- 1049
CREATE OR REPLACE EVENT s{k}x.e ON SCHEDULE EVERY 1 HOUR DO SELECT 1 -- 1049
INSERT IGNORE INTO s{k}x.t VALUES ({m}, {n}) -- 1146 1049
SELECT COUNT(*) FROM s{k}x.v -- 1146 1049 1356
SELECT COUNT(*) FROM s{k}x.t x JOIN s.t{k} y USING (a) -- 1146 1049
CALL s{k}x.p() -- 1305 1049
USE s{k}x -- 1049
USE s
DROP DATABASE IF EXISTS s{k}x
DROP DATABASE s{k}x -- 1008
ALTER DATABASE s COMMENT '{n}'
ALTER DATABASE s{k}x CHARACTER SET utf8mb4 -- 1 1049
SHOW CREATE DATABASE s{k}x -- 1049
SHOW TABLES FROM s{k}x -- 1049
SHOW DATABASES
"""

# 1032 of what a killed server has left of CREATE SEQUENCE (docs/manual/limits.md).
SEQUENCES = """
CREATE SEQUENCE IF NOT EXISTS s.q{k}
CREATE OR REPLACE SEQUENCE s.q{k} START WITH {m} INCREMENT BY {m} CACHE {m}
SELECT NEXT VALUE FOR s.q{k} -- 4091 1146 4084 1032
SELECT LASTVAL(s.q{k}) -- 4091 1146 1032
SELECT SETVAL(s.q{k}, {n}) -- 4091 1146 1032
INSERT INTO s.log (t, a) SELECT {k}, NEXT VALUE FOR s.q{k} -- 4091 1146 4084 1032
ALTER SEQUENCE s.q{k} RESTART {n} -- 4091 1146 1032 4085
ALTER SEQUENCE IF EXISTS s.q{k} INCREMENT BY {m} CYCLE -- 1032
RENAME TABLE s.q{k} TO s.q{j} -- 1050 1146
DROP SEQUENCE IF EXISTS s.q{k}
SHOW CREATE SEQUENCE s.q{k} -- 4091 1146 4089 1032
SELECT * FROM s.q{k} -- 1146
"""

TRANSACTIONS = """
BEGIN
COMMIT
ROLLBACK
COMMIT AND CHAIN
START TRANSACTION READ ONLY ;; SELECT COUNT(*) FROM s.t{k} ;; COMMIT
START TRANSACTION READ ONLY ;; UPDATE s.t{k} SET b = 0 WHERE a = {m} -- 1792
START TRANSACTION WITH CONSISTENT SNAPSHOT ;; SELECT COUNT(*) FROM s.t{k} ;; SELECT COUNT(*) FROM s.t{j} ;; COMMIT
SAVEPOINT a
ROLLBACK TO SAVEPOINT a -- 1305
RELEASE SAVEPOINT a -- 1305
BEGIN ;; INSERT INTO s.t{k} (b) SELECT b FROM s.t{j} WHERE a < {m} LIMIT 3 ;; SAVEPOINT x ;; UPDATE s.t{j} SET b = {n} WHERE a = {m} ;; ROLLBACK TO SAVEPOINT x ;; COMMIT -- 1062
BEGIN ;; UPDATE s.t{k} SET b = b + 1 WHERE a = {m} ;; UPDATE s.t{j} SET b = b - 1 WHERE a = {m} ;; ROLLBACK
BEGIN ;; SELECT * FROM s.t{k} WHERE a = {m} FOR UPDATE ;; DO SLEEP(0.1) ;; UPDATE s.t{k} SET b = {n} WHERE a = {m} ;; COMMIT
BEGIN ;; INSERT INTO s.log (t, a) VALUES (1, {n}) ;; CREATE TABLE IF NOT EXISTS s.n{k} (a INT PRIMARY KEY, b INT, c VARCHAR(100)) ENGINE=STRATA ;; INSERT INTO s.log (t, a) VALUES (2, {n}) ;; ROLLBACK
BEGIN NOT ATOMIC DECLARE i INT DEFAULT 0; WHILE i < 4 DO INSERT INTO s.t{k} (b) VALUES (i); SET i = i + 1; END WHILE; END -- 1062
XA START 'x{m}' -- 1440 1400
XA END 'x{m}' -- 1397 1402 1613 1614
XA ROLLBACK 'x{m}' -- 1397 1400 1402 1613 1614
XA START 'x{m}' ;; UPDATE s.t{k} SET b = {n} WHERE a = {m} ;; XA END 'x{m}' ;; XA COMMIT 'x{m}' ONE PHASE -- 1440 1400 1397 1402 1613 1614
XA START 'y{q}' ;; INSERT INTO s.t{k} (b) VALUES ({n}) ;; XA END 'y{q}' ;; XA PREPARE 'y{q}' ;; XA COMMIT 'y{q}' -- 1400 1402 1613 1614 1062
XA START 'y{q}' ;; DELETE FROM s.t{k} WHERE a = {m} ;; XA END 'y{q}' ;; XA PREPARE 'y{q}' ;; XA ROLLBACK 'y{q}' -- 1400 1402 1613 1614
XA RECOVER FORMAT='SQL'
SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE
SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED
SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED
SET TRANSACTION ISOLATION LEVEL SERIALIZABLE ;; BEGIN ;; SELECT SUM(b) FROM s.t{k} ;; INSERT INTO s.t{j} (b) VALUES ({n}) ;; COMMIT -- 1568 1062
SET autocommit = 0 ;; UPDATE s.t{k} SET b = {n} WHERE a = {m} ;; COMMIT ;; SET autocommit = 1
SET SESSION strata_snapshot_isolation = ON ;; BEGIN ;; SELECT b FROM s.t{k} WHERE a = {m} ;; UPDATE s.t{k} SET b = {n} WHERE a = {m} ;; COMMIT ;; SET SESSION strata_snapshot_isolation = DEFAULT -- 1020
"""

LOCKS = """
LOCK TABLES s.t{k} WRITE, s.t{j} READ -- 1066
LOCK TABLES s.t{k} READ LOCAL, s.log WRITE ;; SELECT COUNT(*) FROM s.t{k} ;; INSERT INTO s.log (t, a) VALUES (9, {n}) ;; UNLOCK TABLES
LOCK TABLES s.v{k} READ ;; UNLOCK TABLES -- 1146 1356
LOCK TABLES s.t{k} WRITE WAIT 1 ;; UPDATE s.t{k} SET b = b + 1 WHERE a = {m} ;; UNLOCK TABLES
LOCK TABLES s.t{k} WRITE NOWAIT ;; UNLOCK TABLES
UNLOCK TABLES
FLUSH TABLES s.t{k} WITH READ LOCK
FLUSH TABLES s.t{k} FOR EXPORT ;; UNLOCK TABLES -- 1031
FLUSH TABLES WITH READ LOCK
FLUSH TABLES WITH READ LOCK ;; SELECT SUM(amount) FROM bank.account ;; UNLOCK TABLES
BACKUP STAGE START ;; BACKUP STAGE FLUSH ;; BACKUP STAGE BLOCK_DDL ;; BACKUP STAGE BLOCK_COMMIT ;; BACKUP STAGE END
BACKUP LOCK s.t{k} ;; BACKUP UNLOCK
FLUSH TABLES
FLUSH TABLES s.t{k}, s.t{j} -- 1066
FLUSH TABLE s.t{k}
"""

ADMINISTRATION = """
FLUSH LOGS
FLUSH STATUS
FLUSH BINARY LOGS
FLUSH QUERY CACHE
FLUSH USER_RESOURCES
FLUSH HOSTS
FLUSH ERROR LOGS
SET GLOBAL max_connections = 2{m}
SET GLOBAL sort_buffer_size = 1000{n}
SET GLOBAL table_open_cache = 4{m}
SET GLOBAL table_definition_cache = 4{m}
SET GLOBAL event_scheduler = OFF
SET GLOBAL event_scheduler = ON
SET GLOBAL read_only = 1 ;; SET GLOBAL read_only = 0
SET GLOBAL query_cache_size = 1048576
SET SESSION sort_buffer_size = 200000
SET SESSION foreign_key_checks = 1
SET SESSION sql_mode = 'ORACLE' ;; SET SESSION sql_mode = DEFAULT
SET NAMES latin1 ;; SET NAMES utf8mb4
SHOW PROCESSLIST
SHOW ENGINE STRATA STATUS
SHOW ENGINES
SHOW PLUGINS
SHOW OPEN TABLES FROM s
SHOW GLOBAL STATUS LIKE 'strata%'
SHOW VARIABLES LIKE 'strata%'
SHOW TABLE STATUS FROM s
SHOW FULL TABLES FROM s
SHOW WARNINGS
SHOW MASTER STATUS
SELECT * FROM information_schema.tables WHERE table_schema = 's'
SELECT * FROM information_schema.columns WHERE table_schema = 's'
SELECT * FROM information_schema.statistics WHERE table_schema = 's'
SELECT * FROM information_schema.key_column_usage WHERE table_schema = 's'
SELECT * FROM information_schema.referential_constraints
SELECT * FROM information_schema.check_constraints
SELECT COUNT(*) FROM information_schema.partitions WHERE table_schema = 's'
SELECT * FROM information_schema.strata_lock_waits
SELECT * FROM information_schema.strata_trx
SELECT * FROM information_schema.processlist
SELECT * FROM information_schema.metadata_lock_info -- 1109
"""

PREPARED = """
PREPARE p FROM 'SELECT COUNT(*) FROM s.t{k} WHERE a < ?' ;; SET @x = {n} ;; EXECUTE p USING @x ;; EXECUTE p USING @x ;; DEALLOCATE PREPARE p
PREPARE p FROM 'INSERT INTO s.t{k} (b, c) VALUES (?, ?)' ;; EXECUTE p USING {n}, 'p' ;; EXECUTE p USING {m}, NULL -- 1062
PREPARE lasting FROM 'UPDATE s.t{k} SET b = b + ? WHERE a = {m}'
EXECUTE lasting USING {n} -- 1243
EXECUTE IMMEDIATE 'UPDATE s.t{k} SET b = ? WHERE a = ?' USING {n}, {m}
PREPARE p FROM 'SELECT * FROM s.n{k}' ;; EXECUTE p ;; DO SLEEP(0.1) ;; EXECUTE p -- 1146 1615
PREPARE p FROM 'CREATE TABLE IF NOT EXISTS s.n{k} (a INT PRIMARY KEY, b INT, c VARCHAR(100)) ENGINE=STRATA' ;; EXECUTE p ;; EXECUTE p
PREPARE p FROM 'CALL s.p{k}()' ;; EXECUTE p -- 1305
"""

TEMPORARY_TABLES = """
CREATE TEMPORARY TABLE IF NOT EXISTS s.own{k} (a INT PRIMARY KEY, b INT) ENGINE=STRATA
CREATE OR REPLACE TEMPORARY TABLE s.own{k} ENGINE=STRATA AS SELECT a, b FROM s.t{j} LIMIT 10
REPLACE INTO s.own{k} VALUES ({m}, {n}) -- 1146
SELECT COUNT(*) FROM s.own{k} JOIN s.t{j} USING (a) -- 1146
ALTER TABLE s.own{k} ADD COLUMN IF NOT EXISTS c INT -- 1146
UPDATE s.t{k} SET b = (SELECT MAX(b) FROM s.own{j}) WHERE a = {m} -- 1146
DROP TEMPORARY TABLE IF EXISTS s.own{k}
BEGIN ;; CREATE TEMPORARY TABLE s.own{q} (a INT) ENGINE=STRATA ;; INSERT INTO s.own{q} SELECT a FROM s.t{k} LIMIT 5 ;; INSERT INTO s.t{k} (b) SELECT a FROM s.own{q} ;; ROLLBACK ;; DROP TEMPORARY TABLE s.own{q} -- 1062
"""

GROUPS: Mapping[str, str] = {
    "accounts": ACCOUNTS,
    "routines": ROUTINES,
    "views": VIEWS,
    "changes of rows": ROW_CHANGES,
    "reads": READS,
    "tables that come and go": TABLES_THAT_COME_AND_GO,
    "tables that stay": TABLES_THAT_STAY,
    "databases": DATABASES,
    "sequences": SEQUENCES,
    "transactions": TRANSACTIONS,
    "locks": LOCKS,
    "administration": ADMINISTRATION,
    "prepared statements": PREPARED,
    "temporary tables": TEMPORARY_TABLES,
}
# How often one of a group is drawn, where it is not once for each of its kinds. Who locks everything keeps all others from working.
SHARES: Mapping[str, float] = {"changes of rows": 2.0, "locks": 0.6, "administration": 0.6}


@dataclass(frozen=True)
class Kind:
    group: str
    text: str
    errors: frozenset[int]

    def statements(self, rng: random.Random, unique: int, file: str) -> list[str]:
        """One of the kind, with names and numbers drawn."""
        k, j = rng.randrange(TABLES), rng.randrange(TABLES)
        values = {"k": k, "j": j, "m": rng.randrange(1, ROWS), "n": rng.randrange(1000), "q": unique, "file": file}
        return self.text.format(**values).split(BETWEEN)


def _parsed(group: str, line: str) -> Kind:
    match = ERRORS.match(line)
    assert match is not None
    return Kind(group, match["text"], ANY | {int(code) for code in (match["codes"] or "").split()})


KINDS = [_parsed(group, line) for group, text in GROUPS.items() for line in text.strip().splitlines()]
WEIGHTS = [SHARES.get(kind.group, 1.0) for kind in KINDS]


def draw(rng: random.Random) -> Kind:
    return rng.choices(KINDS, WEIGHTS)[0]
