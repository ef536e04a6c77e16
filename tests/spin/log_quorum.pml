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
 * -DBUG_... breaks one rule each; each must be found (tools/strata_cli/spin.py runs them).
 */

#define N 3 /* replicas; holder() names them one by one */
#ifndef W
#define W 2 /* write quorum */
#endif
#ifdef BUG_SMALL_RECOVERY_QUORUM
#define R (N - W)
#else
#define R (N - W + 1)
#endif
#ifndef EPOCHS
#define EPOCHS 3
#endif
#ifndef LEN
#define LEN 2 /* entries a log can hold */
#endif
#ifdef BUG_EARLY_ACKNOWLEDGEMENT
#define ACKS (W - 1)
#else
#define ACKS W
#endif

#define NONE 15
#define ENTRY(r, i) entry[(r) * LEN + (i)]
#define START(r, e) began[(r) * (EPOCHS + 1) + (e)]

/* Replicas; all of it durable. */
byte promised[N];
byte log_end[N];
byte entry[N * LEN];
byte began[N * (EPOCHS + 1)]; /* where each epoch of the replica's history began, or NONE */

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

/* One request to replica r, its durable effect and the content of its reply. */
inline seal(r) {
#ifndef BUG_NO_PROMISE
  promised[r] = epoch;
#endif
  last_epoch(r, y);
  if
#ifdef BUG_SHORTEST_LOG
  :: votes == 0 || y < best_epoch || (y == best_epoch && log_end[r] < s) ->
#else
#ifdef BUG_LENGTH_BEFORE_EPOCH
  :: votes == 0 || log_end[r] > s || (log_end[r] == s && y > best_epoch) ->
#else
  :: votes == 0 || y > best_epoch || (y == best_epoch && log_end[r] > s) ->
#endif
#endif
     best_epoch = y; s = log_end[r]; chosen = r
  :: else
  fi;
  votes++;
  voted = voted | (1 << r);
  if :: votes == R -> best_epoch = 0; voted = 0 :: else fi;
  y = 0
}

inline copy_or_begin(r) {
  promised[r] = epoch;
  agreed_end(r, y);
  if
  :: y < s -> /* entries are missing: one of them */
     cut_to(r, y);
     ENTRY(r, y) = ENTRY(chosen, y);
     log_end[r] = y + 1
  :: else ->
#ifndef BUG_NO_TRUNCATION
     cut_to(r, s);
#endif
     START(r, epoch) = s;
     stored[r] = log_end[r] + 1;
     begun++;
     if :: begun == ACKS -> finish_recovery() :: else fi
  fi;
  x = 0; y = 0
}

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

inline append(r) {
  ENTRY(r, log_end[r]) = epoch;
  log_end[r] = log_end[r] + 1;
  stored[r] = log_end[r] + 1
}

/* Replies are looked at: has one more entry a write quorum? */
inline acknowledge() {
  x = 0; y = 0;
  do
  :: x < N -> if :: stored[x] > told + 1 -> y++ :: else fi; x++
  :: else -> break
  od;
  if
  :: y >= ACKS ->
     assert(acknowledged[told] == 0 || acknowledged[told] == epoch); /* QS1 */
     assert(acknowledged[told] == epoch || recovered <= epoch);      /* QS2 */
     acknowledged[told] = epoch;
     told++
  :: else
  fi;
  x = 0; y = 0
}

#define SEALING(r) (votes < R && (voted & (1 << (r))) == 0 && promised[r] < epoch)
#ifdef BUG_NO_PROMISE
#define CHOSEN (votes == R && promised[chosen] <= epoch)
#else
#define CHOSEN (votes == R && promised[chosen] == epoch)
#endif
#define COPYING(r) (CHOSEN && stored[r] == 0 && promised[r] <= epoch)
#define WRITING(r) (begun >= ACKS && stored[r] != 0 && promised[r] == epoch && log_end[r] < LEN)

/* What may happen next, in any order. */
proctype holder(byte epoch) {
  byte votes = 0, voted = 0;    /* count, one bit each */
  byte chosen = 0, best_epoch = 0;
  byte s = 0;                   /* end of the chosen log: where the epoch begins */
  byte begun = 0;               /* replicas */
  byte stored[N];               /* what a replica that has begun said is durable in it, plus 1 */
  byte told = 0;                /* acknowledged up to here */
  byte x = 0, y = 0;
  do
  :: d_step { SEALING(0) -> seal(0) }
  :: d_step { SEALING(1) -> seal(1) }
  :: d_step { SEALING(2) -> seal(2) }
  :: d_step { COPYING(0) -> copy_or_begin(0) }
  :: d_step { COPYING(1) -> copy_or_begin(1) }
  :: d_step { COPYING(2) -> copy_or_begin(2) }
  :: d_step { WRITING(0) -> append(0) }
  :: d_step { WRITING(1) -> append(1) }
  :: d_step { WRITING(2) -> append(2) }
  :: d_step { begun >= ACKS && told < LEN -> acknowledge() }
  od
}

init {
  byte i = 0;
  atomic {
    do
    :: i < N * (EPOCHS + 1) -> began[i] = NONE; i++
    :: else -> break
    od;
    i = 1;
    do
    :: i <= EPOCHS -> run holder(i); i++
    :: else -> break
    od;
    i = 0
  }
}
