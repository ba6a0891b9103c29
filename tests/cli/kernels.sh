#!/usr/bin/env bash
# tessera kernels: measured kernels against the cost model. The tables of the simulator are those of
# the measured files, their points come out exactly, and what is left out is predicted well enough.
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
data=$TSR_SOURCE_DIR/experiments/validation/kernels

# summary WHICH KEY: of the JSON in $out
summary() {
    python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["summary"][sys.argv[2]][sys.argv[3]])' \
        "$out" "$1" "$2"
}

# below WHICH KEY LIMIT
below() {
    checks=$((checks + 1))
    value=$(summary "$1" "$2")
    awk -v a="$value" -v b="$3" 'BEGIN { exit !(a <= b) }' || complain "$file: $1 $2 is $value, above $3"
}

equal() {
    checks=$((checks + 1))
    value=$(summary "$1" "$2")
    [ "$value" = "$3" ] || complain "$file: $1 $2 is $value, not $3"
}

checks=$((checks + 1))
python3 "$data/tables.py" --check >"$out" 2>"$err" || complain "tables.py --check"

# measured points: exact; the same points, each without its own entry: the figures of the README
while read -r file points exact median p90; do
    works kernels "$data/$file" --format json
    equal in_table points "$points"
    below in_table max "$exact"
    works kernels "$data/$file" --format json --leave-one-out
    equal in_table points "$points"
    below in_table median "$median"
    below in_table p90 "$p90"
done <<END
gemm.csv 750 0.001 0.03 0.125
flash_attention.csv 200 0.015 0.01 0.05
attention_labels.csv 36 0.001 0.02 0.07
norms_h200.csv 86 0.015 0.06 0.28
END

# best shapes of other cards and other measurements of the same card
file=gemm.csv
works kernels "$data/gemm.csv" --format json
below other median 0.05
has "$out" "no device file for this card" "fp8 1024x9216x14336 batch 1"

# no table: shares of the bandwidth
file=cross_entropy.csv
works kernels "$data/cross_entropy.csv" --format json
equal other points 24
below other median 0.05

works kernels "$data/gemm.csv"
has "$out" "| 752 | bf16 1024x10240x5120 batch 1 | a100-sxm4-80g |" "points of the tables: 750" \
    "not modelled: "
works kernels "$data/norms_h200.csv" --format csv
has "$out" "line,kernel,device,status,predicted_us,measured_us,error,in_table"

# mistakes
printf 'a,b\n1,2\n' >"$tmp/other.csv"
fails 2 "other.csv: line 1" "columns of no known table" "m, n, k, tflops" -- kernels "$tmp/other.csv"
printf 'dtype,m,n,k,tflops,gpu\nbf16,0,2,3,4,H100\n' >"$tmp/zero.csv"
fails 2 "zero.csv: line 2: column m: found \"0\"" "a number from 1" -- kernels "$tmp/zero.csv"
printf 'kernel,pass,head_dim,seq_len,tflops,gpu\ncuDNN,up,64,512,4,H100\n' >"$tmp/pass.csv"
fails 2 "pass.csv: line 2: column pass: found \"up\"" "fwd, bwd or fwd+bwd" -- kernels "$tmp/pass.csv"
fails 2 "found xml" "md, csv or json" -- kernels "$data/gemm.csv" --format xml
fails 2 "nothing.csv" -- kernels "$tmp/nothing.csv"

# choices of an experiment change times, and only those that exist
flagship=$TSR_SOURCE_DIR/experiments/flagship/dgx-h100-8.yaml
step() {
    "$TESSERA" sim "$flagship" --strategy fsdp --format csv "$@" 2>"$err" | python3 -c \
        'import csv, sys; print(next(csv.DictReader(sys.stdin))["step_time_s"])'
}
checks=$((checks + 1))
slow=$(step --set sim.attention_kernel=flash1_triton)
auto=$(step)
fast=$(step --set sim.attention_kernel=flash3)
awk -v a="$slow" -v b="$auto" -v c="$fast" 'BEGIN { exit !(a > b && b > c && c > 0) }' ||
    complain "attention kernels: flash1_triton $slow, auto $auto, flash3 $fast"
fails 2 "sim.attention_kernel" "found flash3" "a100" -- sim "$flagship" --strategy fsdp \
    --set cluster=dgx-a100-16 --set world=8 --set sim.attention_kernel=flash3
fails 2 "sim.attention_kernel: found flash4" "flash1_triton" -- sim "$flagship" --strategy fsdp \
    --set sim.attention_kernel=flash4

finish
