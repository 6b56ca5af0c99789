"""Makes the policy that a configuration names."""

from typing import assert_never

from services.scheduler.policies.batch_limit import BatchLimit
from services.scheduler.policies.fcfs import Fcfs
from services.scheduler.policies.fixed_priority import FixedPriority
from services.scheduler.policies.gittins import Gittins
from services.scheduler.policies.length_classes import KeyedClasses, LengthClasses
from services.scheduler.policies.length_prediction import OnlineClasses
from services.scheduler.policies.mlfq import Mlfq
from services.scheduler.policies.scheduling_policy import SchedulingPolicy
from services.scheduler.policies.srpt import Srpt
from services.scheduler.policies.static import Static
from services.scheduler.scheduler_config import LengthPredictor, PolicyName, SchedulerConfig


def make_policy(config: SchedulerConfig, batch: BatchLimit) -> SchedulingPolicy:
    match config.policy:
        case PolicyName.GITTINS:
            return Gittins(batch, make_length_classes(config.length_predictor))
        case PolicyName.FCFS:
            return Fcfs()
        case PolicyName.FIXED_PRIORITY:
            return FixedPriority()
        case PolicyName.SRPT:
            return Srpt()
        case PolicyName.STATIC:
            return Static(batch)
        case PolicyName.MLFQ | PolicyName.MLFQ_KILL | PolicyName.SKIP_JOIN_MLFQ as name:
            return Mlfq(
                quantum_ratio=config.quantum_ratio,
                demotion_levels=config.demotion_levels,
                skip_join=name is PolicyName.SKIP_JOIN_MLFQ,
                kill=name is PolicyName.MLFQ_KILL,
            )
        case unreachable:
            assert_never(unreachable)


def make_length_classes(predictor: LengthPredictor) -> LengthClasses:
    match predictor:
        case LengthPredictor.OFF:
            return KeyedClasses()
        case LengthPredictor.ONLINE:
            return OnlineClasses()
        case unreachable:
            assert_never(unreachable)
