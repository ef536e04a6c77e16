/* A slot of a server's table of transactions, as other servers read it without asking: src/clients/fusion
 * (tit_region, tit_reader), with the order of a commit in src/txn (T14) and the clock of the memory node.
 *
 * The owner runs transactions one after the other in the same slot: each is claimed, marked, gets its cts,
 * becomes durable, is shown as committed; or aborts. A reader takes a snapshot, then reads the slot's two
 * words one at a time, with anything in between, and decides what it sees of one transaction.
 *
 * Checked:
 *   FU7  What a view took for undecided or aborted does not commit within its snapshot.
 *   FU9  What a reader believes is what the transaction has come to: the cts of a committed one is its own.
 *   MW9  What a reader sees as committed is durable.
 *   FS3  A snapshot is not below a commit that was acknowledged before it was asked for.
 *
 * -DBUG_... breaks one rule each; each must be found (tools/strata_cli/spin.py runs them).
 */

#ifndef TRANSACTIONS
#define TRANSACTIONS 3 /* in the slot, one after the other */
#endif
#ifndef READS
#define READS 2 /* each of a view of its own; several readers do not meet */
#endif

#define ACTIVE 1
#define COMMITTING 3
#define COMMITTED 4
#define ABORTED 5

byte sequence;              /* the slot */
byte word_state, word_cts, word_tag;
byte clock = 1;             /* the largest cts given out */
byte acknowledged = 1;      /* the largest */
/* What is true, for the checks only. */
byte cts_of[TRANSACTIONS + 1];
bool durable[TRANSACTIONS + 1];
byte taken_at[TRANSACTIONS + 1]; /* the largest snapshot that did not see it */

inline set(state, cts) { /* one word */
  atomic { word_state = state; word_cts = cts }
}

inline mark() { set(COMMITTING, 0) }

inline fetch() {
  atomic {
    clock = clock + 1;
    cts_of[trx] = clock;
    assert(taken_at[trx] < cts_of[trx]) /* FU7 */
  }
}

active proctype Owner() {
  byte trx = 1;
  do
  :: trx <= TRANSACTIONS ->
     sequence = 0;
     atomic { word_state = ACTIVE; word_cts = 0; word_tag = trx };
     sequence = trx;
     if
     :: true ->
#ifdef BUG_MARK_AFTER_FETCH
        fetch();
        mark();
#else
        mark();
        fetch();
#endif
        set(COMMITTING, cts_of[trx]);
#ifdef BUG_SHOWN_BEFORE_DURABLE
        set(COMMITTED, cts_of[trx]);
        durable[trx] = true;
#else
        durable[trx] = true;
        set(COMMITTED, cts_of[trx]);
#endif
        acknowledged = cts_of[trx]
     :: true ->
        if
        :: true -> mark(); set(ACTIVE, 0) /* the commit came to nothing: no cts, or no log */
        :: true
        fi;
        set(ABORTED, 0)
     fi;
     trx = trx + 1
  :: else -> break
  od
}

active proctype Reader() {
  byte reads = 0;
  byte trx, snapshot, before, seen_sequence, seen_state, seen_cts, seen_tag;
  do
  :: reads < READS ->
     before = acknowledged;
     atomic { snapshot = clock; assert(snapshot >= before) }; /* FS3 */
     select(trx : 1 .. TRANSACTIONS);
     seen_sequence = sequence;
     atomic { seen_state = word_state; seen_cts = word_cts; seen_tag = word_tag };
     d_step {
       if
#ifdef BUG_NO_TAG
       :: seen_sequence == trx ->
#else
       :: seen_sequence == trx && seen_tag == trx ->
#endif
          if
          :: seen_state == COMMITTED ->
             assert(seen_cts == cts_of[trx]); /* FU9 */
             assert(seen_cts > snapshot || durable[trx]); /* MW9 */
             if
             :: seen_cts > snapshot && taken_at[trx] < snapshot -> taken_at[trx] = snapshot
             :: else
             fi
#ifdef BUG_NO_WAIT_FOR_AN_UNKNOWN_CTS
          :: seen_state == COMMITTING && seen_cts != 0 && seen_cts <= snapshot
#else
          :: seen_state == COMMITTING && seen_cts <= snapshot /* it waits for the outcome, at the owner */
#endif
          :: else -> /* undecided, aborted, or committing beyond the snapshot */
             assert(cts_of[trx] == 0 || cts_of[trx] > snapshot); /* FU7 */
             if
             :: taken_at[trx] < snapshot -> taken_at[trx] = snapshot
             :: else
             fi
          fi
       :: else /* the owner is asked */
       fi
     };
     reads = reads + 1
  :: else -> break
  od
}
