-- TPC-C without think time: its five transactions in its mix, on warehouses of which each server has --warehouses as its own: 1 to
-- that many the first one, those behind them the second. One item of a hundred comes from a warehouse of somebody else, and 15 of a
-- hundred payments are of a customer of another one, of all that the first --servers have. The tables are made by
-- tools/strata_cli/bench/warehouses.py.
--
-- Different from the specification: a client works for all warehouses of its server in turn, not for one.

local bit = require("bit")
local mix = require("own_mix")

sysbench.cmdline.options = {
   warehouses = {"Of each server", 1},
   servers = {"That have warehouses", 1},
   items = {"As many as each warehouse has stocks of", 100000},
   customers = {"Of each district", 3000},
}

local DISTRICTS = 10
-- The constants of the specification's distribution that is not even. That of last names differs from the tables' (0) by 85, which is
-- one of the differences that it allows.
local C_NAME, C_CUSTOMER, C_ITEM = 85, 259, 7911
local SYLLABLES = {"BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"}
local NOT_THERE = 0 -- an item's number

local uniform = sysbench.rand.uniform
local sql = string.format

local function not_evenly(a, c, low, high)
   return (bit.bor(uniform(0, a), uniform(low, high)) + c) % (high - low + 1) + low
end

local function last_name()
   local number = not_evenly(255, C_NAME, 0, math.min(1000, sysbench.opt.customers) - 1)
   local digits = {math.floor(number / 100), math.floor(number / 10) % 10, number % 10}
   return SYLLABLES[digits[1] + 1] .. SYLLABLES[digits[2] + 1] .. SYLLABLES[digits[3] + 1]
end

local function customer_id()
   return not_evenly(1023, C_CUSTOMER, 1, sysbench.opt.customers)
end

local function own_warehouse()
   return (own_group - 1) * sysbench.opt.warehouses + uniform(1, sysbench.opt.warehouses)
end

-- One of the others; of one warehouse it is that one.
local function other_warehouse(warehouse)
   local all = sysbench.opt.servers * sysbench.opt.warehouses
   if all == 1 then
      return warehouse
   end
   local drawn = uniform(1, all - 1)
   return drawn < warehouse and drawn or drawn + 1
end

local function by_name_or_number(of)
   if uniform(1, 100) <= 60 then
      of.last = last_name()
   else
      of.customer = customer_id()
   end
   return of
end

-- --- New-Order -------------------------------------------------------------------------------------------------------

local function draw_new_order()
   local of = {warehouse = own_warehouse(), district = uniform(1, DISTRICTS), customer = customer_id(), lines = {}}
   local seen = {}
   for number = 1, uniform(5, 15) do
      local item
      repeat
         item = not_evenly(8191, C_ITEM, 1, sysbench.opt.items)
      until not seen[item]
      seen[item] = true
      local remote = uniform(1, 100) == 1
      local from = remote and other_warehouse(of.warehouse) or of.warehouse
      of.lines[number] = {item = item, from = from, quantity = uniform(1, 10)}
   end
   if uniform(1, 100) == 1 then
      of.lines[#of.lines].item = NOT_THERE
   end
   return of
end

local function prices(of)
   local numbers, found = {}, {}
   for number, line in ipairs(of.lines) do
      numbers[number] = line.item
   end
   local rows = mix.rows(sql("SELECT i_id, i_price, i_name, i_data FROM item WHERE i_id IN (%s)", table.concat(numbers, ", ")))
   for _, row in ipairs(rows) do
      found[tonumber(row[1])] = tonumber(row[2])
   end
   return found
end

-- In the order of warehouses and items, so that no two wait for each other in a circle.
local function in_order(lines)
   local sorted = {}
   for number, line in ipairs(lines) do
      sorted[number] = line
   end
   table.sort(sorted, function(one, other)
      if one.from ~= other.from then
         return one.from < other.from
      end
      return one.item < other.item
   end)
   return sorted
end

local function take_from_stock(of, line)
   line.info = mix.row(sql("SELECT s_dist_%02d, s_quantity, s_data FROM stock WHERE s_w_id = %d AND s_i_id = %d FOR UPDATE",
      of.district, line.from, line.item))
   con:query(sql("UPDATE stock SET s_quantity = s_quantity - %d + IF(s_quantity >= %d, 0, 91), s_ytd = s_ytd + %d,"
      .. " s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + %d WHERE s_w_id = %d AND s_i_id = %d",
      line.quantity, line.quantity + 10, line.quantity, line.from == of.warehouse and 0 or 1, line.from, line.item))
end

local function enter_order(of, order)
   local all_local = 1
   for _, line in ipairs(of.lines) do
      all_local = line.from == of.warehouse and all_local or 0
   end
   con:query(sql("INSERT INTO orders VALUES (%d, %d, %d, %d, NOW(), NULL, %d, %d)",
      order, of.district, of.warehouse, of.customer, #of.lines, all_local))
   con:query(sql("INSERT INTO new_order VALUES (%d, %d, %d)", order, of.district, of.warehouse))
end

local function enter_lines(of, order, found)
   local values = {}
   for number, line in ipairs(of.lines) do
      values[number] = sql("(%d, %d, %d, %d, %d, %d, NULL, %d, %.2f, '%s')", order, of.district, of.warehouse, number, line.item,
         line.from, line.quantity, line.quantity * found[line.item], line.info)
   end
   con:query("INSERT INTO order_line VALUES " .. table.concat(values, ", "))
end

local function new_order(of)
   con:query("BEGIN")
   mix.row(sql("SELECT c_discount, c_last, c_credit, w_tax FROM customer, warehouse"
      .. " WHERE w_id = %d AND c_w_id = w_id AND c_d_id = %d AND c_id = %d", of.warehouse, of.district, of.customer))
   local order = tonumber((mix.row(sql("SELECT d_next_o_id, d_tax FROM district WHERE d_w_id = %d AND d_id = %d FOR UPDATE",
      of.warehouse, of.district))))
   con:query(sql("UPDATE district SET d_next_o_id = %d WHERE d_w_id = %d AND d_id = %d", order + 1, of.warehouse, of.district))
   enter_order(of, order)
   local found = prices(of)
   if found[of.lines[#of.lines].item] == nil then
      con:query("ROLLBACK")
      mix.count("given_up", 1)
      return
   end
   for _, line in ipairs(in_order(of.lines)) do
      take_from_stock(of, line)
   end
   enter_lines(of, order, found)
   con:query("COMMIT")
   mix.count("ordered", 1)
   mix.count("lines", #of.lines)
   for _, line in ipairs(of.lines) do
      mix.count("quantity", line.quantity)
      mix.count("remote_lines", line.from == of.warehouse and 0 or 1)
   end
end

-- --- Payment ---------------------------------------------------------------------------------------------------------

local function draw_payment()
   local of = {warehouse = own_warehouse(), district = uniform(1, DISTRICTS), cents = uniform(100, 500000)}
   of.of_warehouse, of.of_district = of.warehouse, of.district
   if uniform(1, 100) <= 15 then
      of.of_warehouse, of.of_district = other_warehouse(of.warehouse), uniform(1, DISTRICTS)
   end
   return by_name_or_number(of)
end

-- The middle one of those with the name, by their first names.
local function found_customer(warehouse, district, of)
   if of.customer then
      return of.customer
   end
   local rows = mix.rows(sql("SELECT c_id FROM customer WHERE c_w_id = %d AND c_d_id = %d AND c_last = '%s' ORDER BY c_first",
      warehouse, district, of.last))
   return tonumber(rows[math.ceil(#rows / 2)][1])
end

local function payment(of)
   local amount = of.cents / 100
   con:query("BEGIN")
   con:query(sql("UPDATE warehouse SET w_ytd = w_ytd + %.2f WHERE w_id = %d", amount, of.warehouse))
   mix.row(sql("SELECT w_name, w_street_1, w_street_2, w_city, w_state, w_zip FROM warehouse WHERE w_id = %d", of.warehouse))
   con:query(sql("UPDATE district SET d_ytd = d_ytd + %.2f WHERE d_w_id = %d AND d_id = %d", amount, of.warehouse, of.district))
   mix.row(sql("SELECT d_name, d_street_1, d_street_2, d_city, d_state, d_zip FROM district WHERE d_w_id = %d AND d_id = %d",
      of.warehouse, of.district))
   local customer = found_customer(of.of_warehouse, of.of_district, of)
   local key = sql("c_w_id = %d AND c_d_id = %d AND c_id = %d", of.of_warehouse, of.of_district, customer)
   mix.row("SELECT c_first, c_middle, c_last, c_street_1, c_city, c_state, c_zip, c_phone, c_credit, c_credit_lim, c_discount,"
      .. " c_balance, c_since FROM customer WHERE " .. key .. " FOR UPDATE")
   local note = sql("%d %d %d %d %d %.2f ", customer, of.of_district, of.of_warehouse, of.district, of.warehouse, amount)
   con:query(sql("UPDATE customer SET c_balance = c_balance - %.2f, c_ytd_payment = c_ytd_payment + %.2f,"
      .. " c_payment_cnt = c_payment_cnt + 1, c_data = IF(c_credit = 'BC', LEFT(CONCAT('%s', c_data), 500), c_data) WHERE %s",
      amount, amount, note, key))
   con:query(sql("INSERT INTO history VALUES (%d, %d, %d, %d, %d, NOW(), %.2f, 'paid')",
      customer, of.of_district, of.of_warehouse, of.district, of.warehouse, amount))
   con:query("COMMIT")
   mix.count("paid", 1)
   mix.count("cents", of.cents)
   mix.count("remote_payments", of.warehouse == of.of_warehouse and 0 or 1)
end

-- --- Order-Status, Delivery, Stock-Level -----------------------------------------------------------------------------

local function draw_order_status()
   return by_name_or_number({warehouse = own_warehouse(), district = uniform(1, DISTRICTS)})
end

local function order_status(of)
   con:query("BEGIN")
   local customer = found_customer(of.warehouse, of.district, of)
   mix.row(sql("SELECT c_balance, c_first, c_middle, c_last FROM customer WHERE c_w_id = %d AND c_d_id = %d AND c_id = %d",
      of.warehouse, of.district, customer))
   local order = mix.row(sql("SELECT o_id, o_carrier_id, o_entry_d FROM orders"
      .. " WHERE o_w_id = %d AND o_d_id = %d AND o_c_id = %d ORDER BY o_id DESC LIMIT 1", of.warehouse, of.district, customer))
   if order then
      mix.rows(sql("SELECT ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_delivery_d FROM order_line"
         .. " WHERE ol_w_id = %d AND ol_d_id = %d AND ol_o_id = %s", of.warehouse, of.district, order))
   end
   con:query("COMMIT")
end

local function draw_delivery()
   return {warehouse = own_warehouse(), carrier = uniform(1, 10)}
end

-- Returns whether there was an order.
local function deliver(of, district)
   local oldest = mix.row(sql("SELECT no_o_id FROM new_order WHERE no_w_id = %d AND no_d_id = %d ORDER BY no_o_id LIMIT 1 FOR UPDATE",
      of.warehouse, district))
   if not oldest then
      return false
   end
   local order = sql("o_w_id = %d AND o_d_id = %d AND o_id = %s", of.warehouse, district, oldest)
   local lines = sql("ol_w_id = %d AND ol_d_id = %d AND ol_o_id = %s", of.warehouse, district, oldest)
   local gone = mix.changed(sql("DELETE FROM new_order WHERE no_w_id = %d AND no_d_id = %d AND no_o_id = %s",
      of.warehouse, district, oldest))
   if gone ~= 1 then
      error(sql("order %s of district %d, warehouse %d: locked, and %d rows of it were deleted", oldest, district, of.warehouse, gone))
   end
   local customer = mix.row("SELECT o_c_id FROM orders WHERE " .. order)
   con:query(sql("UPDATE orders SET o_carrier_id = %d WHERE %s", of.carrier, order))
   con:query(sql("UPDATE order_line SET ol_delivery_d = NOW() WHERE %s", lines))
   local amount = mix.row("SELECT SUM(ol_amount) FROM order_line WHERE " .. lines)
   con:query(sql("UPDATE customer SET c_balance = c_balance + %s, c_delivery_cnt = c_delivery_cnt + 1"
      .. " WHERE c_w_id = %d AND c_d_id = %d AND c_id = %s", amount, of.warehouse, district, customer))
   return true
end

local function delivery(of)
   local delivered = 0
   con:query("BEGIN")
   for district = 1, DISTRICTS do
      delivered = delivered + (deliver(of, district) and 1 or 0)
   end
   con:query("COMMIT")
   mix.count("delivered", delivered)
end

local function draw_stock_level()
   return {warehouse = own_warehouse(), district = uniform(1, DISTRICTS), threshold = uniform(10, 20)}
end

local function stock_level(of)
   con:query("BEGIN")
   local next_order = tonumber((mix.row(sql("SELECT d_next_o_id FROM district WHERE d_w_id = %d AND d_id = %d",
      of.warehouse, of.district))))
   mix.row(sql("SELECT COUNT(DISTINCT s_i_id) FROM order_line, stock WHERE ol_w_id = %d AND ol_d_id = %d AND ol_o_id < %d"
      .. " AND ol_o_id >= %d AND s_w_id = ol_w_id AND s_i_id = ol_i_id AND s_quantity < %d",
      of.warehouse, of.district, next_order, next_order - 20, of.threshold))
   con:query("COMMIT")
end

mix.run({
   new_order = {share = 45, draw = draw_new_order, work = new_order},
   payment = {share = 43, draw = draw_payment, work = payment},
   order_status = {share = 4, draw = draw_order_status, work = order_status},
   delivery = {share = 4, draw = draw_delivery, work = delivery},
   stock_level = {share = 4, draw = draw_stock_level, work = stock_level},
}, {"new_order", "payment", "order_status", "delivery", "stock_level"})
