"""Values of the machines' types for tests: arbitrary values, and runs of the real machines."""

from enum import Enum
from types import NoneType, UnionType
from typing import Any, NewType, Union, get_args, get_origin

from hypothesis import strategies as st

from services.domain.cost import CostProfile
from services.domain.ids import JobId
from services.runtime.recording.codec import Codec
from services.runtime.recording.lines import MachineFormat
from services.scheduler.scheduler_config import Charge, LengthPredictor, PolicyName, SchedulerConfig
from tests.builders.cost_profiles import flat_cost

JOB_IDS = tuple(JobId(name) for name in ("a/0", "a/1", 'quoted "one"/0', "käse/0", "\x00/0", "j0"))

PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63),
    float: st.floats(allow_nan=False),
    str: st.text(),
    bool: st.booleans(),
    NoneType: st.none(),
    JobId: st.sampled_from(JOB_IDS),
    CostProfile: st.builds(
        flat_cost,
        st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    ),
    SchedulerConfig: st.builds(
        SchedulerConfig,
        policy=st.sampled_from(PolicyName),
        max_batch=st.integers(1, 4096),
        max_batch_tokens=st.integers(4096, 2**40),
        prefill_chunk_tokens=st.none() | st.integers(1, 2**40),
        quantum_ratio=st.floats(min_value=1, exclude_min=True),
        starvation_limit_s=st.none() | st.floats(min_value=0),
        charge=st.sampled_from(Charge),
        length_predictor=st.sampled_from(LengthPredictor),
    ),
}


def values(hint: Any, machine: MachineFormat) -> st.SearchStrategy[Any]:
    """Any value of a type that a machine's codec knows; fields left out of recordings have the value that is read."""
    rules = machine.rules
    hint = rules.stands_for.get(hint, hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if isinstance(hint, NewType):
        return values(hint.__supertype__, machine)
    if get_origin(hint) is tuple:
        parts = get_args(hint)
        if parts[-1] is Ellipsis:
            return st.lists(values(parts[0], machine), max_size=3).map(tuple)
        return st.tuples(*(values(part, machine) for part in parts))
    if get_origin(hint) in (UnionType, Union):
        return st.one_of(*(values(member, machine) for member in get_args(hint)))
    if issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    fields = Codec(hint, rules).field_types(hint)
    given = {
        name: st.just(rules.left_out[hint, name]) if (hint, name) in rules.left_out else values(part, machine)
        for name, part in fields.items()
    }
    return st.builds(hint, **given)
