-- What our own benchmarks for several servers (tatp.lua, tpcc.lua) have in common: a transaction is drawn first, and begun anew with
-- what was drawn when a server has refused it, so that refusals change no mix; each thread counts what it committed, and says it at
-- its end as `tally NAME NUMBER`, whose sums over all threads and runs must fit what the tables hold.
--
-- A script gives own_mix.run a table: by a transaction's name, `share` (of 100, or of as many as all shares are), `draw` (returns what
-- is drawn) and `work` (takes it, and does it). `own_group` is the number that ends the name of the server a thread is connected to.

local M = {}
local tally, current = {}, nil
local uniform = sysbench.rand.uniform

function M.count(name, number)
   tally[name] = (tally[name] or 0) + number
end

-- A row of a statement that finds one. There is none: nothing.
function M.row(text)
   return con:query_row(text)
end

function M.rows(text)
   local result, found = con:query(text), {}
   for number = 1, result.nrows do
      local row = result:fetch_row()
      found[number] = {}
      for column = 1, result.nfields do
         found[number][column] = row[column]
      end
   end
   result:free()
   return found
end

-- How many rows a statement changed.
function M.changed(text)
   con:query(text)
   return tonumber((con:query_row("SELECT ROW_COUNT()")))
end

function M.digits(length)
   return sysbench.rand.string(string.rep("#", length))
end

local function chosen(transactions, order)
   local all = 0
   for _, name in ipairs(order) do
      all = all + transactions[name].share
   end
   local left = uniform(1, all)
   for _, name in ipairs(order) do
      left = left - transactions[name].share
      if left <= 0 then
         return name
      end
   end
end

-- `order`: of the names, so that the same random numbers choose the same.
function M.run(transactions, order)
   sysbench.hooks.before_restart_event = function()
      con:query("ROLLBACK")
   end

   function thread_init()
      con = sysbench.sql.driver():connect()
      own_group = tonumber((con:query_row("SELECT @@strata_node_name")):match("%d+$"))
   end

   function event()
      if current == nil then
         local name = chosen(transactions, order)
         current = {name = name, drawn = transactions[name].draw()}
      end
      transactions[current.name].work(current.drawn)
      M.count(current.name, 1)
      current = nil
   end

   function thread_done()
      -- In one piece: threads write at the same time, and print() writes a line in two.
      local lines = {}
      for name, number in pairs(tally) do
         lines[#lines + 1] = string.format("tally %s %d\n", name, number)
      end
      io.write(table.concat(lines))
      con:disconnect()
   end
end

return M
