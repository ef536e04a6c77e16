/* Waiting for a transaction of another server: src/clients/fusion (row_lock_client, tit_region, tit_reader) and
 * src/fusion/locks (row_locks).
 *
 * The owner runs transactions one after the other in the same slot of its table. A waiter has met one of them in
 * a row: it is registered with the memory node, adds to the word `waiters` of the slot, reads the slot, and sleeps
 * if the transaction is undecided. It may be impatient (timeout, KILL), which crosses whatever is under way. The
 * slot may be left to an older transaction (FC7): then the memory node tells the owner, who says that it has heard,
 * and the waiter looks once more. The owner may die in a transaction; then an adopter ends what it has left, and is
 * told by the memory node who is waited for. Messages of different servers overtake each other.
 *
 * Checked:
 *   FU26  Whoever sleeps for a transaction is woken once that has ended: when nothing moves any more, nobody sleeps.
 *   FC12  A turn that was given to who had given up is handed back.
 *
 * -DBUG_... breaks one rule each; each must be found (tools/strata_cli/spin.py runs them).
 */

#ifndef TRANSACTIONS
#define TRANSACTIONS 2 /* in the slot, one after the other */
#endif

#define ACTIVE 1
#define ENDED 2
#define YOUNGER 99

mtype = { wait, gone, note, noted_by_owner, ended, cancel, look, turn };

byte shown = 0;               /* the slot's sequence */
byte waiters = 0;             /* its word */
byte truth[TRANSACTIONS + 1]; /* what has become of each transaction */
byte met = 0;                 /* the transaction in the row */
byte noted = 0;               /* whom the owner was told to be waited for */
bool owner_dead = false;
bool over = false;            /* the waiter is through */

/* The memory node's. */
byte waited_for = 0;          /* zero: the waiter is not registered, or not any more */
bool granted = false;         /* it has the turn */

chan from_owner = [4] of { mtype, byte };
chan from_waiter = [4] of { mtype, byte };
chan to_owner = [3] of { byte };
chan to_waiter = [5] of { mtype };

inline known() { atomic { truth[trx] = ACTIVE; met = trx } }

inline publish() { truth[trx] = ENDED }

/* Either of the two that the bug takes away is enough here: that the owner takes another's slot for a waiter, or that
 * the waiter looks whose slot it is. */
#ifdef BUG_SLOT_IS_NOT_CHECKED
inline may_be_waited_for() { told = (waiters != 0 || noted == trx) }
#else
inline may_be_waited_for() { told = (waiters != 0 || shown != trx || noted == trx) }
#endif

active proctype Owner() {
  byte trx = 1;
  bool told;
  do
  :: trx <= TRANSACTIONS ->
     if
     :: shown = 0;
#ifdef BUG_WORD_IS_CLEARED_LATE
        shown = trx;
        known();
        waiters = 0
#else
        waiters = 0;
        shown = trx;
        known()
#endif
     :: known(); /* the slot is left to an older one; when that has ended a younger one may claim it */
        if
        :: shown = 0; waiters = 0; shown = YOUNGER
        :: true
        fi
     fi;
     if
     :: true -> owner_dead = true; break
     :: true
     fi;
#ifdef BUG_WORD_BEFORE_OUTCOME
     may_be_waited_for();
     publish();
#else
     publish();
     may_be_waited_for();
#endif
     if
     :: told -> from_owner!ended(trx)
     :: else
     fi;
     trx = trx + 1
  :: else -> break
  od
}

/* What the owner hears from the memory node, or the adopter once there is one. */
active proctype Hearer() {
  byte trx;
end:
  do
  :: to_owner?trx ->
#ifdef BUG_ANSWER_BEFORE_NOTING
     from_owner!noted_by_owner(trx);
     noted = trx
#else
     noted = trx;
     from_owner!noted_by_owner(trx)
#endif
  od
}

/* Ends what a dead owner has left; the table is closed by then. */
active proctype Adopter() {
  byte trx;
end:
  (owner_dead);
#ifndef BUG_ADOPTER_IS_NOT_TOLD
  if
  :: waited_for != 0 && !granted -> to_owner!waited_for
  :: else
  fi;
#endif
  trx = met;
  publish();
  if
  :: noted == trx -> from_owner!ended(trx)
  :: else
  fi
}

active proctype Node() {
  byte trx;
end:
  do
  :: from_waiter?wait(trx) -> waited_for = trx; to_waiter!look
  :: from_waiter?gone(trx) ->
     if
     :: waited_for == trx && !granted -> granted = true; to_waiter!turn
     :: else
     fi
  :: from_waiter?note(trx) -> to_owner!trx
  :: from_waiter?cancel(trx) ->
     waited_for = 0;
#ifndef BUG_CROSSING_TURN_IS_KEPT
     granted = false
#endif
  :: from_owner?ended(trx) ->
     if
     :: waited_for == trx && !granted -> granted = true; to_waiter!turn
     :: else
     fi
  :: from_owner?noted_by_owner(trx) ->
     if
     :: waited_for == trx && !granted -> to_waiter!look
     :: else
     fi
  od
}

active proctype Waiter() {
  byte trx, seen;
  bool held, announced = false, impatient;
  (met != 0);
  trx = met;
  if
  :: impatient = true
  :: impatient = false
  fi;
#ifdef BUG_LOOK_BEFORE_REGISTERING
  waiters = 1;
  held = (truth[trx] == ACTIVE);
#endif
  from_waiter!wait(trx);
  do
  :: to_waiter?turn -> break
  :: to_waiter?look ->
#ifdef BUG_LOOK_BEFORE_THE_WORD
     held = (truth[trx] == ACTIVE);
#endif
     seen = trx;
#ifndef BUG_LOOK_BEFORE_REGISTERING
     if
     :: announced -> skip /* its owner has said that it has heard */
     :: !announced && !owner_dead ->
        waiters = 1;
#ifndef BUG_SLOT_IS_NOT_CHECKED
        seen = shown
#endif
     :: !announced && owner_dead -> seen = 0
     fi;
#endif
#ifndef BUG_LOOK_BEFORE_THE_WORD
#ifndef BUG_LOOK_BEFORE_REGISTERING
     held = (truth[trx] == ACTIVE);
#endif
#endif
     if
     :: !held -> from_waiter!gone(trx)
     :: held && seen != trx -> from_waiter!note(trx)
     :: else
     fi;
     announced = true
  :: impatient -> from_waiter!cancel(trx); break
  od;
  over = true
}

/* Once nothing can happen any more. */
active proctype Monitor() {
  if
  :: timeout ->
     assert(over || met == 0);                /* FU26 */
     assert(waited_for != 0 || !granted)      /* FC12 */
  fi
}
