#!/usr/bin/env bash
# A few rounds of strangers.py: jobs at whose doors strangers knock end as undisturbed ones. TSR_SECONDS sets
# for how long (8; in the short form 3).
# shellcheck source=tests/jobs/_faults.sh
. "$TSR_SOURCE_DIR/tests/jobs/_faults.sh"
: "${tmp:?a folder of our own}"
command -v python3 >/dev/null || {
    echo "skipped: no python3"
    exit 77
}
seconds=3
[ -z "${TSR_THOROUGH:-}" ] || seconds=8
checks=$((checks + 1))
python3 "$TSR_SOURCE_DIR/tests/world/strangers.py" "$TESSERA" "$tmp" --seconds "${TSR_SECONDS:-$seconds}" \
    --seed "${TSR_SEED:-1}" || complain "strangers disturb a job"
finish
