"""The contents of a KV manager recording (see services.runtime.recording.lines)."""

from services.domain.protocol import ArrivedJob, Release
from services.kvmanager.machine.kv_manager_events import Command, Event, KvWorkerLost
from services.kvmanager.policies.defer import Defer
from services.kvmanager.policies.kv_config import KvConfig
from services.kvmanager.policies.kv_policy import KvPolicy
from services.kvmanager.policies.on_demand import OnDemand
from services.kvmanager.policies.proactive import Proactive
from services.runtime.recording.codec import Rules
from services.runtime.recording.lines import MachineFormat

KV_MANAGER_FORMAT = MachineFormat(
    name="kvmanager",
    settings=KvConfig,
    event=Event,
    command=Command,
    rules=Rules(
        stands_for={KvPolicy: Defer | OnDemand | Proactive},
        last_words=frozenset({Release}),
        # One turn here may read two turns of the scheduler, in which a job is released and its id is used again.
        first_words=frozenset({ArrivedJob}),
        written_as={KvWorkerLost: "WorkerLost"},
    ),
)
