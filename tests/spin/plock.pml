/* The lock of one page between servers, and where its newest version is: src/fusion/pages and
 * src/clients/fusion (page_holds, fusion_pages).
 *
 * Each server asks for the page to read or to write it, uses it, and gives it up when it is asked to: its log
 * becomes durable, the version is put into a slot of its own, the report is sent. Asks, reports, grants and
 * requests to give up go by ways of their own, so each may overtake the others; an ask may be sent again, and
 * then the grant comes again. A put is two steps: whoever reads in between finds no version.
 *
 * Checked:
 *   FY1  Whoever uses the page has its newest version, and nobody else uses it beside a writer.
 *   FY2  A version that the memory node knows is durable in its writer's log.
 *   FU13 A grant that arrives after its "not held" is not used: else FY1 does not hold.
 * That nobody waits for ever, and what happens when a server dies, is in tests/sim/fusion.
 *
 * -DBUG_... breaks one rule each; each must be found (tools/strata_cli/spin.py runs them).
 */

#ifndef ASKS
#define ASKS 2 /* of each server */
#endif
#ifndef GRANTS
#define GRANTS 5 /* in all: else one that is refused could come again for ever, with another number */
#endif
#define SERVERS 2
#define SLOTS 3 /* and so one change less */

#define NONE 0
#define ASKED 1
#define HELD 2
#define GIVING 3

#define S 1
#define X 2

chan ask[SERVERS] = [1] of { byte, byte };                 /* mode, ask */
chan report[SERVERS] = [2] of { byte, byte, byte };        /* number, llsn (0: not changed), slot */
chan grant[SERVERS] = [2] of { byte, byte, byte, byte, byte }; /* mode, ask, number, llsn, slot */
chan back[SERVERS] = [1] of { byte };                      /* number */

byte newest;             /* what is true, for the checks only: every change is one more */
byte durable;
byte state[SERVERS];
byte slot_llsn[SLOTS];   /* 0: half a version, or none */
byte slots_used;

proctype Server(byte me) {
  byte asks, mode, number, refused, frame, step, slot, again;
  byte m, a, n, l, s;
  bool wanted, dirty;
  do
  :: state[me] == NONE && asks < ASKS ->
     atomic {
       asks = asks + 1;
       if :: mode = S :: mode = X fi;
       state[me] = ASKED; wanted = false; dirty = false;
       ask[me]!mode, asks
     }
  :: state[me] == ASKED && again < 1 && nfull(ask[me]) -> again = again + 1; ask[me]!mode, asks
  :: grant[me]?m, a, n, l, s ->
     if
#ifdef BUG_UNNUMBERED_GRANT
     :: state[me] == ASKED && a == asks ->
#else
     :: state[me] == ASKED && a == asks && n > refused ->
#endif
        number = n;
        /* the get, and what it finds: half a version is none, and storage has only the first */
        frame = (l == 0 -> 0 : slot_llsn[s]);
        state[me] = HELD
#ifdef BUG_NOT_HELD_OF_WHAT_IS_THERE
     :: else ->
#else
     :: state[me] >= HELD && n == number
     :: !(state[me] == ASKED && a == asks && n > refused) && !(state[me] >= HELD && n == number) ->
#endif
        atomic { if :: n > refused -> refused = n :: else fi; report[me]!n, 0, 0 };
        if :: state[me] == ASKED && a == asks && len(ask[me]) < 1 -> ask[me]!mode, asks :: else fi
     fi
  :: back[me]?n ->
     if
     :: state[me] >= HELD && n == number -> wanted = true
     :: else ->
        atomic { if :: n > refused -> refused = n :: else fi; report[me]!n, 0, 0 };
        if :: state[me] == ASKED && len(ask[me]) < 1 -> ask[me]!mode, asks :: else fi
     fi
  :: state[me] == HELD && !dirty ->
     atomic {
       assert(frame == newest); /* FY1 */
       if
       :: mode == X && newest < SLOTS - 1 ->
          assert(state[1 - me] != HELD);
          newest = newest + 1; frame = newest; dirty = true; step = 1
       :: mode == S || newest == SLOTS - 1 -> dirty = true; step = 3 /* used once */
       fi
     }
  :: state[me] == HELD && wanted && dirty -> state[me] = GIVING
#ifdef BUG_PUT_BEFORE_LOG
  :: state[me] == GIVING && step == 1 -> step = 2
#else
  :: state[me] == GIVING && step == 1 ->
     atomic { durable = (frame > durable -> frame : durable) }; step = 2
#endif
#ifdef BUG_GRANT_BEFORE_PUT
  :: state[me] == GIVING && step == 2 ->
     atomic { slot = slots_used; slots_used = slots_used + 1 };
     report[me]!number, frame, slot;
     slot_llsn[slot] = frame;
     state[me] = NONE
#else
  :: state[me] == GIVING && step == 2 ->
     atomic { slot = slots_used; slots_used = slots_used + 1 };
     slot_llsn[slot] = frame;
     atomic { report[me]!number, frame, slot; state[me] = NONE }
#endif
  :: state[me] == GIVING && step == 3 -> atomic { report[me]!number, 0, 0; state[me] = NONE }
  :: state[me] == NONE && asks == ASKS && empty(grant[me]) && empty(back[me]) && empty(report[me]) &&
     empty(ask[me]) -> break
  od;
  /* What comes late is answered still. */
end:
  do
  :: grant[me]?m, a, n, l, s -> report[me]!n, 0, 0
  :: back[me]?n -> report[me]!n, 0, 0
  od
}

active proctype MemoryNode() {
  byte numbers, llsn, at;                /* the newest version that is known, and its slot */
  byte holds[SERVERS], number[SERVERS], of_ask[SERVERS]; /* the mode, 0: none */
  byte waits[SERVERS], wait_ask[SERVERS];
  bool asked[SERVERS];
  byte first = SERVERS;                  /* who has waited longest */
  byte who, other, m, a, n, l, s;
  slot_llsn[0] = 0; slots_used = 1;
  run Server(0); run Server(1);
end:
  do
  :: atomic {
       if
       :: ask[0]?m, a -> who = 0
       :: ask[1]?m, a -> who = 1
       fi;
       if
       :: holds[who] != 0 && a <= of_ask[who] ->
          if
          :: a == of_ask[who] && len(grant[who]) < 2 -> grant[who]!holds[who], a, number[who], llsn, at
          :: else
          fi
       :: else ->
          if
          :: waits[who] == 0 -> waits[who] = m; wait_ask[who] = a; if :: first == SERVERS -> first = who :: else fi
          :: waits[who] != 0 && a > wait_ask[who] -> waits[who] = m; wait_ask[who] = a
          :: else
          fi
       fi
     }
  :: atomic {
       if
       :: report[0]?n, l, s -> who = 0
       :: report[1]?n, l, s -> who = 1
       fi;
       if
       :: holds[who] != 0 && number[who] == n ->
          if
          :: l != 0 -> assert(l <= durable); /* FY2 */ assert(l > llsn); llsn = l; at = s
          :: else
          fi;
          holds[who] = 0; asked[who] = false
       :: else
       fi
     }
  :: atomic { first != SERVERS && holds[first] == 0 && numbers < GRANTS &&
       (holds[1 - first] == 0 || (holds[1 - first] == S && waits[first] == S)) && nfull(grant[first]) ->
       numbers = numbers + 1;
       holds[first] = waits[first]; number[first] = numbers; of_ask[first] = wait_ask[first];
       waits[first] = 0; asked[first] = false;
       grant[first]!holds[first], of_ask[first], numbers, llsn, at;
       first = (waits[1 - first] != 0 -> 1 - first : SERVERS)
     }
  :: atomic { first != SERVERS && holds[1 - first] != 0 && !asked[1 - first] &&
       (holds[1 - first] == X || waits[first] == X) && nfull(back[1 - first]) ->
       asked[1 - first] = true; back[1 - first]!number[1 - first]
     }
  :: atomic { first != SERVERS && holds[first] != 0 && !asked[first] && nfull(back[first]) ->
       asked[first] = true; back[first]!number[first] /* it does not know of that hold */
     }
  od
}
