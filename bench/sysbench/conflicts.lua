-- The load that STRATA_MIX names (a script of sysbench's own, or hot.lua), with its transactions that are refused counted: at
-- COMMIT, where servers that certify what others have written find out, and before, where servers that lock do. Each thread
-- prints `refused at commit N, before M` at its end; sysbench begins the transaction anew.

require(os.getenv("STRATA_MIX"))

local at_commit, before = 0, 0
local committing = false
local inner_commit, inner_event, inner_done = commit, event, thread_done

function commit()
   committing = true
   inner_commit()
end

function event()
   committing = false
   local ok, failure = pcall(inner_event)
   if ok then
      return
   end
   if committing then
      at_commit = at_commit + 1
   else
      before = before + 1
   end
   error(failure, 0)
end

function thread_done()
   print(string.format("refused at commit %d, before %d", at_commit, before))
   inner_done()
end
