-------------------------------- MODULE Move --------------------------------
(* How is a database moved while programs write to it?  Changed rows are     *)
(* noted, all rows are copied, the noted ones are copied again, writers are  *)
(* refused, the rest is copied, and the target opens.  Movers may be         *)
(* suspended at any step and replaced, and an operator may give up.          *)
(* README.md maps this to the code.                                          *)
EXTENDS Naturals

CONSTANTS Rows, Writers, Rule

ASSUME Rule \in {"ours", "note at once", "fence at once", "copy first", "forget by row", "rows before notes",
                 "no owner", "reopen first"}

Movers == {1, 2}
None == [r \in Rows |-> 0]

VARIABLES
    state,      \* of each writer's transaction: "new", "open", "ended"
    row,        \* that it changes
    noted,      \* whether its change will be noted
    source,     \* committed versions of the rows
    notes,      \* the noted changes, by their writers
    capture,    \* changes are noted
    fence,      \* writers are refused
    target,     \* versions in the target
    copied,     \* rows that the first pass has copied
    phase,      \* of the target: "receiving", "open", "closed"
    owner,      \* the mover that may write to the target
    step,       \* of each mover
    seen,       \* of each mover: the notes that it has read
    rows        \* of each mover: the rows that it has read

vars == <<state, row, noted, source, notes, capture, fence, target, copied, phase, owner, step, seen, rows>>

UnderWay == {w \in Writers : state[w] = "open"}
Changed(ns) == {row[w] : w \in ns}

Init ==
    /\ state = [w \in Writers |-> "new"] /\ noted = [w \in Writers |-> FALSE]
    /\ row \in [Writers -> Rows]
    /\ source = None /\ notes = {} /\ target = None
    /\ capture = FALSE /\ fence = FALSE /\ copied = {}
    /\ phase = "receiving" /\ owner = 1
    /\ step = [m \in Movers |-> IF m = 1 THEN "new" ELSE "absent"]
    /\ seen = [m \in Movers |-> {}] /\ rows = [m \in Movers |-> None]

(* ---- programs ---- *)

Write(w) ==
    /\ state[w] = "new" /\ ~fence
    /\ state' = [state EXCEPT ![w] = "open"]
    /\ noted' = [noted EXCEPT ![w] = capture]
    /\ UNCHANGED <<row, source, notes, capture, fence, target, copied, phase, owner, step, seen, rows>>

Commit(w) ==
    /\ state[w] = "open"
    /\ source' = [source EXCEPT ![row[w]] = @ + 1]
    /\ notes' = IF noted[w] THEN notes \cup {w} ELSE notes
    /\ state' = [state EXCEPT ![w] = "ended"]
    /\ UNCHANGED <<row, noted, capture, fence, target, copied, phase, owner, step, seen, rows>>

(* ---- movers ---- *)

Owns(m) == owner = m \/ Rule = "no owner"

(* Adding a trigger waits for the open transactions of the table.            *)
Capture(m) ==
    /\ step[m] = "new" /\ ~capture
    /\ UnderWay = {} \/ Rule = "note at once"
    /\ copied = Rows \/ Rule # "copy first"
    /\ capture' = TRUE
    /\ UNCHANGED <<state, row, noted, source, notes, fence, target, copied, phase, owner, step, seen, rows>>

Read(m) ==   \* the first pass: some rows, as they are now
    /\ step[m] = "new" /\ (capture \/ Rule = "copy first") /\ copied # Rows
    /\ rows' = [rows EXCEPT ![m] = source]
    /\ step' = [step EXCEPT ![m] = "read"]
    /\ UNCHANGED <<state, row, noted, source, notes, capture, fence, target, copied, phase, owner, seen>>

Store(m) ==
    /\ step[m] = "read"
    /\ step' = [step EXCEPT ![m] = "new"]
    /\ IF phase = "receiving" /\ Owns(m)
       THEN \E r \in Rows \ copied :
              /\ target' = [target EXCEPT ![r] = rows[m][r]]
              /\ copied' = copied \cup {r}
       ELSE UNCHANGED <<target, copied>>
    /\ UNCHANGED <<state, row, noted, source, notes, capture, fence, phase, owner, seen, rows>>

Follow(m) ==   \* read the notes, then the rows
    /\ step[m] = "new" /\ capture /\ copied = Rows /\ notes # {}
    /\ seen' = [seen EXCEPT ![m] = notes]
    /\ rows' = IF Rule = "rows before notes" THEN rows ELSE [rows EXCEPT ![m] = source]
    /\ step' = [step EXCEPT ![m] = "seen"]
    /\ UNCHANGED <<state, row, noted, source, notes, capture, fence, target, copied, phase, owner>>

Look(m) ==   \* the rows of the broken variant, which are older than the notes
    /\ Rule = "rows before notes" /\ step[m] = "new" /\ capture /\ copied = Rows
    /\ rows' = [rows EXCEPT ![m] = source]
    /\ UNCHANGED <<state, row, noted, source, notes, capture, fence, target, copied, phase, owner, step, seen>>

Apply(m) ==
    /\ step[m] = "seen"
    /\ IF phase = "receiving" /\ Owns(m)
       THEN /\ target' = [r \in Rows |-> IF r \in Changed(seen[m]) THEN rows[m][r] ELSE target[r]]
            /\ step' = [step EXCEPT ![m] = "applied"]
       ELSE /\ step' = [step EXCEPT ![m] = "new"]
            /\ UNCHANGED target
    /\ UNCHANGED <<state, row, noted, source, notes, capture, fence, copied, phase, owner, seen, rows>>

Forget(m) ==   \* the notes that were read, not those of later changes
    /\ step[m] = "applied"
    /\ notes' = IF Rule = "forget by row" THEN {w \in notes : row[w] \notin Changed(seen[m])} ELSE notes \ seen[m]
    /\ step' = [step EXCEPT ![m] = "new"]
    /\ UNCHANGED <<state, row, noted, source, capture, fence, target, copied, phase, owner, seen, rows>>

Fence(m) ==
    /\ step[m] = "new" /\ capture /\ copied = Rows /\ ~fence /\ phase = "receiving" /\ Owns(m)
    /\ UnderWay = {} \/ Rule = "fence at once"
    /\ fence' = TRUE
    /\ UNCHANGED <<state, row, noted, source, notes, capture, target, copied, phase, owner, step, seen, rows>>

Decide(m) ==   \* all is copied
    /\ step[m] = "new" /\ fence /\ copied = Rows /\ notes = {}
    /\ step' = [step EXCEPT ![m] = "decided"]
    /\ UNCHANGED <<state, row, noted, source, notes, capture, fence, target, copied, phase, owner, seen, rows>>

OpenTarget(m) ==
    /\ step[m] = "decided"
    /\ step' = [step EXCEPT ![m] = "done"]
    /\ phase' = IF phase = "receiving" /\ Owns(m) THEN "open" ELSE phase
    /\ UNCHANGED <<state, row, noted, source, notes, capture, fence, target, copied, owner, seen, rows>>

(* ---- an operator ---- *)

Resume ==   \* another mover continues; the first may still be there
    /\ step[2] = "absent" /\ phase = "receiving"
    /\ owner' = 2
    /\ step' = [step EXCEPT ![2] = "new"]
    /\ UNCHANGED <<state, row, noted, source, notes, capture, fence, target, copied, phase, seen, rows>>

Close ==   \* give up: first the target, for good
    /\ phase = "receiving" /\ Rule # "reopen first"
    /\ phase' = "closed"
    /\ UNCHANGED <<state, row, noted, source, notes, capture, fence, target, copied, owner, step, seen, rows>>

Reopen ==   \* then the source
    /\ phase = IF Rule = "reopen first" THEN "receiving" ELSE "closed"
    /\ fence
    /\ fence' = FALSE
    /\ UNCHANGED <<state, row, noted, source, notes, capture, target, copied, phase, owner, step, seen, rows>>

Next ==
    \/ \E w \in Writers : Write(w) \/ Commit(w)
    \/ \E m \in Movers :
         \/ Capture(m) \/ Read(m) \/ Store(m) \/ Follow(m) \/ Look(m) \/ Apply(m) \/ Forget(m)
         \/ Fence(m) \/ Decide(m) \/ OpenTarget(m)
    \/ Resume \/ Close \/ Reopen

Spec == Init /\ [][Next]_vars

(* When the target opens, writers are refused by the source, none is on its  *)
(* way, and every committed change has arrived.                              *)
Whole ==
    phase = "open" => fence /\ UnderWay = {} /\ target = source
=============================================================================
