"""The copier that fits the device of the pools."""

from services.worker.kv.copier import Copier, CpuCopier
from services.worker.kv.cuda_copier import CudaCopier
from services.worker.kv.pools import KvPools


def make_copier(pools: KvPools) -> Copier:
    return CudaCopier(pools) if pools.device.is_cuda else CpuCopier(pools)
