# shellcheck shell=bash
# Sourced by the scripts about ranks that are processes, on the stand-in's GPUs (TESSERA_STANDIN). Brings
# tests/jobs/_faults.sh, whose run and start run on GPUs here.
TESSERA=${TESSERA_STANDIN:?the program with the stand-ins}
# shellcheck source=tests/jobs/_faults.sh
. "$TSR_SOURCE_DIR/tests/jobs/_faults.sh"
: "${tmp:?a folder of our own}" "${job:?}" "${out:?}" "${err:?}"
unset XDG_CACHE_HOME HOME # no plans of products are kept; --deterministic: none are timed
export TSR_STANDIN=gpus=4
words=(--on cuda --deterministic)

run() {
    "$TESSERA" run "$job" "${words[@]}" --strategy "${strategy:-fsdp}" "$@" </dev/null
}

start() {
    "$TESSERA" run "$job" "${words[@]}" --strategy fsdp "$@" >"$out" 2>"$err" </dev/null &
    started=$!
}

# What a run says that did not fail: which GPU it has, and what it did.
news='tessera: \(GPU \|going on behind\|saved after\|NCCL [0-9.]*: \)'

# by_hand N ARGUMENT...: N ranks as somebody starts them by hand, rank R with the words own[R] for its stand-in; what it said is
# in $tmp/err.R, its exit status in ends[R].
own=()
by_hand() {
    local n=$1 rank pids=()
    shift
    TSR_PORT=$((TSR_PORT + 1))
    ends=()
    for ((rank = 0; rank < n; rank++)); do
        TSR_RANK=$rank TSR_LOCAL_RANK=$rank TSR_SIZE=$n TSR_ADDR=127.0.0.1 TSR_TOKEN=by-hand \
            TSR_STANDIN=gpus=4${own[rank]:+,${own[rank]}} run --ranks "$n" "$@" >"$tmp/out.$rank" 2>"$tmp/all.$rank" &
        pids+=($!)
    done
    for ((rank = 0; rank < n; rank++)); do
        wait "${pids[rank]}"
        ends[rank]=$?
        grep -v "$news" "$tmp/all.$rank" >"$tmp/err.$rank"
    done
}

# ended_with RANK STATUS WORD...: one line of it has every WORD; no WORD: it says nothing.
ended_with() {
    local rank=$1 want=$2 file=$tmp/err.$1
    shift 2
    checks=$((checks + 1))
    [ "${ends[rank]}" = "$want" ] || complain "rank $rank: exit status ${ends[rank]}, not $want: $(head -n 1 "$file")"
    lines "$file" $(($# > 0)) "$@"
}
