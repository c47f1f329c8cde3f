"""Training tasks: which gang starts now, on which nodes, who must go for it, and why the others wait.

Pure, as the whole room: the clock is an argument. The controller keeps a `GangCluster` and a `GangQueue` up
to date and calls `decide` with them; `decide_snapshot` builds both from a `Snapshot`:

    decide(cluster, queue, quotas, *, now, rules=GangRules(), kept=()) -> GangDecision
    decide_snapshot(snapshot) -> GangDecision
    evaluate(snapshot, waiting) -> Evaluation         # `validate`: would it start now, or why not
    GangCluster(nodes, cordoned=(), running=(), others=()): admit release hold release_other cordon replace
    GangQueue(waiting=()): add remove place plan_of
    QuotaTable(quotas)                                # rows of the catalogue
"""
