-- Three inserts, two updates and five selects in a transaction, on the tables of sysbench's own oltp scripts: the mix that is told
-- of a trading service in production. Rows are chosen as --rand-type says; new ones go to the end of a table.

require("oltp_common")

local SELECTS, INSERTS = 5, 3

sysbench.cmdline.options.point_selects[2] = SELECTS

function prepare_statements()
   prepare_begin()
   prepare_commit()
   prepare_point_selects()
   prepare_index_updates()
   prepare_non_index_updates()
end

local function insert()
   con:query(string.format(
      "INSERT INTO sbtest%d (k, c, pad) VALUES (%d, '%s', '%s')",
      sysbench.rand.uniform(1, sysbench.opt.tables),
      sysbench.rand.default(1, sysbench.opt.table_size),
      get_c_value(), get_pad_value()))
end

function event()
   begin()
   execute_point_selects()
   execute_index_updates()
   execute_non_index_updates()
   for _ = 1, INSERTS do
      insert()
   end
   commit()
end
