/* The lock of one page between servers, and where its newest version is: src/fusion/pages and
 * src/clients/fusion (page_holds, fusion_pages).
 *
 * Each server asks for the page to read or to write it, uses it, and gives it up when it is asked to: its log
 * becomes durable, the version is put into a slot of its own, the report is sent. A version may also be pushed in
 * the background, while the page is held. Asks, refusals ("not held"), reports, grants and requests to give up go
 * by ways of their own, so each may overtake the others; an ask and a report of the first server may come a second
 * time, the report much later, and a grant is sent again for an ask that comes again. Until it is put, whoever reads a
 * version finds none. (That the log is durable and that the version is put is one step: nobody sees anything of it
 * before the report.)
 *
 * -DCOPIES: a server keeps what it had of a page that it has given up. The flag that says that it is valid is
 * cleared by whoever publishes, one-sided and unwaited, so it may be late (FU15): then the page is dropped though
 * it is new, which costs a get. Whether a copy may be used is told by the grant's llsn alone (FU13). The servers do
 * not keep such copies yet.
 *
 * Checked:
 *   FY1  Whoever uses the page has its newest version, and nobody else uses it beside a writer.
 *   FY2  A version that the memory node knows is durable in its writer's log.
 *   FH2  What it knows is in its slot.
 *   FH6  A page is nobody's until the report that gives it up is answered: else FY1 does not hold, since a grant that
 *        comes again would be refused before the version is known.
 *   FU13 A grant that arrives after its "not held" is not used, and a report of an earlier hold ends no later one:
 *        else FY1 does not hold.
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
#ifndef CHANGES
#define CHANGES 2
#endif

#define NOBODY 2
#define NOTHING 7 /* no version: half a put, or no copy */

#define NONE 0
#define ASKED 1
#define HELD 2
#define GIVING 3

#define S 1
#define X 2

/* How far a version is, or a page that is given up. */
#define PUT 1
#define SAID 2 /* and whether the memory node knows nobody knows: until that is answered it is nobody's (FH6) */

chan ask[2] = [2] of { byte, byte };                 /* mode, ask */
chan refusal[2] = [2] of { byte };                   /* number */
chan report[2] = [2] of { byte, bit, byte };         /* number, gives up, llsn (0: not changed) */
chan grant[2] = [2] of { byte, byte, byte, byte };   /* mode, ask, number, llsn */
chan back[2] = [2] of { byte };                      /* number */

/* What is true, for the checks only: every change is one more. Version 0 is in storage. */
byte newest;
byte durable;

/* Servers. */
byte state[2], mode[2];
bit is_put[CHANGES + 1]; /* by version: it is in a slot, whole */
#ifdef COPIES
bit valid[2];  /* of the copy that the server keeps */
bit clears[2]; /* a put that clears the flag is on its way */
#endif

/* The memory node. */
byte numbers, known; /* grants; the newest version */
byte hold[2], held_as[2], of_ask[2]; /* the mode (0: none), its number, the ask it answers */
byte waits[2], wait_ask[2];
bit asked[2];
byte first = NOBODY; /* who has waited longest */

/* Of one atomic step; means nothing afterwards. */
hidden byte who, m, a, n, l, g;

#define ROOM (nfull(grant[0]) && nfull(grant[1]) && nfull(back[0]) && nfull(back[1]))

inline send_grant(to) { grant[to]!hold[to], of_ask[to], held_as[to], known }

/* Grants what can be granted, and asks for what is in the way (once). */
inline settle() {
  do
  :: first != NOBODY && hold[first] == 0 && numbers < GRANTS &&
     (hold[1 - first] == 0 || (hold[1 - first] == S && waits[first] == S)) ->
     numbers++;
     hold[first] = waits[first]; held_as[first] = numbers; of_ask[first] = wait_ask[first]; asked[first] = 0;
     waits[first] = 0; wait_ask[first] = 0;
     send_grant(first);
     if :: waits[1 - first] != 0 -> first = 1 - first :: else -> first = NOBODY fi
  :: else -> break
  od;
  if
  :: first != NOBODY && hold[1 - first] != 0 && !asked[1 - first] && (hold[1 - first] == X || waits[first] == X) ->
     asked[1 - first] = 1; back[1 - first]!held_as[1 - first]
  :: else
  fi;
  if
  :: first != NOBODY && hold[first] != 0 && !asked[first] ->
     asked[first] = 1; back[first]!held_as[first] /* it does not know of that hold */
  :: else
  fi
}

inline take_ask() {
  if
  :: hold[who] != 0 && a <= of_ask[who] ->
     if :: a == of_ask[who] -> send_grant(who) :: else fi
  :: else ->
     if
     :: waits[who] == 0 ->
        waits[who] = m; wait_ask[who] = a;
        if :: first == NOBODY -> first = who :: else fi
     :: waits[who] != 0 && a > wait_ask[who] -> waits[who] = m; wait_ask[who] = a
     :: else
     fi;
     settle()
  fi
}

inline end_hold() { hold[who] = 0; held_as[who] = 0; of_ask[who] = 0; asked[who] = 0 }

inline take_refusal() {
  if :: hold[who] != 0 && held_as[who] == n -> end_hold(); settle() :: else fi
}

inline take_report() {
  if
#ifdef BUG_UNNUMBERED_REPORT
  :: hold[who] != 0 ->
#else
  :: hold[who] != 0 && held_as[who] == n ->
#endif
     if
     :: l > known ->
        assert(l <= durable); /* FY2 */
        assert(is_put[l]);    /* FH2 */
        known = l;
#ifdef COPIES
        clears[1 - who] = 1
#endif
     :: else
     fi;
     if :: g -> end_hold(); settle() :: else fi
  :: else
  fi
}

active proctype MemoryNode() {
end:
  do
  :: atomic { nempty(ask[0]) && ROOM -> who = 0; ask[0]?m, a; take_ask() }
  :: atomic { nempty(ask[1]) && ROOM -> who = 1; ask[1]?m, a; take_ask() }
  :: atomic { nempty(refusal[0]) && ROOM -> who = 0; refusal[0]?n; take_refusal() }
  :: atomic { nempty(refusal[1]) && ROOM -> who = 1; refusal[1]?n; take_refusal() }
  :: atomic { nempty(report[0]) && ROOM -> who = 0; report[0]?n, g, l; take_report() }
  :: atomic { nempty(report[1]) && ROOM -> who = 1; report[1]?n, g, l; take_report() }
  od
}

/* What a server says when a grant, or a request to give up, is of no hold that it has. The ask that is under way
 * may have been answered by just that: it is asked again. */
#define CAN_REFUSE (nfull(refusal[me]) && nfull(ask[me]))
inline refuse(number_of) {
  refusal[me]!number_of;
#ifndef BUG_UNNUMBERED_GRANT
  if :: number_of > refused -> refused = number_of :: else fi;
#endif
  if :: state[me] == ASKED -> ask[me]!mode[me], asks :: else fi
}

inline take_grant() {
  if
  :: state[me] == ASKED && a == asks && n > refused ->
     state[me] = HELD; number = n;
#ifdef COPIES
#ifdef BUG_FLAG_IS_BELIEVED
     if :: frame != NOTHING && valid[me] :: else -> frame = (l == 0 || is_put[l] -> l : NOTHING) fi;
#else
     if :: frame == l :: else -> frame = (l == 0 || is_put[l] -> l : NOTHING) fi;
#endif
     valid[me] = 1
#else
     frame = (l == 0 || is_put[l] -> l : NOTHING) /* the get */
#endif
#ifndef BUG_NOT_HELD_OF_WHAT_IS_THERE
  :: state[me] >= HELD && n == number
  :: !(state[me] == ASKED && a == asks && n > refused) && !(state[me] >= HELD && n == number) -> refuse(n)
#else
  :: else -> refuse(n)
#endif
  fi
}

inline take_back() {
  if
  :: state[me] >= HELD && n == number -> wanted = 1
  :: else -> refuse(n)
  fi
}

inline use() {
  assert(frame == newest); /* FY1 */
  assert(!(state[1 - me] == HELD && (mode[me] == X || mode[1 - me] == X)));
  used = 1;
  if
  :: mode[me] == X && newest < CHANGES ->
     newest++; frame = newest; dirty = 1
  :: 1
  fi
}

#ifdef COPIES
#define FORGET_FRAME
#else
#define FORGET_FRAME frame = NOTHING;
#endif
inline given_up() {
  state[me] = NONE; mode[me] = 0; number = 0; wanted = 0; used = 0; dirty = 0; told = 0; step = 0; FORGET_FRAME
}

inline say_given_up(version) {
  report[me]!number, 1, version;
  if :: me == 0 && !late && late_number == 0 -> late_number = number; late_llsn = version :: 1 fi;
  step = SAID
}

inline make_durable() { if :: frame > durable -> durable = frame :: else fi }

proctype Server(bit me) {
  byte asks, number, refused, step, frame = NOTHING;
  byte late_number, late_llsn; /* a report that comes again */
  bit again, late, wanted, used, dirty, told;
  do
  :: atomic { state[me] == NONE && asks < ASKS && nfull(ask[me]) ->
       asks++;
       if :: mode[me] = S :: mode[me] = X fi;
       state[me] = ASKED;
       ask[me]!mode[me], asks
     }
  :: atomic { me == 0 && state[me] == ASKED && !again && nfull(ask[me]) -> again = 1; ask[me]!mode[me], asks }
  :: atomic { nempty(grant[me]) && CAN_REFUSE -> grant[me]?m, a, n, l; take_grant() }
  :: atomic { nempty(back[me]) && CAN_REFUSE -> back[me]?n; take_back() }
  :: atomic { state[me] == HELD && !used -> use() }
  :: atomic { state[me] == HELD && used && wanted -> state[me] = GIVING }
#ifdef BUG_GRANT_BEFORE_PUT
  :: atomic { state[me] == GIVING && dirty && step == 0 && nfull(report[me]) ->
       make_durable(); report[me]!number, 1, frame; step = 1
     }
  :: atomic { state[me] == GIVING && dirty && step == 1 -> is_put[frame] = 1; step = SAID }
#else
  :: atomic { state[me] >= HELD && dirty && step == 0 ->
#ifndef BUG_PUT_BEFORE_LOG
       make_durable();
#endif
       is_put[frame] = 1; step = PUT
     }
  /* Pushed, and held on to. */
  :: atomic { state[me] == HELD && dirty && step == PUT && nfull(report[me]) ->
       report[me]!number, 0, frame; dirty = 0; told = 1; step = 0
     }
  :: atomic { state[me] == GIVING && step != SAID && (dirty && step == PUT || told) && nfull(report[me]) ->
       say_given_up(frame)
     }
#endif
  /* Not changed, or what was pushed has been answered. */
  :: atomic { state[me] == GIVING && step != SAID && !dirty && (!told || empty(report[me])) && nfull(report[me]) ->
       say_given_up(0)
     }
#ifdef BUG_NOT_AWAITED
  :: atomic { state[me] == GIVING && step == SAID -> given_up() }
#else
  :: atomic { state[me] == GIVING && step == SAID && empty(report[me]) -> given_up() } /* it is answered */
#endif
  :: atomic { late_number != 0 && nfull(report[me]) ->
       report[me]!late_number, 1, late_llsn; late = 1; late_number = 0; late_llsn = 0
     }
#ifdef COPIES
  :: atomic { clears[me] -> clears[me] = 0; valid[me] = 0 }
  :: atomic { !valid[me] && frame != NOTHING && state[me] < HELD -> frame = NOTHING }
#endif
  od
}

init { atomic { run Server(0); run Server(1) } }
