"""The contents of a scheduler recording (see services.runtime.recording.lines)."""

from services.domain.protocol import Release, SampledToken
from services.runtime.recording.codec import Rules
from services.runtime.recording.lines import MachineFormat
from services.scheduler.machine.scheduler_events import Command, DropWorker, Emit, Event, Reject, Withdrawn
from services.scheduler.scheduler_config import SchedulerConfig

SCHEDULER_FORMAT = MachineFormat(
    name="scheduler",
    settings=SchedulerConfig,
    event=Event,
    command=Command,
    # The machine passes tokens on without reading them. The reason for dropping a worker may contain job ids. What a
    # refused client reads may be worded better in a later version, which decides the same.
    rules=Rules(
        left_out={
            (SampledToken, "token_id"): 0,
            (Emit, "token_id"): 0,
            (DropWorker, "reason"): "",
            (Reject, "message"): "",
        },
        last_words=frozenset({Release, Reject, Withdrawn}),
    ),
)
