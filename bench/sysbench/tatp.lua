-- TATP, the Telecom Application Transaction Processing benchmark: its seven transactions in its mix, on subscribers of which each
-- server has --subscribers as its own: 1 to that many the first one, those behind them the second. With --shared percent a
-- transaction is of a subscriber of any of --servers. The tables are made by tools/strata_cli/bench/tatp.py.

local bit = require("bit")
local mix = require("own_mix")

sysbench.cmdline.options = {
   subscribers = {"Of each server", 100000},
   servers = {"That have subscribers", 1},
   shared = {"Percent of transactions that are of anybody's subscriber", 0},
}

local uniform = sysbench.rand.uniform
local HOURS = {0, 8, 16} -- when a forwarding may begin

-- Not evenly, as TATP chooses subscribers: whose numbers have many bits set come more often.
local function not_evenly(count)
   local a = count <= 1000000 and 65535 or count <= 10000000 and 1048575 or 2097151
   return bit.bor(uniform(0, a), uniform(1, count)) % count + 1
end

local function subscriber()
   local group = own_group
   if uniform(1, 100) <= sysbench.opt.shared then
      group = uniform(1, sysbench.opt.servers)
   end
   return (group - 1) * sysbench.opt.subscribers + not_evenly(sysbench.opt.subscribers)
end

local function number_of(s_id)
   return string.format("%015d", s_id)
end

local function drawn()
   return {
      s_id = subscriber(),
      kind = uniform(1, 4),
      begins = HOURS[uniform(1, 3)],
      hours = uniform(1, 8),
      hour = uniform(1, 24),
      flag = uniform(0, 1),
      byte = uniform(0, 255),
      location = uniform(0, 2147483647),
      target = mix.digits(15),
   }
end

local function id_by_number(of)
   return tonumber((mix.row(string.format("SELECT s_id FROM subscriber WHERE sub_nbr = '%s'", number_of(of.s_id)))))
end

local function get_subscriber_data(of)
   mix.row(string.format("SELECT * FROM subscriber WHERE s_id = %d", of.s_id))
end

local function get_new_destination(of)
   mix.rows(string.format(
      "SELECT cf.numberx FROM special_facility sf, call_forwarding cf WHERE sf.s_id = %d AND sf.sf_type = %d AND sf.is_active = 1"
         .. " AND cf.s_id = sf.s_id AND cf.sf_type = sf.sf_type AND cf.start_time <= %d AND cf.end_time > %d",
      of.s_id, of.kind, of.begins, of.hour))
end

local function get_access_data(of)
   mix.row(string.format("SELECT data1, data2, data3, data4 FROM access_info WHERE s_id = %d AND ai_type = %d", of.s_id, of.kind))
end

local function update_subscriber_data(of)
   con:query("BEGIN")
   con:query(string.format("UPDATE subscriber SET bit_1 = %d WHERE s_id = %d", of.flag, of.s_id))
   con:query(string.format("UPDATE special_facility SET data_a = %d WHERE s_id = %d AND sf_type = %d", of.byte, of.s_id, of.kind))
   con:query("COMMIT")
end

local function update_location(of)
   con:query(string.format("UPDATE subscriber SET vlr_location = %d WHERE sub_nbr = '%s'", of.location, number_of(of.s_id)))
end

-- Many are not inserted, as TATP has it: there is one already, or the subscriber has no such facility (a foreign key).
local function insert_call_forwarding(of)
   con:query("BEGIN")
   local s_id = id_by_number(of)
   mix.rows(string.format("SELECT sf_type FROM special_facility WHERE s_id = %d", s_id))
   local inserted = mix.changed(string.format("INSERT IGNORE INTO call_forwarding VALUES (%d, %d, %d, %d, '%s')",
      s_id, of.kind, of.begins, of.begins + of.hours, of.target))
   con:query("COMMIT")
   mix.count("inserted", inserted)
end

local function delete_call_forwarding(of)
   con:query("BEGIN")
   local deleted = mix.changed(string.format(
      "DELETE FROM call_forwarding WHERE s_id = %d AND sf_type = %d AND start_time = %d", id_by_number(of), of.kind, of.begins))
   con:query("COMMIT")
   mix.count("deleted", deleted)
end

local function transaction(share, work)
   return {share = share, draw = drawn, work = work}
end

mix.run({
   get_subscriber_data = transaction(35, get_subscriber_data),
   get_new_destination = transaction(10, get_new_destination),
   get_access_data = transaction(35, get_access_data),
   update_subscriber_data = transaction(2, update_subscriber_data),
   update_location = transaction(14, update_location),
   insert_call_forwarding = transaction(2, insert_call_forwarding),
   delete_call_forwarding = transaction(2, delete_call_forwarding),
}, {
   "get_subscriber_data", "get_new_destination", "get_access_data", "update_subscriber_data", "update_location",
   "insert_call_forwarding", "delete_call_forwarding",
})
