#!/usr/bin/env bash
# Folding whole jobs, with their copies to and from the host: the same times as every rank by
# itself, from a few representatives.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

cat >"$tmp/e.yaml" <<'Y'
model: gpt2
cluster: dgx-h100-superpod-su
world: 64
batch: 1
seq: 256
mesh: {replicate: 4, shard: 16}
strategies: {hsdp: {}}
Y

# number KEY FILE: the value of a key of the first row
number() {
    sed -n 's/^ *"'"$1"'": \([-0-9.e+]*\),*$/\1/p' "$2" | head -n 1
}

# same WORD LIMIT SETS...: folded and literal step times agree; at most LIMIT ranks are simulated
same() {
    what=$1
    limit=$2
    shift 2
    works compare "$tmp/e.yaml" --format json "$@"
    cp "$out" "$tmp/folded"
    works compare "$tmp/e.yaml" --format json "$@" --set sim.fold=false
    ranks=$(number simulated_ranks "$tmp/folded")
    [ "$ranks" -le "$limit" ] || complain "$what: $ranks ranks are simulated, more than $limit"
    [ "$(number simulated_ranks "$out")" = 64 ] || complain "$what: unfolded is not 64 ranks"
    awk -v a="$(number step_time_s "$tmp/folded")" -v b="$(number step_time_s "$out")" \
        'BEGIN { d = (a - b) / b; exit !(b > 0 && d < 2e-12 && d > -2e-12) }' ||
        complain "$what: $(number step_time_s "$tmp/folded") s folded, $(number step_time_s "$out") s literally"
}
same "uneven shards" 3
same straggler 20 --set sim.slow_rank=21 --set sim.slow_factor=1.3
same "slow first rank" 20 --set sim.slow_rank=0 --set sim.slow_factor=3
finish
