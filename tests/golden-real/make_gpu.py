"""Makes kineto-gpu.json by hand: what torch.profiler's trace of an H100 would hold of two steps, with round times.

The fields are those of PyTorch's profiler: kernels (category "kernel") with "External id", "correlation", "stream" and
"device"; launches ("cuda_runtime") with "correlation"; operators ("cpu_op") with "Input Dims", "Input type", "Input Strides" and
"Concrete Inputs"; kernels of NCCL with "Collective name", "In msg nelems", "Out msg nelems", "Group size" and "dtype"."""
import json
import sys

events, ids = [], [0]
BF16 = "c10::BFloat16"


def strides(dims):
    out, n = [], 1
    for d in reversed(dims):
        out.insert(0, n)
        n *= d
    return out


def add(cat, name, ts, dur, **args):
    events.append({"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": 7, "ts": ts, "dur": dur, "args": args})


def call(ts, name, inputs, kernels, concrete=None, dtype=BF16):
    """An operator at `ts` us of the host, its launches 5 us apart and their kernels."""
    ids[0] += 1
    add("cpu_op", name, ts, 5 * len(kernels) + 2,
        **{"External id": ids[0], "Input Dims": [d for d, _ in inputs], "Input Strides": [s or strides(d) for d, s in inputs],
           "Input type": [dtype] * len(inputs), "Concrete Inputs": concrete or [""] * len(inputs)})
    for i, (kernel, us) in enumerate(kernels):
        correlation = 1000 + 10 * ids[0] + i
        add("cuda_runtime", "cudaLaunchKernel", ts + 5 * i, 4, **{"External id": ids[0], "correlation": correlation})
        add("kernel", kernel, ts + 100 + 50 * i, us, **{"External id": ids[0], "correlation": correlation, "device": 0, "stream": 7})


def collective(ts, name, kernel, n_in, n_out, us, ranks=8, dtype="BFloat16"):
    add("kernel", kernel, ts, us, **{"External id": 0, "device": 0, "stream": 20, "Collective name": name,
                                     "In msg nelems": n_in, "Out msg nelems": n_out, "Group size": ranks, "dtype": dtype})


t = lambda dims: (dims, [1, dims[0]])  # a transposed view
for step in range(2):
    at, slower = 10000 * step, 2 * step  # medians of two are their means
    call(at, "aten::mm", [([4096, 4096], None), t([4096, 4096])], [("nvjet_hsh_128x256", 200 + slower)])
    call(at + 5, "aten::mm", [([4096, 4096], None), ([4096, 4096], None)], [("nvjet_hsh_128x256", 210)])
    call(at + 10, "aten::mm", [t([4096, 4096]), ([4096, 4096], None)], [("nvjet_hsh_splitK", 190), ("splitKreduce_kernel", 30)])
    attention = [([1, 4096, 32, 128], None), ([1, 4096, 8, 128], None), ([1, 4096, 8, 128], None)] + [([], [])] * 5
    call(at + 20, "aten::_flash_attention_forward", attention, [("flash_fwd_kernel", 400)],
         [""] * 3 + ["", "", "4096", "4096", "0.", "True", "False"])
    call(at + 25, "aten::mul", [([4096, 4096], None), ([4096, 4096], None)], [("elementwise_kernel", 40)])
    call(at + 30, "aten::cumsum", [([4096, 4096], None)], [("scan_kernel", 30)])
    add("cuda_runtime", "cudaEventRecord", at + 50, 1, correlation=5)
    collective(at + 300, "_allgather_base", "ncclDevKernel_AllGather_RING_LL", 1 << 22, 1 << 25, 300)
    collective(at + 700, "_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum_f32", 1 << 25, 1 << 22, 600, dtype="Float")
    collective(at + 1400, "allreduce", "ncclDevKernel_AllReduce_Sum_f32", 1 << 20, 1 << 20, 90, ranks=64, dtype="Float")
json.dump({"schemaVersion": 1,
           "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85028765696,
                                 "computeMajor": 9, "computeMinor": 0, "numSms": 132}],
           "traceEvents": events}, open(sys.argv[1], "w"), indent=0)
