/* Shared locks of several servers: src/fusion/locks (row_locks), src/clients/fusion (row_lock_client, fusion_locks).
 *
 * A locker on server 1 asks for a shared lock, reads the row once it counts, and lets go later, twice. On servers 2
 * and 3 a writer each marks the row, looks at its server's flag, and asks the memory node for holders if that is set.
 * Server 3 comes while all this goes on. The memory node sets the flag everywhere before it adds the first lock, and
 * takes it back when there has been none for a while. The row's page goes from server to server as a whole: a step
 * on it is one step here.
 *
 * Checked:
 *   FQ5, FS7  A writer that takes itself for alone is: nobody holds the row shared who has read it before the mark.
 *
 * -DBUG_... breaks one rule each; each must be found (tools/strata_cli/spin.py runs them).
 */

mtype = { add, release, ask, heard, report, set, clear, added, alone, ready };

byte mark = 0;             /* the server whose writer has marked the row, undecided */
bool reads = false;        /* the locker has read the row, and its lock holds */

chan to_node = [6] of { mtype, byte };
chan to_locker = [2] of { mtype };
chan to_server[4] = [5] of { mtype };
chan to_writer[4] = [2] of { mtype };
bool flag[4];              /* of servers 2 and 3 */
bool runs[4];              /* the server may run transactions */

active proctype Node() {
  byte from;
  byte asking[4];
  bool on = false, held = false, wanted = false;
  bool member[4], awaited[4];
  member[2] = true;
end:
  do
  :: to_node?add(from) ->
     wanted = true;
     if
     :: !on ->
        on = true;
        if
        :: member[2] -> to_server[2]!set; awaited[2] = true
        :: else
        fi;
        if
        :: member[3] -> to_server[3]!set; awaited[3] = true
        :: else
        fi
     :: else
     fi
  :: to_node?heard(from) -> awaited[from] = false
  :: to_node?report(from) ->
     member[from] = true;
     if
     :: on -> to_server[from]!set; awaited[from] = true
     :: else
     fi;
     to_server[from]!ready
#ifdef BUG_ANSWERS_ARE_NOT_AWAITED
  :: wanted ->
#else
  :: wanted && !awaited[2] && !awaited[3] ->
#endif
     wanted = false;
     held = true;
     to_locker!added
  :: to_node?release(from) -> held = false
  :: to_node?ask(from) -> asking[from] = 1
  :: asking[2] == 1 && !held -> asking[2] = 0; to_writer[2]!alone
  :: asking[3] == 1 && !held -> asking[3] = 0; to_writer[3]!alone
#ifdef BUG_TAKEN_BACK_WHILE_HELD
  :: on && !wanted && !awaited[2] && !awaited[3] ->
#else
  :: on && !wanted && !held && !awaited[2] && !awaited[3] ->
#endif
     on = false;
     to_server[2]!clear;
     if
     :: member[3] -> to_server[3]!clear
     :: else
     fi
  od
}

inline hears(me) {
end:
  do
  :: to_server[me]?set ->
#ifdef BUG_ANSWER_BEFORE_THE_FLAG
     to_node!heard(me);
     flag[me] = true
#else
     flag[me] = true;
     to_node!heard(me)
#endif
  :: to_server[me]?clear -> flag[me] = false
  :: to_server[me]?ready -> runs[me] = true
  od
}

active proctype Server2() { runs[2] = true; hears(2) }

active proctype Server3() {
#ifdef BUG_NEW_SERVER_RUNS_BEFORE_IT_HEARS
  runs[3] = true;
#endif
  to_node!report(3);
  hears(3)
}

inline writes(me) {
  (runs[me]);
#ifdef BUG_FLAG_BEFORE_THE_MARK
  asks = flag[me];
  atomic { (mark == 0); mark = me };
#else
  atomic { (mark == 0); mark = me };
  asks = flag[me];
#endif
  if
  :: asks -> to_node!ask(me); to_writer[me]?alone
  :: else
  fi;
  assert(!reads); /* FS7 */
  mark = 0
}

active proctype Writer2() { bool asks; writes(2) }
active proctype Writer3() { bool asks; writes(3) }

active proctype Locker() {
  byte rounds = 0;
  do
  :: rounds < 2 ->
#ifdef BUG_READ_BEFORE_REGISTERING
     (mark == 0);
     to_node!add(1);
     to_locker?added;
     reads = true;
#else
     to_node!add(1);
     to_locker?added;
     if
     :: atomic { mark == 0 -> reads = true }
     :: mark != 0 -> skip          /* registered in vain: taken back, it waits for the owner */
     fi;
#endif
     reads = false;
     to_node!release(1);
     rounds = rounds + 1
  :: else -> break
  od
}
