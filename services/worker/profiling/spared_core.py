"""Which iterations leave a core to the services, measured at the start of a worker that has one thread a core.

Theory of operation
-------------------
Threads that compute an iteration together wait for each other after every phase, many times a millisecond. So whoever
takes the core of one of them stops all. For each iteration the gateway, the scheduler, the KV manager and the worker's
own loop take together some milliseconds of processor time (SERVICES_S and ROW_S), which an iteration on all cores thus
takes longer than it does alone. With a thread less they run beside it. That pays if a thread less costs less than they
take, as it does for a few rows of a small model, which are read faster than they are talked about. Where an iteration
takes much longer than the services do, there is little to win, and a measurement that was disturbed could lose more: it
has all cores.
"""

from services.worker.kernels.cpu.native_decoder import NativeDecoder
from services.worker.profiling.cost_measurement import Measurer, doubling, typical_s

SERVICES_S, ROW_S = 0.002, 0.00008
"""Processor time that the services take for an iteration, and for each of its tokens: with a model of 30M parameters on
two cores 2.1 ms for one row, 7.3 ms for 64 (benchmarks.throughput, benchmarks.processor_time).
"""
CONTEXT_TOKENS = 64
RUNS = 5
MUCH_LONGER = 2.0
ANY_ROWS = 1 << 30


def choose_sparing_rows(model: NativeDecoder, measurer: Measurer, max_batch: int) -> int:
    """Sets the model's `sparing_rows` to the largest batch up to which leaving a core pays, and returns it. 0: never.
    Overwrites the device pool, then zeroes it again.
    """
    rows = 0
    measurer.warm_up()
    for batch in doubling(1, max_batch):
        decode = measurer.decode(batch, CONTEXT_TOKENS)
        all_s: list[float] = []
        fewer_s: list[float] = []
        for run in range(RUNS):
            for sparing_rows, seconds in ((0, all_s), (ANY_ROWS, fewer_s)):
                model.sparing_rows = sparing_rows
                seconds.append(measurer.run_s(decode(run)))
        services_s, alone_s = SERVICES_S + ROW_S * batch, typical_s(all_s)
        if alone_s > MUCH_LONGER * services_s or typical_s(fewer_s) > alone_s + services_s:
            break
        rows = batch
    measurer.clean()
    model.sparing_rows = rows
    return rows
