--------------------------- MODULE Announcements ---------------------------
(* When is a new job announced?  Producers insert jobs and look whether      *)
(* anything awaits their queue; a worker that runs out of jobs takes the     *)
(* lock that says so, and goes to sleep.  README.md maps this to the code.   *)
EXTENDS Naturals, FiniteSets

CONSTANTS Producers, Rule

ASSUME Rule \in {"ours", "no look", "claim before lock", "look before insert", "snapshot only"}

VARIABLES
    state,      \* of each producer's transaction
    xid,        \* its id, in the order in which they were given out; 0 before
    announces,  \* it saw the lock, and announces its job when it commits
    nextXid,
    lock,       \* held by the worker: new jobs are awaited
    worker,     \* "busy": claims anyway. "locked", "noted": on its way to sleep. "asleep"
    earlier,    \* transactions under way when the lock was taken, not ended yet
    notified,   \* a notification that the worker has not reacted to
    claimed

vars == <<state, xid, announces, nextXid, lock, worker, earlier, notified, claimed>>

Committed == {p \in Producers : state[p] = "committed"}
UnderWay == {p \in Producers : state[p] \in {"inserted", "looked"}}

Init ==
    /\ state = [p \in Producers |-> "new"]
    /\ xid = [p \in Producers |-> 0]
    /\ announces = [p \in Producers |-> FALSE]
    /\ nextXid = 1
    /\ lock = FALSE
    /\ worker = "busy"
    /\ earlier = {}
    /\ notified = FALSE
    /\ claimed = {}

(* ---- a producer: insert, look at the lock, commit ---- *)

Insert(p) ==
    /\ state[p] = "new"
    /\ state' = [state EXCEPT ![p] = IF Rule = "look before insert" THEN "looked" ELSE "inserted"]
    /\ xid' = [xid EXCEPT ![p] = nextXid]
    /\ nextXid' = nextXid + 1
    /\ UNCHANGED <<announces, lock, worker, earlier, notified, claimed>>

Look(p) ==
    /\ state[p] = IF Rule = "look before insert" THEN "new" ELSE "inserted"
    /\ announces' = [announces EXCEPT ![p] = lock]
    /\ state' = [state EXCEPT ![p] = IF Rule = "look before insert" THEN "new" ELSE "looked"]
    /\ UNCHANGED <<xid, nextXid, lock, worker, earlier, notified, claimed>>

Commit(p) ==
    /\ state[p] = "looked"
    /\ state' = [state EXCEPT ![p] = "committed"]
    /\ notified' = (notified \/ announces[p])
    /\ UNCHANGED <<xid, announces, nextXid, lock, worker, earlier, claimed>>

(* ---- the worker ---- *)

Claim ==
    /\ worker = "busy"
    /\ claimed' = Committed
    /\ UNCHANGED <<state, xid, announces, nextXid, lock, worker, earlier, notified>>

Lock ==
    /\ worker = "busy"
    /\ lock' = TRUE
    /\ worker' = "locked"
    /\ claimed' = IF Rule = "claim before lock" THEN Committed ELSE claimed
    /\ UNCHANGED <<state, xid, announces, nextXid, earlier, notified>>

(* A snapshot lists transactions up to the last one that has ended.          *)
LastEnded ==
    LET ended == {xid[p] : p \in Committed}
    IN IF ended = {} THEN 0 ELSE CHOOSE x \in ended : \A y \in ended : y <= x

Note ==
    /\ worker = "locked"
    /\ earlier' = IF Rule = "no look" THEN {}
                  ELSE IF Rule = "snapshot only" THEN {p \in UnderWay : xid[p] <= LastEnded}
                  ELSE UnderWay
    /\ worker' = "noted"
    /\ UNCHANGED <<state, xid, announces, nextXid, lock, notified, claimed>>

Sleep ==
    /\ worker = "noted"
    /\ claimed' = IF Rule = "claim before lock" THEN claimed ELSE Committed
    /\ worker' = "asleep"
    /\ UNCHANGED <<state, xid, announces, nextXid, lock, earlier, notified>>

Ended == earlier \ UnderWay

LookAgain ==
    /\ worker = "asleep"
    /\ Ended # {}
    /\ earlier' = earlier \ Ended
    /\ notified' = TRUE
    /\ UNCHANGED <<state, xid, announces, nextXid, lock, worker, claimed>>

React ==
    /\ worker = "asleep"
    /\ notified
    /\ notified' = FALSE
    /\ claimed' = Committed
    /\ UNCHANGED <<state, xid, announces, nextXid, lock, worker, earlier>>

Unlock ==
    /\ worker = "asleep"
    /\ lock' = FALSE
    /\ worker' = "busy"
    /\ earlier' = {}
    /\ UNCHANGED <<state, xid, announces, nextXid, notified, claimed>>

Next ==
    \/ \E p \in Producers : Insert(p) \/ Look(p) \/ Commit(p)
    \/ Claim \/ Lock \/ Note \/ Sleep \/ LookAgain \/ React \/ Unlock

Spec == Init /\ [][Next]_vars

(* A worker that sleeps, and that nothing will wake, has missed no job.      *)
NoneMissed ==
    (worker = "asleep" /\ ~notified /\ Ended = {}) => Committed \subseteq claimed
=============================================================================
