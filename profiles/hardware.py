"""Public figures of GPUs and models, each with its source, and the assumptions that the derived profiles rest on. Data
only.
"""

from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and its source."""

    value: float
    unit: str
    source: str


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of a server of eight, and its share of that server. Bandwidths are of one GPU."""

    name: str
    text: str
    memory: Figure
    bandwidth: Figure
    compute: Figure
    nvlink: Figure
    host_link: Figure
    host_memory: Figure


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder. `gated`: three matrices in a feed-forward layer rather than two; `tied`: one matrix for the embedding
    and the output.
    """

    name: str
    text: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    context: int
    gated: bool
    tied: bool
    source: str


@dataclass(frozen=True, slots=True)
class Layout:
    """A model on a group of GPUs: `tensor_parallel` in each of `stages`."""

    shape: Shape
    gpu: Gpu
    tensor_parallel: int = 1
    stages: int = 1


_A100_SHEET = "NVIDIA A100 Tensor Core GPU datasheet, SXM4"
_H100_SHEET = "NVIDIA H100 Tensor Core GPU datasheet, SXM5"
_H200_SHEET = "NVIDIA H200 Tensor Core GPU datasheet, SXM5"
_PCIE_4 = "PCI Express 4.0 x16: 31.5 GB/s by its line code, about 25 reached by large copies of pinned memory"
_PCIE_5 = "PCI Express 5.0 x16: 63 GB/s by its line code, about 50 reached by large copies of pinned memory"
_DGX = "an eighth of the 2 TB of an NVIDIA DGX H100 or H200"

A100_40GB = Gpu(
    name="a100-40gb",
    text="A100-40GB",
    memory=Figure(40 * GIB, "bytes", _A100_SHEET),
    bandwidth=Figure(1555e9, "bytes/s", _A100_SHEET),
    compute=Figure(312e12, "FLOP/s", f"{_A100_SHEET}: FP16 tensor cores, dense"),
    nvlink=Figure(300e9, "bytes/s", f"{_A100_SHEET}: 600 GB/s, half of it in each direction"),
    host_link=Figure(25e9, "bytes/s", _PCIE_4),
    host_memory=Figure(1152e9 / 8, "bytes", "FastServe v1: 1152 GB of host memory for eight GPUs"),
)
H100 = Gpu(
    name="h100",
    text="H100 SXM, 80 GB",
    memory=Figure(80 * GIB, "bytes", _H100_SHEET),
    bandwidth=Figure(3350e9, "bytes/s", _H100_SHEET),
    compute=Figure(989e12, "FLOP/s", f"{_H100_SHEET}: FP16 tensor cores, dense"),
    nvlink=Figure(450e9, "bytes/s", f"{_H100_SHEET}: 900 GB/s, half of it in each direction"),
    host_link=Figure(50e9, "bytes/s", _PCIE_5),
    host_memory=Figure(2e12 / 8, "bytes", _DGX),
)
H200 = Gpu(
    name="h200",
    text="H200 SXM, 141 GB",
    memory=Figure(141e9, "bytes", _H200_SHEET),
    bandwidth=Figure(4800e9, "bytes/s", _H200_SHEET),
    compute=Figure(989e12, "FLOP/s", f"{_H200_SHEET}: FP16 tensor cores, dense"),
    nvlink=Figure(450e9, "bytes/s", f"{_H200_SHEET}: 900 GB/s, half of it in each direction"),
    host_link=Figure(50e9, "bytes/s", _PCIE_5),
    host_memory=Figure(2e12 / 8, "bytes", _DGX),
)


def _opt(name: str, text: str, layers: int, hidden: int, heads: int) -> Shape:
    source = "Zhang et al., OPT: Open Pre-trained Transformer Language Models, 2022, table 1"
    return Shape(
        name, text, layers, hidden, heads, heads, 4 * hidden, 50272, 2048, gated=False, tied=True, source=source
    )


OPT_2_7B = _opt("opt-2.7b", "OPT-2.7B", 32, 2560, 32)
OPT_13B = _opt("opt-13b", "OPT-13B", 40, 5120, 40)
OPT_66B = _opt("opt-66b", "OPT-66B", 64, 9216, 72)
OPT_175B = _opt("opt-175b", "OPT-175B (the shape of GPT-175B)", 96, 12288, 96)
LLAMA_3_8B = Shape(
    name="llama-3-8b",
    text="Llama-3-8B",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    intermediate=14336,
    vocabulary=128256,
    context=8192,
    gated=True,
    tied=False,
    source="config.json of meta-llama/Meta-Llama-3-8B",
)

LAYOUTS = (
    Layout(OPT_2_7B, A100_40GB),
    Layout(OPT_13B, A100_40GB),
    Layout(OPT_66B, A100_40GB, tensor_parallel=4),
    Layout(OPT_175B, A100_40GB, tensor_parallel=8, stages=2),
    Layout(LLAMA_3_8B, A100_40GB),
    Layout(LLAMA_3_8B, H100),
    Layout(LLAMA_3_8B, H200),
)

VALUE_BYTES = Figure(2, "bytes", "FP16 for weights and KV, as in the papers")
COMPUTE_EFFICIENCY = Figure(
    0.5, "of the peak", "assumed: matrix products of a prefill reach about half of the datasheet"
)
BANDWIDTH_EFFICIENCY = Figure(0.8, "of the peak", "assumed: what streaming kernels reach of the datasheet's bandwidth")
LINK_EFFICIENCY = Figure(0.75, "of the peak", "assumed: what ring all-reduces reach of NVLink's bandwidth")
ALL_REDUCE_LATENCY = Figure(15e-6, "s", "assumed: a small all-reduce over NVLink")
LAYER_OVERHEAD = Figure(20e-6, "s", "assumed: norms, activations and launches of a layer, beside its matrix products")
ITERATION_OVERHEAD = Figure(1e-3, "s", "assumed: preparing a batch, sampling, and the way back to the host")
STAGE_BANDWIDTH = Figure(50e9, "bytes/s", "400 Gbit/s between the two servers of FastServe v1 (AWS p4d.24xlarge)")
STAGE_LATENCY = Figure(30e-6, "s", "assumed: a message between two servers")
MEMORY_SHARE = Figure(0.9, "of GPU memory", "for weights and KV; the rest is for activations, as vLLM's default has it")
HOST_SHARE = Figure(0.8, "of host memory", "for KV; assumed")
COPY_LATENCY = Figure(1e-5, "s", "assumed: the launch of a copy")
ASSUMPTIONS = {
    "value_bytes": VALUE_BYTES,
    "compute_efficiency": COMPUTE_EFFICIENCY,
    "bandwidth_efficiency": BANDWIDTH_EFFICIENCY,
    "link_efficiency": LINK_EFFICIENCY,
    "all_reduce_latency": ALL_REDUCE_LATENCY,
    "layer_overhead": LAYER_OVERHEAD,
    "iteration_overhead": ITERATION_OVERHEAD,
    "stage_bandwidth": STAGE_BANDWIDTH,
    "stage_latency": STAGE_LATENCY,
    "memory_share": MEMORY_SHARE,
    "host_share": HOST_SHARE,
    "copy_latency": COPY_LATENCY,
}
