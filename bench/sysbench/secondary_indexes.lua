-- Rows with random keys into one table, `wide` (id, c1 to c8, pad), each a transaction by itself. `./strata experiment` makes the
-- table with none to eight secondary indexes, on c1 and those behind it.

local COLUMNS, MOST = 8, 2147483647

sysbench.cmdline.options = {
   -- Those of sysbench's own scripts, which the same command names.
   tables = {"Not used", 1},
   table_size = {"Not used", 1},
   mysql_storage_engine = {"Not used: the table is there", ""},
}

function thread_init()
   con = sysbench.sql.driver():connect()
end

local function number()
   return sysbench.rand.uniform(1, MOST)
end

function event()
   local values = {}
   for column = 1, COLUMNS do
      values[column] = number()
   end
   -- Two numbers make a key that hardly comes twice; one that does is no failure.
   con:query(string.format("INSERT IGNORE INTO wide VALUES (%d * 1073741824 + %d, %s, '%s')",
      number(), number(), table.concat(values, ", "), sysbench.rand.string("###########-###########-###########")))
end

function thread_done()
   con:disconnect()
end
