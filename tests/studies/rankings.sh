#!/usr/bin/env bash
# Rankings that people know come out: experiments/findings/rankings/README.md tells which, from where, and
# what comes out by how much. The short form has the limiter at one number of GPUs, and at the batches where it decides.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
rankings=$TSR_SOURCE_DIR/experiments/findings/rankings

# holds NAME PYTHON [SET...]: NAME.yaml is compared; PYTHON is true of t["strategy@key=value"] (seconds a
# step, None if it does not fit) and m[...] (bytes reserved).
holds() {
    name=$1
    claim=$2
    shift 2
    for set; do
        set -- "$@" --set "$set"
        shift
    done
    works compare "$rankings/$name.yaml" --format csv "$@"
    checks=$((checks + 1))
    python3 - "$out" "$claim" <<'EOF' || complain "$name: not so: $claim"
import csv, sys
t, m = {}, {}
for row in csv.DictReader(line for line in open(sys.argv[1]) if not line.startswith("#")):
    name = row["strategy"]
    t[name] = float(row["step_time_s"]) if row["step_time_s"] else None
    m[name] = float(row["peak_reserved_bytes"]) if row["peak_reserved_bytes"] else None
sys.exit(0 if eval("(" + sys.argv[2] + ")") else 1)
EOF
}

# The faster the network, the better is full sharding; on slow adapters copies between nodes win, by
# nearly as much as they send less. There is one crossing.
holds hsdp-crossover '(lambda r: r == sorted(r) and r[0] < 0.95 and 1.25 < r[-1] < 1.5)(
    [t["fsdp@nic_bw=" + b] / t["hsdp@nic_bw=" + b] for b in "50e9 25e9 12.5e9 6.25e9 3.125e9".split()])'

# From a node to 64 of them full sharding loses some percent, and ever more from four on.
holds scaling-loss '(lambda s: s[2:] == sorted(s[2:]) and 1.015 < s[-1] / s[0] < 1.10)(
    [t["fsdp@world=%d" % w] for w in (8, 16, 32, 64, 128, 256, 512)])'

# Among many GPUs communication alone does that, too, if only a little.
! thorough || holds scaling-loss '1 < t["fsdp@world=256"] / t["fsdp@world=128"] < t["fsdp@world=512"] / t["fsdp@world=128"] < 1.03' \
    sim.calibration.straggler_share=0

# About +18 %: more at batch 1, less at batch 2, the same for every number of GPUs.
holds backward-prefetch '(lambda g: all(0.08 < x < 0.28 for x in g) and 0.13 < sum(g) / 4 < 0.23
    and abs(g[0] - g[2]) < 0.03 and abs(g[1] - g[3]) < 0.03 and g[0] > g[1])(
    [t["none@" + c] / t["prefetch@" + c] - 1 for c in (
    "world=128@batch=1", "world=128@batch=2", "world=512@batch=1", "world=512@batch=2")])'

# T5-11B gains by the limiter, and because of the allocator alone: on a card without an end it does not.
# The largest batch runs with the limiter only.
limits='{world: [32], batch: [8, 9]}'
! thorough || limits='{world: [16, 32], batch: [7, 8, 9]}'
holds limiter-t5 'all(t[c] / t[c.replace("free", "limited")] > 1.01 for c in t if c.startswith("free") and "batch=9" not in c)
    and t["limited@world=32@batch=9"] and t["free@world=32@batch=9"] is None' "sweeps=$limits"
! thorough || holds limiter-t5 'all(t["free@" + c] / t["limited@" + c] < 1.001 for c in (
    "world=16@batch=7", "world=16@batch=8", "world=32@batch=7", "world=32@batch=8"))' \
    allocator.limit=none

# DeepViT-8B has room: the limiter saves memory that is not needed, a third or more, and loses time (less than is known).
holds limiter-deepvit 'all(0.94 < t[f] / t[f.replace("free", "limited")] < 1 and
    m[f.replace("free", "limited")] < 2 / 3 * m[f] for f in t if f.startswith("free"))'

# Accumulation without reduction saves time for memory, and the more the slower the network is.
holds no-sync '1.0 < t["each@nic_bw=25e9"] / t["no-sync@nic_bw=25e9"] < 1.1
    and 1.3 < t["each@nic_bw=3.125e9"] / t["no-sync@nic_bw=3.125e9"] < 2
    and m["no-sync@nic_bw=25e9"] > m["each@nic_bw=25e9"]'
finish
