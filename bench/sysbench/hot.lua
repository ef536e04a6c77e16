-- Counters that everybody counts up: each transaction adds one to --updates of --hot_rows rows, in the order of their keys, so that
-- transactions wait for each other but never in a circle. The table `hot` (id, n) is there. By conflicts.lua.

sysbench.cmdline.options = {
   hot_rows = {"Rows to choose from", 1000},
   updates = {"Rows that a transaction changes", 4},
   -- Those of sysbench's own scripts, which the same command names.
   tables = {"Not used", 1},
   table_size = {"Not used", 1},
   auto_inc = {"Not used", true},
   mysql_storage_engine = {"Not used", "innodb"},
}

function thread_init()
   con = sysbench.sql.driver():connect()
end

local function keys()
   local chosen, list = {}, {}
   while #list < math.min(sysbench.opt.updates, sysbench.opt.hot_rows) do
      local id = sysbench.rand.uniform(1, sysbench.opt.hot_rows)
      if not chosen[id] then
         chosen[id] = true
         list[#list + 1] = id
      end
   end
   table.sort(list)
   return list
end

function commit()
   con:query("COMMIT")
end

function event()
   con:query("BEGIN")
   for _, id in ipairs(keys()) do
      con:query(string.format("UPDATE hot SET n = n + 1 WHERE id = %d", id))
   end
   commit()
end

function thread_done()
   con:disconnect()
end
