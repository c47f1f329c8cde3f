"""What to decide, as pure functions: no clock, no database, no side effect; time is an argument.

The way of a Trial through this room: `effective_resources` and `quota_faults` when it is submitted,
`place` when it may start, `make_board` and `answer` while it waits, `after_failed_start` and `outcome` when
it ends, `charge` for what it cost.
"""

from trainshed.policy.budget import (
    UNLIMITED,
    Account,
    ProjectLimits,
    RunningTrial,
    account,
    charge,
    gpu_hours_text,
    gpu_seconds,
    worst_case,
)
from trainshed.policy.cluster import Cluster, Held, Pool
from trainshed.policy.effective import (
    EffectiveResources,
    Fleet,
    RunnerDefaults,
    ServerPolicy,
    effective_resources,
    quota_faults,
)
from trainshed.policy.estimate import Forecast, forecast
from trainshed.policy.gpus import matching_models, nearest_models
from trainshed.policy.placement import Decision, PassRules, Placement, Project, place
from trainshed.policy.reasons import Board, WaitAnswer, answer, from_json, make_board, retry_answer, to_json
from trainshed.policy.reservations import Reservation
from trainshed.policy.retry import (
    TRIAL_ERRORS,
    Again,
    Ending,
    Outcome,
    RetryPolicy,
    TrialError,
    access_revoked,
    after_failed_pull,
    after_failed_start,
    content_revoked,
    outcome,
)
from trainshed.policy.waiting import Queue, TrialClass, rank
from trainshed.policy.words import WaitCode, WaitReason

__all__ = [
    "TRIAL_ERRORS",
    "UNLIMITED",
    "Account",
    "Again",
    "Board",
    "Cluster",
    "Decision",
    "EffectiveResources",
    "Ending",
    "Fleet",
    "Forecast",
    "Held",
    "Outcome",
    "PassRules",
    "Placement",
    "Pool",
    "Project",
    "ProjectLimits",
    "Queue",
    "Reservation",
    "RetryPolicy",
    "RunnerDefaults",
    "RunningTrial",
    "ServerPolicy",
    "TrialClass",
    "TrialError",
    "WaitAnswer",
    "WaitCode",
    "WaitReason",
    "access_revoked",
    "account",
    "after_failed_pull",
    "after_failed_start",
    "answer",
    "charge",
    "content_revoked",
    "effective_resources",
    "forecast",
    "from_json",
    "gpu_hours_text",
    "gpu_seconds",
    "make_board",
    "matching_models",
    "nearest_models",
    "outcome",
    "place",
    "quota_faults",
    "rank",
    "retry_answer",
    "to_json",
    "worst_case",
]
