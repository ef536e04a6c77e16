-- The load that STRATA_MIX names (a script on sysbench's own tables) over groups of tables: each server has one that only it uses,
-- and there is one that all of them use. A thread's own group is that of the server it is connected to, by the number that ends
-- the server's name. Each time that the mix chooses a table, it is one of the shared group with --shared percent.
--
-- --tables counts what a thread sees: the tables of its own group, and as many shared ones. Group g of T tables has sbtest
-- (g - 1) * T + 1 and those behind it; the shared group has the number --shared_group.

require(os.getenv("STRATA_MIX"))

sysbench.cmdline.options.shared = {"Percent of choices that are of the shared group", 0}
sysbench.cmdline.options.shared_group = {"Its number", 2}
sysbench.cmdline.options.name_variable = {"Of a server, with its name, which ends with its number", "strata_node_name"}

local uniform = sysbench.rand.uniform
local connection, own_group

-- Only tables are chosen by it; rows are as --rand-type says.
function sysbench.rand.uniform(_, tables)
   local half = tables / 2
   local of_shared = uniform(1, 100) <= sysbench.opt.shared
   return uniform(1, half) + (of_shared and half or 0)
end

local function renamed(text)
   return (text:gsub("sbtest(%d+)", function(seen)
      local number, half = tonumber(seen), sysbench.opt.tables / 2
      local group = number <= half and own_group or sysbench.opt.shared_group
      return string.format("sbtest%d", (group - 1) * half + (number - 1) % half + 1)
   end))
end

-- The tables' names are within statements: they change on their way to the server.
local function connect()
   connection = sysbench.sql.driver():connect()
   own_group = tonumber(connection:query_row("SELECT @@" .. sysbench.opt.name_variable):match("%d+$"))
   con = {
      prepare = function(_, text) return connection:prepare(renamed(text)) end,
      query = function(_, text) return connection:query(renamed(text)) end,
      disconnect = function() return connection:disconnect() end,
   }
end

function thread_init()
   connect()
   stmt, param = {}, {}
   for number = 1, sysbench.opt.tables do
      stmt[number], param[number] = {}, {}
   end
   prepare_statements()
end
