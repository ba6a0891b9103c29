#!/usr/bin/env bash
# The study of published peaks: its script gives a row for every published one, and where a figure
# must agree (sizes of llm.c's buffers, runs that are known to fit) it does. Exit 77: no python3.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
command -v python3 >/dev/null || exit 77
study=$TSR_SOURCE_DIR/experiments/published-peaks

checks=$((checks + 1))
TESSERA=$TESSERA "$study/run.sh" "$tmp" >"$out" 2>"$err" || complain "run.sh failed"
published=$(grep -cE '^(tt|llmc)' "$study/published.csv")
checks=$((checks + 1))
[ "$(grep -cE '^\| (tt|llmc)' "$tmp/peaks.md")" = "$published" ] || complain "not $published rows"
has "$tmp/peaks.md" "| llmc13 | parameters | 237 MiB | 237.4 | +0.2 %" \
    "| llmc13 | gradients | 237 MiB | 237.4 | +0.2 %" "| llmc13 | Adam m + v | 948 MiB | 949.7 | +0.2 %" \
    "on 2 ranks: falls by | 2 x | 2.00 |" "on 8 ranks: falls by | 8 x | 8.00 |" \
    "| tt043 | ran | yes | may fit, not all is known: " "| tt047 | ran | yes | fits: "

checks=$((checks + 1))
cmp -s "$study/peaks.md" "$tmp/peaks.md" || complain "peaks.md is not what run.sh writes today: run it and commit what it writes"

# What could not run does not fit; selective checkpointing is predicted to 1 %.
has "$tmp/peaks.md" "| tt045 | ran | yes | fits: " "| tt051 | ran | yes | fits: " \
    "| tt049 | ran | out of memory | does not fit: "
checks=$((checks + 1))
awk -F'|' '/^\| tt001/ { exit !($6 ~ /%/ && $6 + 0 > -1 && $6 + 0 < 1) }' "$tmp/peaks.md" ||
    complain "tt001 is more than 1 % off"

checks=$((checks + 1))
awk -F'|' '/^\| tt002/ { exit !($6 ~ /%/ && $6 + 0 > -3 && $6 + 0 < 3) }' "$tmp/peaks.md" ||
    complain "tt002 is more than 3 % off"

# What was measured lies between no and full checkpointing.
awk -F'[|;:]' '/^\| tt001/ { sub(/ GiB.*/, "", $4); low = $8 + 0; high = $10 + 0
    exit !(low < $4 + 0 && $4 + 0 < high) }' "$tmp/peaks.md" || complain "tt001 is outside of its bounds"
finish
