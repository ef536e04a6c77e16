/* A server that is fenced while others still read its table of transactions, and another that decides for
 * it: src/fusion/authority (FU4, FA3) and src/clients/fusion (FC8).
 *
 * The fenced server has left a prepared transaction in its table, which stays readable for ever: a mapping
 * notices nothing. The adopter commits it once every other server has confirmed that it has heard of the
 * fence, or has no lease. A server that hears of a fence closes the table before it confirms, and before it
 * uses the lease that came along. It believes a slot if, after reading it, it has a lease, and after that the
 * table is still open; otherwise it asks whoever decides. Leases run out at any moment.
 *
 * Checked:
 *   FS4  A view that was opened after the adopted commit was acknowledged sees it.
 *
 * -DBUG_... breaks one rule each; each must be found (tools/strata_cli/spin.py runs them).
 */

#ifndef SERVERS
#define SERVERS 1 /* besides those two; several of them do not meet */
#endif
#ifndef READS
#define READS 2
#endif

bool fenced;           /* a durable record says so */
bool committed;        /* by the adopter, and acknowledged */
bool granted[SERVERS]; /* the server's last lease has not ended, as the memory node knows it */
bool lease[SERVERS];   /* as the server knows it: from when it asked, so it ends earlier */
bool open[SERVERS];    /* the table of the fenced server, at each other */
bool confirmed[SERVERS];

#ifdef BUG_NOBODY_IS_ASKED
#define HEARD(s) true
#else
#define HEARD(s) (confirmed[s] || !granted[s])
#endif

init {
  byte i = 0;
  atomic {
    do
    :: i < SERVERS ->
       granted[i] = true; lease[i] = true; open[i] = true;
       run Reader(i); run Heart(i);
       i = i + 1
    :: else -> break
    od;
    run Adopter()
  }
}

proctype Adopter() {
  byte s = 0;
  fenced = true;
  do
  :: s < SERVERS -> HEARD(s); s = s + 1
  :: else -> break
  od;
  committed = true
}

/* Time passes: the server's end of its lease comes, and perhaps the memory node's, too. */
inline time_passes() {
  if
  :: true -> lease[me] = false
  :: true -> atomic { lease[me] = false; granted[me] = false }
  :: true
  fi
}

/* The heartbeats of a server. */
proctype Heart(byte me) {
  byte beats = 0;
  bool told, heard;
  do
  :: beats < 2 ->
     time_passes();
     atomic { /* the memory node answers; no fence is left out, whatever has been forgotten (FA3) */
       confirmed[me] = confirmed[me] || heard;
       told = fenced;
#ifdef BUG_THE_SILENT_ARE_FORGOTTEN
       if
       :: committed && !confirmed[me] -> told = false
       :: else
       fi;
#endif
       granted[me] = true
     };
     time_passes();
#ifdef BUG_LEASE_BEFORE_FENCE
     atomic { lease[me] = granted[me] };
     if :: told -> open[me] = false; heard = true :: else fi;
#else
     if :: told -> open[me] = false; heard = true :: else fi;
#ifdef BUG_LEASE_FROM_THE_REPLY
     lease[me] = true;
#else
     atomic { lease[me] = granted[me] };
#endif
#endif
     beats = beats + 1
  :: else -> break
  od
}

proctype Reader(byte me) {
  byte reads = 0;
  bool was_committed, read_open;
  do
  :: reads < READS ->
     was_committed = committed; /* the view begins */
     read_open = open[me];
     if
     :: read_open ->
        /* The slot says "prepared", now and for ever. */
#ifdef BUG_TABLE_BEFORE_LEASE
        if
        :: !open[me]
        :: open[me] ->
           if
           :: lease[me] -> assert(!was_committed)
           :: !lease[me]
           fi
        fi
#else
        if
        :: !lease[me]
        :: lease[me] ->
           if
#ifdef BUG_TABLE_IS_NOT_LOOKED_AT_AGAIN
           :: true -> assert(!was_committed) /* FS4 */
#else
           :: open[me] -> assert(!was_committed) /* FS4 */
           :: !open[me]
#endif
           fi
        fi
#endif
     :: !read_open /* whoever decides is asked */
     fi;
     reads = reads + 1
  :: else -> break
  od
}
