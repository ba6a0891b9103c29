#!/usr/bin/env bash
# tessera plan: in random small spaces the search finds what brute force finds, with fewer emissions;
# an interrupted search shows what it has, and goes on. Another seed: plan_spaces.sh SEED [SPACES].
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
seed=${1:-7}
spaces=${2:-4}

small=$tmp/small.yaml
cat >"$small" <<'Y'
model: qwen2.5-7b
cluster: dgx-h100-2
world: 16
batch: 1
seq: 512
model.layers: 2
strategies: {fsdp: {}}
Y

# One space a line: two or three values each of three or four keys, and a budget.
awk -v seed="$seed" -v n="$spaces" 'BEGIN {
    srand(seed)
    m = split("batch: [1, 4, 16]|seq: [256, 1024]|checkpoint.every: [none, full, 2]|" \
        "mesh: [null, {replicate: 2}, {replicate: 8}]|reshard_after_forward: [null, false]|" \
        "wrap: [block, block_embed_head]|backward_prefetch: [0, 2]|offload: [none, cpu_pinned]|" \
        "tp: [1, 2]|dialect: [eager, fused]|precision.reduce: [f32, bf16]", keys, "|")
    for (i = 1; i <= n; i++) {
        line = keys[1] # sizes first: what is too large is left out by them
        delete used
        for (k = 0; k < 3;) {
            at = 2 + int(rand() * (m - 1))
            if (at in used) continue
            used[at] = 1; k++
            line = line ", " keys[at]
        }
        printf "%.1f {%s}\n", 14 + int(rand() * 40), line
    }
}' >"$tmp/spaces"
less=0
while read -r budget space; do
    works plan "$small" --format csv --top 3 --set "plan.space=$space" --set "plan.budget_gib=$budget"
    cp "$out" "$tmp/search.csv"
    cp "$err" "$tmp/search.note"
    works plan "$small" --format csv --top 3 --set "plan.space=$space" --set "plan.budget_gib=$budget" \
        --exhaustive
    cmp "$tmp/search.csv" "$out" >/dev/null || complain "seed $seed: $budget GiB, $space: not what brute force finds"
    emitted() { sed -n 's/.*: \([0-9]*\) emitted.*/\1/p' "$1"; }
    [ "$(emitted "$tmp/search.note")" -lt "$(emitted "$err")" ] && less=$((less + 1))
done <"$tmp/spaces"
[ $less -ge $((spaces / 2)) ] || complain "in $less of $spaces spaces something was left out"

# ---- interrupted --------------------------------------------------------------------------------
space='plan.space={batch: [1, 2, 4, 8], checkpoint.every: [none, full, 2, selective_op], mesh: [null, {replicate: 2}, {replicate: 4}], wrap: [block, block_embed_head, root]}'
works plan "$small" --format csv --set "$space"
cp "$out" "$tmp/whole.csv"
# leave SIGNAL NUMBER: a search that the signal interrupts in $tmp/left.
leave() {
    checks=$((checks + 1))
    rm -rf "$tmp/left"
    env "--default-signal=$1" "$TESSERA" plan "$small" --format csv --set "$space" --jobs 1 --out "$tmp/left" >"$out" 2>"$err" &
    pid=$!
    # It asks for the interruption before its first child.
    until [ -n "$(cat "/proc/$pid/task/$pid/children" 2>/dev/null)" ] || ! kill -0 "$pid" 2>/dev/null; do
        sleep 0.01
    done
    kill "-$1" "$pid"
    wait "$pid"
    got=$?
    [ "$got" = $((128 + $2)) ] || complain "a search interrupted by $1: exit status $got, not $((128 + $2))"
    has "$out" "schema_version,rank,settings"
    has "$err" "interrupted; --resume goes on"
    [ -s "$tmp/left/plan.resume" ] || complain "$1: plan.resume is missing"
}
leave TERM 15
leave HUP 1
leave INT 2
fails 2 "plan.resume" "another space" -- plan "$small" --set "$space" --set batch=2 --out "$tmp/left" --resume
# One bit is enough: no damaged figure is taken for one that was computed. (Of the sum, where no
# configuration was through yet.)
mkdir "$tmp/hurt"
python3 -c 'import sys; b = bytearray(open(sys.argv[1], "rb").read()); b[max(i for i, c in enumerate(b) if chr(c).isdigit())] ^= 1; open(sys.argv[2], "wb").write(b)' \
    "$tmp/left/plan.resume" "$tmp/hurt/plan.resume"
fails 2 "plan.resume: is no search that this program has left" -- plan "$small" --set "$space" --out "$tmp/hurt" --resume
works plan "$small" --format csv --set "$space" --out "$tmp/left" --resume
same "$tmp/whole.csv" "$out"
[ ! -e "$tmp/left/plan.resume" ] || complain "plan.resume is left after the end"
fails 2 "plan.resume" -- plan "$small" --out "$tmp/left" --resume
fails 2 "--resume without --out" -- plan "$small" --resume
finish
