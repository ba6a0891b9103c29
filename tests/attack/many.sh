#!/usr/bin/env bash
# Many of everything: strategies in one comparison, ranks on one host as threads and as processes, days of goodput.
#
# Usage: many.sh [STRATEGIES [RANKS]]
# Environment: TESSERA, the program; TSR_SOURCE_DIR, the tree.
export TSR_SOURCE_DIR=${TSR_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
export TESSERA=${TESSERA:-$TSR_SOURCE_DIR/build/tessera}
# shellcheck source=tests/jobs/_faults.sh
. "$TSR_SOURCE_DIR/tests/jobs/_faults.sh"
strategies=${1:-60} ranks=${2:-48}
sed -i 's/^world: 2/world: 2\ncluster: dgx-h100-128/; /hsdp/d' "$job"

# Every strategy has its row, and is what it is alone.
{
    sed '/^strategies:/,$d' "$job"
    echo "strategies:"
    for ((i = 0; i < strategies; i++)); do
        echo "  s$i: {batch: $((1 + i % 7)), seq: $((16 + 16 * (i % 3)))}"
    done
} >"$tmp/many.yaml"
works compare "$tmp/many.yaml" --format csv
cp "$out" "$tmp/all.csv"
checks=$((checks + 2))
[ "$(tail -n +2 "$tmp/all.csv" | wc -l)" = "$strategies" ] || complain "$(wc -l <"$tmp/all.csv") lines for $strategies strategies"
last=s$((strategies - 1))
works compare "$tmp/many.yaml" --only $last --format csv
figures() { grep "^$last," "$1" | cut -d , -f 1-12; }
[ "$(figures "$out")" = "$(figures "$tmp/all.csv")" ] || complain "$last is not what it is alone"

# Ranks: the same losses either way.
two=(run "$job" --on host --strategy fsdp --set train.steps=2 --set train.schedule=constant --set world="$ranks" --timeout 600)
works "${two[@]}" --ranks "$ranks" --out "$tmp/threads"
works "${two[@]}" --nproc "$ranks" --out "$tmp/processes"
losses "$tmp/threads" >"$tmp/a"
losses "$tmp/processes" >"$tmp/b"
same "$tmp/a" "$tmp/b"
checks=$((checks + 1))
[ "$(wc -l <"$tmp/a")" = 2 ] || complain "$(wc -l <"$tmp/a") steps, not 2"

# A day of failures and restarts takes less than a second of a processor.
checks=$((checks + 1))
TIMEFORMAT='%U %S'
used=$({ time "$TESSERA" goodput "$TSR_SOURCE_DIR/experiments/flagship/h100-128.yaml" --strategy fsdp \
    --set goodput.days=1 >"$out" 2>"$err"; } 2>&1)
awk -v t="$used" 'BEGIN { split(t, f, " "); exit !(f[1] + f[2] < 1) }' || complain "a day of goodput took $used s"
echo "$strategies strategies, $ranks ranks, a day of goodput in $used s (user, system)"
finish
