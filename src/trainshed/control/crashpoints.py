"""Named points between two side effects, at which a test may kill this process.

The controller must reach the same end from any of them (design section 3). The environment variable
``TRAINSHED_CRASH_AT`` names one point; the process then dies there by SIGKILL, as in a power cut. Without the
variable a point costs one look at the environment.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum

VARIABLE = "TRAINSHED_CRASH_AT"


class Point(StrEnum):
    """Every place where a crash is tried."""

    ACCEPT_BEFORE_COMMIT = "accept.before_commit"
    ACCEPT_AFTER_COMMIT = "accept.after_commit"
    STOP_BEFORE_COMMIT = "stop.before_commit"
    STOP_AFTER_COMMIT = "stop.after_commit"
    PLACE_BEFORE_COMMIT = "place.before_commit"
    PLACE_AFTER_COMMIT = "place.after_commit"
    PREPARE_AFTER_IMAGE = "prepare.after_image"
    PREPARE_AFTER_CONTENT = "prepare.after_content"
    LAUNCH_AFTER_ENGINE = "launch.after_engine"
    UNSTARTED_BEFORE_COMMIT = "unstarted.before_commit"
    UNSTARTED_AFTER_COMMIT = "unstarted.after_commit"
    RUNNING_BEFORE_COMMIT = "running.before_commit"
    RUNNING_AFTER_COMMIT = "running.after_commit"
    STOP_AFTER_ENGINE = "stop.after_engine"
    COLLECTING_BEFORE_COMMIT = "collecting.before_commit"
    COLLECTING_AFTER_COMMIT = "collecting.after_commit"
    COLLECT_AFTER_BLOB = "collect.after_blob"
    COLLECT_AFTER_FILES = "collect.after_files"
    FINISH_BEFORE_COMMIT = "finish.before_commit"
    FINISH_AFTER_COMMIT = "finish.after_commit"
    RELEASE_AFTER_ENGINE = "release.after_engine"
    RELEASE_BEFORE_COMMIT = "release.before_commit"
    RELEASE_AFTER_COMMIT = "release.after_commit"
    SWEEP_AFTER_ENGINE = "sweep.after_engine"
    RETIRE_AFTER_ENGINE = "retire.after_engine"
    RETIRE_AFTER_COMMIT = "retire.after_commit"
    GANG_PLACE_BEFORE_COMMIT = "gang.place_before_commit"
    GANG_PLACE_AFTER_COMMIT = "gang.place_after_commit"
    GANG_PREPARE_AFTER_CONTENT = "gang.prepare_after_content"
    GANG_MEET_AFTER_ENGINE = "gang.meet_after_engine"
    GANG_LAUNCH_AFTER_ENGINE = "gang.launch_after_engine"
    GANG_LOOK_BEFORE_COMMIT = "gang.look_before_commit"
    GANG_LOOK_AFTER_COMMIT = "gang.look_after_commit"
    GANG_GROW_BEFORE_COMMIT = "gang.grow_before_commit"
    GANG_GROW_AFTER_COMMIT = "gang.grow_after_commit"
    GANG_JOIN_AFTER_ENGINE = "gang.join_after_engine"
    GANG_JOIN_AFTER_LAUNCH = "gang.join_after_launch"
    GANG_LEAVE_AFTER_ENGINE = "gang.leave_after_engine"
    GANG_LEAVE_BEFORE_COMMIT = "gang.leave_before_commit"
    GANG_LEAVE_AFTER_COMMIT = "gang.leave_after_commit"
    GANG_NOTICE_BEFORE_COMMIT = "gang.notice_before_commit"
    GANG_NOTICE_AFTER_COMMIT = "gang.notice_after_commit"
    GANG_NOTICE_AFTER_ENGINE = "gang.notice_after_engine"
    GANG_END_BEFORE_COMMIT = "gang.end_before_commit"
    GANG_END_AFTER_COMMIT = "gang.end_after_commit"
    GANG_RELEASE_AFTER_ENGINE = "gang.release_after_engine"
    GANG_RELEASE_AFTER_CLEANUP = "gang.release_after_cleanup"
    GANG_RELEASE_BEFORE_COMMIT = "gang.release_before_commit"
    GANG_RELEASE_AFTER_COMMIT = "gang.release_after_commit"
    SCRIPT_ROUTE_BEFORE_COMMIT = "script.route_before_commit"
    SCRIPT_ROUTE_AFTER_COMMIT = "script.after_place_commit"
    SCRIPT_AFTER_BUNDLE = "script.during_bundle"
    SCRIPT_AFTER_DATA = "script.during_data_upload"
    SCRIPT_AFTER_SUBMIT = "script.after_submit_return"
    SCRIPT_AFTER_SUBMIT_COMMIT = "script.after_submit_commit"
    SCRIPT_WATCH_BEFORE_COMMIT = "script.watch_before_commit"
    SCRIPT_WATCH_AFTER_COMMIT = "script.after_running"
    SCRIPT_MID_CHECKPOINT = "script.mid_checkpoint"
    SCRIPT_AFTER_ASK = "script.after_checkpoint_asked"
    SCRIPT_AFTER_OVERRUN_STOP = "script.after_overrun_stop"
    SCRIPT_AFTER_APPROVE = "script.after_approve"
    SCRIPT_AFTER_CANCEL = "script.during_cancel"
    SCRIPT_BEFORE_FETCH = "script.before_fetch"
    SCRIPT_AFTER_FETCH = "script.after_fetch"
    SCRIPT_END_BEFORE_COMMIT = "script.end_before_commit"
    SCRIPT_END_AFTER_COMMIT = "script.end_after_commit"
    SCRIPT_AFTER_DELIVERY = "script.after_delivery"
    SCRIPT_RELEASE_AFTER_PROVIDER = "script.release_after_provider"
    GARBAGE_AFTER_LET_GO = "garbage.after_let_go"
    GARBAGE_AFTER_ROWS = "garbage.after_rows"
    GARBAGE_AFTER_MARK = "garbage.after_mark"
    GARBAGE_AFTER_REMOVE = "garbage.after_remove"
    GARBAGE_AFTER_FORGET = "garbage.after_forget"
    GARBAGE_AFTER_ADOPT = "garbage.after_adopt"


def reach(point: Point) -> None:
    """Die here if this point was chosen."""
    if point == os.environ.get(VARIABLE):
        os.kill(os.getpid(), signal.SIGKILL)
