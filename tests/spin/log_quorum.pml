/* Append, fence and recover of a replicated log, as src/quorum and src/storenode/logstore do it.
 *
 * One process is the holder of one epoch: it seals, chooses, copies, begins, appends. It may stop
 * anywhere for ever (a crash) or for a while (a pause, a slow link): every interleaving is tried. A
 * step that touches a replica is one request, its durable effect and the reply's content; the reply
 * may be looked at much later. A crash of a replica loses nothing durable and so is no step.
 * Entries stand for bytes: an entry is the epoch that wrote it, since an epoch has one writer.
 *
 * Checked (names as in tests/sim/log_quorum_sim.h):
 *   QS1  What was acknowledged, or kept by a finished recovery, is in every later one.
 *   QS2  Nothing new is acknowledged under an epoch after a higher one's recovery has finished.
 *   LG5  No replica cuts off what was acknowledged.
 *
 * With -DREPLACE the place of the last replica is given to a new node at any moment. Epochs are given one
 * after the other; a holder reads the placement at any time after its own was given, and hears of the change
 * at any time once it writes. The new node is made by the first request that reaches it (PR1, PR2 in
 * docs/adr/2026-11-23-changing-storage-nodes.md); the old one never hears of anything.
 *
 * With -DREMOVE a holder takes the last replica out: it acknowledges by both write quorums, W of N and W2 of
 * the others, until all it has acknowledged is durable by both, then changes the placement if no later epoch
 * was given, and goes on without that replica (PR5). Who has a lower epoch never follows (PR6).
 *
 * -DBUG_... breaks one rule each; each must be found (tools/strata_cli/spin.py runs them).
 */

#ifndef N
#define N 3 /* replicas; holder() names them one by one */
#endif
#ifndef W
#define W 2 /* write quorum */
#endif
#ifndef W2
#define W2 2 /* write quorum without the last one */
#endif
#ifdef REMOVE
#define WQ (view == 1 -> W2 : W)
#define R (view == 1 -> N - W2 : N - W + 1)
#define HERE(i) ((i) < N - 1 || view == 0)
#else
#define WQ W
#ifdef BUG_SMALL_RECOVERY_QUORUM
#define R (N - W)
#else
#define R (N - W + 1)
#endif
#define HERE(i) true
#endif
#ifndef EPOCHS
#define EPOCHS 3
#endif
#ifndef LEN
#define LEN 2 /* entries a log can hold */
#endif
#ifdef BUG_EARLY_ACKNOWLEDGEMENT
#define ACKS (WQ - 1)
#else
#define ACKS WQ
#endif

#ifdef REMOVE
/* Of the replica that leaves nothing is needed for what is durable in so many others up to told + more. */
#define WITHOUT_LAST(more) (OTHER(0, more) + OTHER(1, more) + (N > 3 -> OTHER(2, more) : 0) >= W2)
#define OTHER(i, more) (stored[i] >= told + 1 + (more) -> 1 : 0)
#define ALSO_WITHOUT_LAST (joint == 0 || WITHOUT_LAST(1))
#ifdef BUG_REMOVED_WITH_ONE_QUORUM
#define MAY_LEAVE true
#else
#define MAY_LEAVE (joint == 1 && WITHOUT_LAST(0))
#endif
#ifdef BUG_REMOVED_BY_OLD_HOLDER
#define STILL_HOLDER true
#else
#define STILL_HOLDER (given == epoch)
#endif
#ifdef BUG_OLD_HOLDER_FOLLOWS
#define FOLLOWS (changed != 0)
#else
#define FOLLOWS (changed == epoch)
#endif
#else
#define ALSO_WITHOUT_LAST true
#endif

#ifdef REPLACE
#define NODES (N + 1)
#define NEW N /* the node that takes the place of replica N - 1 */
#define AT(i) ((i) == N - 1 && view == 1 -> NEW : (i))
#define PROMISED(n) ((n) == NEW && made == 0 -> MADE_WITH : promised[n])
/* What it is made with is nobody's: not even that epoch's holder may begin it. */
#define MAY_BEGIN(n) ((n) == NEW && made == 0 -> MADE_WITH < epoch : promised[n] <= epoch)
#define COUNTS(i) (AT(i) != NEW || votes_now)
#else
#define NODES N
#define AT(i) (i)
#define PROMISED(n) promised[n]
#define MAY_BEGIN(n) (promised[n] <= epoch)
#define COUNTS(i) true
#endif
#ifdef BUG_NEW_NODE_PROMISES_NOTHING
#define MADE_WITH 0
#else
#define MADE_WITH (given - 1)
#endif

#define NONE 15
#define ENTRY(r, i) entry[(r) * LEN + (i)]
#define START(r, e) began[(r) * (EPOCHS + 1) + (e)]

/* Replicas; all of it durable. */
byte promised[NODES];
byte log_end[NODES];
byte entry[NODES * LEN];
byte began[NODES * (EPOCHS + 1)]; /* where each epoch of the replica's history began, or NONE */

#ifdef REPLACE
byte given;      /* the last epoch given; the registry's, as is: */
bit changed;     /* the new node has the place */
bit made;        /* the new node has a replica, which */
bit votes_now;   /* votes once it holds the log up to */
byte voter_end;  /* here */
#endif
#ifdef REMOVE
byte given;      /* the registry's, as is: */
byte changed;    /* the epoch whose holder took the last replica out; 0: nobody did */
#endif

/* What the world was told. */
byte acknowledged[LEN]; /* by position: the entry, 0 if not yet */
byte recovered;         /* highest epoch whose recovery has finished */

/* The last epoch of a replica's log: entries of its history up to its end count. */
inline last_epoch(r, out) {
  out = 0;
  x = 1;
  do
  :: x <= EPOCHS ->
     if
     :: START(r, x) != NONE && START(r, x) <= log_end[r] -> out = x
     :: else
     fi;
     x++
  :: else -> break
  od;
  x = 0
}

/* Up to where the replica has the chosen log's entries. */
inline agreed_end(r, out) {
  out = 0;
  do
  :: out < log_end[r] && out < s && ENTRY(r, out) == ENTRY(chosen, out) -> out++
  :: else -> break
  od
}

/* Takes over the chosen history and drops what the chosen log does not have. */
inline cut_to(r, at) {
  x = at;
  do
  :: x < log_end[r] ->
     assert(acknowledged[x] == 0 || ENTRY(r, x) != acknowledged[x]); /* LG5 */
     ENTRY(r, x) = 0;
     x++
  :: else -> break
  od;
  log_end[r] = at;
  x = 1;
  do
  :: x <= EPOCHS -> START(r, x) = START(chosen, x); if :: x >= epoch -> START(r, x) = NONE :: else fi; x++
  :: else -> break
  od;
  x = 0
}

/* The first request to the new node makes its replica. */
inline make(n) {
#ifdef REPLACE
  if
  :: n == NEW && made == 0 ->
     made = 1;
     promised[NEW] = MADE_WITH;
#ifdef BUG_NEW_NODE_VOTES
     votes_now = 1
#endif
  :: else
  fi
#else
  skip
#endif
}

inline note_votes(n) {
#ifdef REPLACE
  if :: n == NEW && log_end[NEW] >= voter_end -> votes_now = 1 :: else fi
#else
  skip
#endif
}

/* One request to replica i, which node n is, its durable effect and the content of its reply. */
inline seal(i, n) {
  make(n);
#ifndef BUG_NO_PROMISE
  promised[n] = epoch;
#endif
  last_epoch(n, y);
  voted = voted | (1 << i);
  if
  :: !COUNTS(i) /* it does not vote */
#ifdef BUG_SHORTEST_LOG
  :: COUNTS(i) && (votes == 0 || y < best_epoch || (y == best_epoch && log_end[n] < s)) ->
#else
#ifdef BUG_LENGTH_BEFORE_EPOCH
  :: COUNTS(i) && (votes == 0 || log_end[n] > s || (log_end[n] == s && y > best_epoch)) ->
#else
  :: COUNTS(i) && (votes == 0 || y > best_epoch || (y == best_epoch && log_end[n] > s)) ->
#endif
#endif
     best_epoch = y; s = log_end[n]; chosen = n; votes++
  :: else -> votes++
  fi;
  if :: votes == R -> best_epoch = 0; voted = 0 :: else fi;
  y = 0
}

inline copy_or_begin(i, n) {
  make(n);
  promised[n] = epoch;
  agreed_end(n, y);
  if
  :: y < s -> /* entries are missing: one of them */
     cut_to(n, y);
     ENTRY(n, y) = ENTRY(chosen, y);
     log_end[n] = y + 1
  :: else ->
#ifndef BUG_NO_TRUNCATION
     cut_to(n, s);
#endif
     START(n, epoch) = s;
     stored[i] = log_end[n] + 1;
#ifdef REPLACE
     if :: n == NEW && !votes_now -> voter_end = (begun >= ACKS -> sent : s) :: else fi;
#endif
     note_votes(n);
     begun++;
     if :: begun == ACKS -> finish_recovery() :: else fi
  fi;
  x = 0; y = 0
}

#ifdef REPLACE
/* A holder that writes hears of the change: what the old node has said counts for nothing from now on. */
inline follow() {
  sent = s; x = 0;
  do
  :: x < N -> if :: stored[x] > sent + 1 -> sent = stored[x] - 1 :: else fi; x++
  :: else -> break
  od;
  x = 0;
  view = 1;
  stored[N - 1] = 0
}
#endif

inline finish_recovery() {
  x = 0;
  do
  :: x < LEN ->
     if
     :: x < s ->
        assert(acknowledged[x] == 0 || acknowledged[x] == ENTRY(chosen, x)); /* QS1 */
        acknowledged[x] = ENTRY(chosen, x)
     :: else ->
        assert(epoch < recovered || acknowledged[x] == 0) /* QS1 */
     fi;
     x++
  :: else -> break
  od;
  if :: epoch > recovered -> recovered = epoch :: else fi;
  told = s
}

inline append(i, n) {
  ENTRY(n, log_end[n]) = epoch;
  log_end[n] = log_end[n] + 1;
  stored[i] = log_end[n] + 1;
  note_votes(n)
}

/* Replies are looked at: has one more entry a write quorum? */
inline acknowledge() {
  x = 0; y = 0;
  do
  :: x < N -> if :: stored[x] > told + 1 && COUNTS(x) && HERE(x) -> y++ :: else fi; x++
  :: else -> break
  od;
  if
  :: y >= ACKS && ALSO_WITHOUT_LAST ->
     assert(acknowledged[told] == 0 || acknowledged[told] == epoch); /* QS1 */
     assert(acknowledged[told] == epoch || recovered <= epoch);      /* QS2 */
     acknowledged[told] = epoch;
     told++
  :: else
  fi;
  x = 0; y = 0
}

#define SEALING(i) (votes < R && HERE(i) && (voted & (1 << (i))) == 0 && PROMISED(AT(i)) < epoch)
#ifdef BUG_NO_PROMISE
#define CHOSEN (votes >= R && promised[chosen] <= epoch)
#else
#define CHOSEN (votes >= R && promised[chosen] == epoch)
#endif
#define COPYING(i) (CHOSEN && HERE(i) && stored[i] == 0 && MAY_BEGIN(AT(i)))
#define WRITING(i) (begun >= ACKS && HERE(i) && stored[i] != 0 && promised[AT(i)] == epoch && log_end[AT(i)] < LEN)

/* What may happen next, in any order. */
proctype holder(byte epoch) {
  byte votes = 0, voted = 0;    /* count, one bit each */
  byte chosen = 0, best_epoch = 0;
  byte s = 0;                   /* end of the chosen log: where the epoch begins */
  byte begun = 0;               /* replicas */
  byte stored[N];               /* what a replica that has begun said is durable in it, plus 1 */
  byte told = 0;                /* acknowledged up to here */
  byte x = 0, y = 0;
#ifdef REPLACE
  bit view = 0;                 /* of the placement */
  byte sent = 0;                /* end of what was written when the new node came */
#ifdef BUG_PLACEMENT_BEFORE_EPOCH
  view = changed;
  d_step { given == epoch - 1 -> given = epoch };
#else
  d_step { given == epoch - 1 -> given = epoch };
  view = changed;
#endif
#endif
#ifdef REMOVE
  bit view = 0;                 /* of the placement: 1 is without the last replica */
  bit joint = 0;                /* acknowledges by both quorums */
  d_step { given == epoch - 1 -> given = epoch };
  view = (changed != 0);
#endif
  do
  :: d_step { SEALING(0) -> seal(0, AT(0)) }
  :: d_step { SEALING(1) -> seal(1, AT(1)) }
  :: d_step { SEALING(2) -> seal(2, AT(2)) }
#if N > 3
  :: d_step { SEALING(3) -> seal(3, AT(3)) }
  :: d_step { COPYING(3) -> copy_or_begin(3, AT(3)) }
  :: d_step { WRITING(3) -> append(3, AT(3)) }
#endif
  :: d_step { COPYING(0) -> copy_or_begin(0, AT(0)) }
  :: d_step { COPYING(1) -> copy_or_begin(1, AT(1)) }
  :: d_step { COPYING(2) -> copy_or_begin(2, AT(2)) }
  :: d_step { WRITING(0) -> append(0, AT(0)) }
  :: d_step { WRITING(1) -> append(1, AT(1)) }
  :: d_step { WRITING(2) -> append(2, AT(2)) }
  :: d_step { begun >= ACKS && told < LEN -> acknowledge() }
#ifdef REPLACE
  :: d_step { begun >= ACKS && view == 0 && changed == 1 -> follow() }
#endif
#ifdef REMOVE
  :: d_step { begun >= ACKS && view == 0 && joint == 0 && changed == 0 -> joint = 1 }
  :: d_step { begun >= ACKS && view == 0 && changed == 0 && MAY_LEAVE && STILL_HOLDER -> changed = epoch }
  :: d_step { begun >= ACKS && view == 0 && FOLLOWS -> view = 1; joint = 0 }
#endif
  od
}

#ifdef REPLACE
proctype change_placement() { changed = 1 }
#endif

init {
  byte i = 0;
  atomic {
    do
    :: i < NODES * (EPOCHS + 1) -> began[i] = NONE; i++
    :: else -> break
    od;
    i = 1;
    do
    :: i <= EPOCHS -> run holder(i); i++
    :: else -> break
    od;
#ifdef REPLACE
    run change_placement();
#endif
    i = 0
  }
}
