-- One child of a random parent, committed by itself. `./strata bench references` makes the tables `parent` and `child`.

sysbench.cmdline.options = {
   tables = {"Not used", 1},
   table_size = {"Parents", 1000},
   mysql_storage_engine = {"Not used: the tables are there", ""},
}

function thread_init()
   con = sysbench.sql.driver():connect()
end

function event()
   con:query(string.format("INSERT INTO child (p, c) VALUES (%d, 'child')", sysbench.rand.uniform(1, sysbench.opt.table_size)))
end

function thread_done()
   con:disconnect()
end
