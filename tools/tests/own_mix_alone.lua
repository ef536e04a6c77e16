-- Runs a script of bench/sysbench without a server: every statement is printed, and answered by what it seems to ask for.
local out = {}
local function rows(n, first) return {nrows = n, nfields = 1, fetch_row = function() return {first} end, free = function() end} end
local connection = {
   disconnect = function() end,
   query = function(_, text)
      out[#out + 1] = text .. "\n"
      if text:match("^SELECT i_id") then
         local ids, at = {}, 0
         for id in text:match("IN %((.*)%)"):gmatch("%d+") do if id ~= "0" then ids[#ids + 1] = id end end
         return {nrows = #ids, nfields = 2, fetch_row = function() at = at + 1 return {ids[at], "2.50"} end, free = function() end}
      end
      return text:match("^SELECT") and rows(3, "7") or nil
   end,
}
function connection.query_row(_, text)
   out[#out + 1] = text .. "\n"
   return text:match("@@strata_node_name") and "compute-2" or text:match("ROW_COUNT") and "1" or "7"
end
sysbench.sql = {driver = function() return {connect = function() return connection end} end}
require(os.getenv("SCRIPT"))
local done = thread_done
function thread_done() io.write(table.concat(out)) done() end
