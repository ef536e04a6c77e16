/* The global read lock on two servers: mariadb/freeze, with the names of fusion/names between them.
 *
 * On each server clients change a row of one table and commit, and run FLUSH TABLES WITH READ LOCK, which they may give
 * up at any time. The statement takes two metadata locks one after the other: one that waits for statements that change
 * something, and one that waits for commits (a step each). The freezer, one thread of each server, has a guard for each,
 * and a name between servers. A request to give a name up arrives some time after it was wanted, and is done by a thread
 * of its own, in steps; whoever wanted the name may be gone meanwhile. What the names themselves promise (one server has
 * a name exclusively, or any number use it) is taken for granted: tests/sim/fusion.
 *
 * The thread's wait for statements or commits ends after a while, and begins again once what had queued behind it
 * could go on. Here that is when nothing else can happen, a few times until a client comes further: a wait that would
 * come again for ever is found.
 *
 * -DSTARTS: server 1 starts at any moment, and waits for the names for a time that may be over at any moment.
 * -DKILLED=n: server n is silent from any moment on, goes on until its lease is over, and then its place is taken over.
 * -DOTHER_LOCKS=1: clients of server 1 want the global read lock, too. -DPATIENT: some do not give up.
 * -DQUIET: the clients of server 0 change nothing.
 *
 * Checked:
 *   FZ1, FZ6  While a client has the global read lock no statement changes a row, and nothing commits, on any server.
 *   FZ3       One server has it at a time.
 *   FZ2, FZ4, FZ5  Everybody goes on: a client that waits when nothing can happen any more is an invalid end. So pan is
 *             run without -E; and with PATIENT, since a client that gives up unties what would wait for ever.
 *
 * Each transaction has one statement: of those with more it is known that they may wait until the timeout of row locks.
 *
 * -DBUG_... breaks one rule each; each must be found (tools/strata_cli/spin.py runs them).
 */

#ifndef LOCKS
#define LOCKS 1 /* of server 0, one after the other */
#endif
#ifndef OTHER_LOCKS
#define OTHER_LOCKS 0 /* of server 1 */
#endif
#ifndef CHANGES
#define CHANGES 1 /* transactions of each server */
#endif

#ifndef GAPS
#define GAPS 2 /* as long as no client comes further: then it stays, or a circle would go on for ever */
#endif

#ifndef PATIENT
#define PATIENT 0 /* 1: clients of server 0 wait for the lock for ever; 2: of server 1; 3: of both */
#endif

#define NOBODY 2

/* What a server wants of a name, and has in a session. */
#define NOTHING 0
#define USE 1
#define EXCLUSIVE 2

/* How far the statement is, and what it waits for. */
#define WAITS_FOR_STATEMENTS 1
#define WAITS_FOR_COMMITS 2
#define HAS_IT 3

/* A request to give a name up. */
#define CALLED 1
#define GIVEN_UP 2 /* and the memory node does not know yet */

/* What the freezer's thread waits for; whoever comes later queues behind it. */
#define FIRST_HALF 1
#define FIRST_HALF_OF_BOTH 2
#define SECOND_HALF 3

/* Servers. */
bit alive[2] = 1, silent[2], runs[2] = 1, started[2] = 1;
byte row = NOBODY; /* whose transaction has changed it */

/* Metadata locks, besides those of the freezer. */
bit statement[2], commits[2];
byte flush[2];
byte thread_waits[2];
byte gaps; /* that have ended since a client has come further */

/* A server's step (me, n): of statements, and of commits. */
#define STEPS 4
#define at(s, n) (2 * (s) + (n))
bit guard[STEPS], own[STEPS], still[STEPS], is_still[STEPS], asked[STEPS], giving_up[STEPS], given_up[STEPS];
bit begins_without[STEPS], gap[STEPS];
byte wants[STEPS], has[STEPS], call[STEPS];

/* Names: by the memory node. */
bit uses[STEPS];
byte exclusive[2] = NOBODY;

#define me_n at(me, n)
#define other (1 - me)
#define waits_exclusively(s, n) (alive[s] && !silent[s] && wants[at(s, n)] == EXCLUSIVE && has[at(s, n)] == NOTHING)
#define can_talk (alive[me] && !silent[me])
#define thread_is_free (alive[me] && runs[me] && thread_waits[me] == 0)

#define somebody_has_it (flush[0] == HAS_IT || flush[1] == HAS_IT)
#define may_begin_statement (flush[me] == 0 && thread_waits[me] == 0 && !still[at(me, 0)] && !still[at(me, 1)])
#define may_begin_commit (flush[me] < WAITS_FOR_COMMITS && thread_waits[me] != SECOND_HALF && !still[at(me, 1)])
#define has_leave (!begins_without[at(me, 0)] && !begins_without[at(me, 1)])
#ifdef BUG_NEW_SERVER_DOES_NOT_WAIT
#define may_change 1
#else
#define may_change has_leave
#endif

/* Somebody here waits for this guard; nobody does, so that it can be had. */
#define guard_is_waited_for (flush[me] == n + 1)
#define guard_can_be_had (flush[me] < n + 1)

/* A session that is about to end counts for nothing. */
#ifdef BUG_ENDED_SESSION_COUNTS
#define has_it (has[me_n] != NOTHING)
#define has_exclusively (has[me_n] == EXCLUSIVE)
#else
#define has_it (has[me_n] != NOTHING && wants[me_n] == has[me_n])
#define has_exclusively (has[me_n] == EXCLUSIVE && wants[me_n] == EXCLUSIVE)
#endif

#ifdef BUG_STILL_ENDS_WHILE_GIVING_UP
#define must_be_still (given_up[me_n] || asked[me_n])
#else
#define must_be_still (given_up[me_n] || giving_up[me_n] || asked[me_n])
#endif
#ifdef BUG_GIVES_UP_WITHOUT_STANDING_STILL
#define may_give_up 1
#elif defined(BUG_GIVES_UP_WHILE_IT_STARTS)
#define may_give_up (is_still[me_n] || !started[me])
#else
#define may_give_up is_still[me_n]
#endif
#ifdef BUG_USED_WHILE_GIVEN_UP
#define may_be_had 1
#else
#define may_be_had (call[me_n] == 0)
#endif
#ifdef BUG_GUARD_BEFORE_NAME
#define guard_may_go 1
#elif defined(BUG_COMMITS_WAIT_AT_ONCE)
#define guard_may_go (n == 0 || has_exclusively)
#else
#define guard_may_go has_exclusively
#endif

/* A new server comes by its names in their order: a statement that waits for leave, by the first, has the metadata lock
 * that giving up the second would wait for. Then it serves statements of its own. */
#ifdef BUG_SECOND_NAME_FIRST
#define may_ask_for_use 1
#else
#define may_ask_for_use (n == 0 || !begins_without[at(me, 0)])
#endif
#ifdef BUG_NEW_SERVER_SERVES_ITSELF
#define may_ask_exclusively may_ask_for_use
#else
#define may_ask_exclusively has_leave
#endif

/* The session with the name ends: of an exclusive one the right to use it is left. */
inline end_session() {
  if
  :: has[me_n] == EXCLUSIVE -> exclusive[n] = NOBODY; uses[me_n] = 1
  :: else
  fi;
  has[me_n] = NOTHING
}

inline go_on() { is_still[me_n] = 0; still[me_n] = 0 }

proctype Step(bit me; bit n) {
end:
  do
  /* The name. */
  :: atomic { can_talk && has[me_n] != NOTHING && has[me_n] != wants[me_n] -> end_session() }
  :: atomic { can_talk && wants[me_n] == USE && has[me_n] == NOTHING && may_be_had &&
              (uses[me_n] || exclusive[n] == NOBODY) ->
       uses[me_n] = 1; has[me_n] = USE
     }
  :: atomic { waits_exclusively(me, n) && may_be_had && exclusive[n] == NOBODY && !uses[at(other, n)] ->
       exclusive[n] = me; has[me_n] = EXCLUSIVE
     }
  /* It is to be given up; or nobody waits for it any more. */
  :: atomic { can_talk && uses[me_n] && exclusive[n] != me && waits_exclusively(other, n) && !giving_up[me_n] &&
              call[me_n] != GIVEN_UP && (call[me_n] == 0 || !asked[me_n]) ->
       call[me_n] = CALLED; asked[me_n] = 1
     }
  :: atomic { alive[me] && call[me_n] == CALLED && !giving_up[me_n] && may_give_up -> giving_up[me_n] = 1 }
  :: atomic { alive[me] && giving_up[me_n] && has[me_n] != USE ->
       giving_up[me_n] = 0; given_up[me_n] = 1; call[me_n] = GIVEN_UP
     }
  :: atomic { can_talk && call[me_n] == GIVEN_UP -> uses[me_n] = 0; call[me_n] = 0 }
  :: atomic { alive[me] && call[me_n] == CALLED && !giving_up[me_n] && !waits_exclusively(other, n) -> call[me_n] = 0 }
#ifndef BUG_STAYS_STILL
  :: atomic { alive[me] && asked[me_n] && !waits_exclusively(other, n) -> asked[me_n] = 0 }
#endif
  /* The thread, for others. */
  :: atomic { thread_is_free && given_up[me_n] && has_it ->
       given_up[me_n] = 0; begins_without[me_n] = 0; asked[me_n] = 0;
       if :: !own[me_n] -> wants[me_n] = NOTHING :: else fi;
       if :: !must_be_still -> go_on() :: else fi
     }
  :: atomic { thread_is_free && (is_still[me_n] || still[me_n]) && !must_be_still -> go_on() }
  :: atomic { thread_is_free && given_up[me_n] && !own[me_n] && !has_it && wants[me_n] != USE &&
              may_ask_for_use ->
       wants[me_n] = USE
     }
  :: atomic { thread_is_free && started[me] && must_be_still && !begins_without[me_n] && !still[me_n] && !gap[me_n] ->
       thread_waits[me] = (n == 0 -> FIRST_HALF : FIRST_HALF_OF_BOTH)
     }
  :: atomic { n == 0 && thread_waits[me] == FIRST_HALF && !statement[me] ->
       thread_waits[me] = 0; still[me_n] = 1; is_still[me_n] = 1
     }
  :: atomic { n == 1 && thread_waits[me] == FIRST_HALF_OF_BOTH && !statement[me] -> thread_waits[me] = SECOND_HALF }
  :: atomic { n == 1 && thread_waits[me] == SECOND_HALF && !commits[me] ->
       thread_waits[me] = 0; still[me_n] = 1; is_still[me_n] = 1
     }
  /* It does not wait for ever, and lets what has queued behind it go on before it waits again. */
  :: atomic { n == 0 && thread_waits[me] == FIRST_HALF && statement[me] -> thread_waits[me] = 0; gap[me_n] = 1 }
  :: atomic { n == 1 && (thread_waits[me] == FIRST_HALF_OF_BOTH && statement[me] ||
                         thread_waits[me] == SECOND_HALF && commits[me]) ->
       thread_waits[me] = 0; gap[me_n] = 1
     }
  :: atomic { timeout && gap[me_n] && gaps < GAPS -> gap[me_n] = 0; gaps++ }
  /* The thread, for its own server. */
#ifdef BUG_GUARD_IS_WAITED_FOR
  :: atomic { thread_is_free && !guard[me_n] && !guard_can_be_had ->
       thread_waits[me] = 4 + n /* nobody queues behind it: who does would wait for the statement anyway */
     }
  :: atomic { thread_waits[me] == 4 + n && guard_can_be_had -> thread_waits[me] = 0; guard[me_n] = 1; own[me_n] = 0 }
#endif
  :: atomic { thread_is_free && !guard[me_n] && guard_can_be_had -> guard[me_n] = 1; own[me_n] = 0 }
  :: atomic { thread_is_free && guard[me_n] && guard_is_waited_for && guard_may_go -> own[me_n] = 1; guard[me_n] = 0 }
  :: atomic { thread_is_free && guard[me_n] && guard_is_waited_for && !has_exclusively && wants[me_n] != EXCLUSIVE &&
              may_ask_exclusively ->
       own[me_n] = 1; wants[me_n] = EXCLUSIVE
     }
  :: atomic { thread_is_free && guard[me_n] && !guard_is_waited_for && own[me_n] -> own[me_n] = 0 }
#ifdef BUG_LET_GO_WHILE_LOCKED
  :: atomic { thread_is_free && !guard_is_waited_for && !given_up[me_n] && wants[me_n] != NOTHING -> wants[me_n] = NOTHING }
#else
  :: atomic { thread_is_free && guard[me_n] && !guard_is_waited_for && !given_up[me_n] && wants[me_n] != NOTHING ->
       wants[me_n] = NOTHING
     }
#endif
  od
}

/* Each wait ends with the server, too. */
#define or_end || !alive[me]
#define ends_with_server if :: !alive[me] -> goto stop :: else fi; gaps = 0

proctype Transactions(bit me) {
  byte left = CHANGES;
  do
  :: left == 0 -> break
  :: left > 0 ->
     atomic { (started[me] && may_begin_statement) or_end -> ends_with_server; statement[me] = 1 }
     /* The statement waits for leave, and for the row, with the metadata lock. */
     atomic { (may_change && row == NOBODY) or_end ->
       ends_with_server;
       assert(!somebody_has_it); /* FZ1 */
       row = me
     }
     atomic { ends_with_server; statement[me] = 0 }
     atomic { may_begin_commit or_end -> ends_with_server; commits[me] = 1 }
     atomic {
       ends_with_server;
       assert(!somebody_has_it); /* FZ1 */
       row = NOBODY;
       left--
     }
     atomic { ends_with_server; commits[me] = 0 }
  od;
stop:
  skip
}

proctype Flush(bit me; byte left) {
  do
  :: left == 0 -> break
  :: left > 0 ->
     left--;
     atomic { started[me] or_end -> ends_with_server; flush[me] = WAITS_FOR_STATEMENTS }
     if
     :: atomic { (!statement[me] && !guard[at(me, 0)]) or_end -> ends_with_server; flush[me] = WAITS_FOR_COMMITS }
     :: atomic { (PATIENT & (1 << me)) == 0; ends_with_server; flush[me] = 0; goto over } /* KILL, lock_wait_timeout (FZ4) */
     fi;
     if
     :: atomic { (!commits[me] && !guard[at(me, 1)]) or_end ->
          ends_with_server;
          flush[me] = HAS_IT;
          assert(flush[other] != HAS_IT) /* FZ3 */
        }
     :: atomic { (PATIENT & (1 << me)) == 0; ends_with_server; flush[me] = 0; goto over }
     fi;
     atomic { ends_with_server; flush[me] = 0 };
over:
     skip
  od;
stop:
  skip
}

#ifdef STARTS
/* Server 1, up to its first client. */
inline begin_without(n) { given_up[at(1, n)] = 1; begins_without[at(1, n)] = 1 }
inline begin_step(n) {
  wants[at(1, n)] = USE;
  if
  :: atomic { has[at(1, n)] == USE -> wants[at(1, n)] = NOTHING }
  :: atomic { has[at(1, n)] == NOTHING -> begin_without(n) }
  fi
}

proctype Start() {
  begin_step(0);
  if
#ifndef BUG_SECOND_NAME_FIRST
  :: begins_without[at(1, 0)] -> begin_without(1)
#endif
  :: else -> begin_step(1)
  fi;
  runs[1] = 1;
  atomic { (guard[at(1, 0)] && guard[at(1, 1)]) || !alive[1] -> started[1] = 1 }
}
#endif

#ifdef KILLED
inline free_names(s) {
  uses[at(s, 0)] = 0; uses[at(s, 1)] = 0;
  if :: exclusive[0] == s -> exclusive[0] = NOBODY :: else fi;
  if :: exclusive[1] == s -> exclusive[1] = NOBODY :: else fi
}

inline forget_step(s, n) {
  guard[at(s, n)] = 0; own[at(s, n)] = 0; still[at(s, n)] = 0; is_still[at(s, n)] = 0; asked[at(s, n)] = 0;
  giving_up[at(s, n)] = 0; given_up[at(s, n)] = 0; begins_without[at(s, n)] = 0;
  wants[at(s, n)] = NOTHING; has[at(s, n)] = NOTHING; call[at(s, n)] = 0; gap[at(s, n)] = 0
}

proctype Kill() {
  atomic {
    silent[KILLED] = 1;
#ifdef BUG_FREE_BEFORE_THE_LEASE_IS_OVER
    free_names(KILLED)
#endif
  }
  atomic {
    alive[KILLED] = 0; statement[KILLED] = 0; commits[KILLED] = 0; flush[KILLED] = 0; thread_waits[KILLED] = 0;
    forget_step(KILLED, 0); forget_step(KILLED, 1)
  }
  atomic {
    if :: row == KILLED -> row = NOBODY :: else fi;
#ifndef BUG_NEVER_TAKEN_OVER
    free_names(KILLED)
#endif
  }
}
#endif

inline begin(s) {
  guard[at(s, 0)] = 1; guard[at(s, 1)] = 1; uses[at(s, 0)] = 1; uses[at(s, 1)] = 1
}

init {
  atomic {
    begin(0);
#ifdef STARTS
    runs[1] = 0; started[1] = 0;
    run Start();
#else
    begin(1);
#endif
#ifdef KILLED
    run Kill();
#endif
    run Step(0, 0); run Step(0, 1); run Step(1, 0); run Step(1, 1);
#ifndef QUIET
    run Transactions(0);
#endif
    run Transactions(1);
    run Flush(0, LOCKS);
    if :: OTHER_LOCKS > 0 -> run Flush(1, OTHER_LOCKS) :: else fi
  }
}
