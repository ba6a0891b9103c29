#!/usr/bin/env bash
# `tessera trace`: calls of a scenario that no recording of PyTorch 2.11 has, by what they change
# (tests/player/events/README.md).
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

# scenario NAME CALLS [TRAIN [KIND]]: two blocks, the second of which has a layer that is not run.
scenario() {
    cat >"$tmp/$1.json" <<EOF
{"name": "$1", "kind": "${4:-train}", "torch": "2.15", "mesh": {"shape": [2], "dim_names": ["shard"]},
 "model": {"kind": "tree", "in_dim": 8, "out_dim": 8, "loss": "mse", "modules": [
  {"name": "a", "type": "linear", "in": 8, "out": 8, "bias": false},
  {"name": "b", "type": "seq", "run": ["x"], "children": [
   {"name": "x", "type": "linear", "in": 8, "out": 8, "bias": false},
   {"name": "y", "type": "linear", "in": 8, "out": 8, "bias": false}]},
  {"name": "c", "type": "linear", "in": 8, "out": 8, "bias": false}]},
 "wrap": [{"modules": ["a", "b", "c"], "api": "fully_shard"}, {"modules": [""], "api": "fully_shard"}],
 "calls": [$2],
 "train": {"iters": 2, "micro": 1, "batch": 2, "seq": 1, "optimizer": {"name": "sgd", "lr": 0.1}${3:+, $3}}}
EOF
    rm -f "$tmp/$1.out"
    "$TESSERA" trace "$tmp/$1.json" -o "$tmp/$1.out" >"$out" 2>"$err" ||
        [ "${4:-train}" = fails ] || complain "trace of $1"
    tr -d ' \n' <"$tmp/$1.out" 2>/dev/null | sed 's/{"e":/\n{"e":/g' >"$tmp/$1.events"
}

# counts NAME N PATTERN: N events of the run match.
counts() {
    checks=$((checks + 1))
    got=$(grep -c -e "$3" "$tmp/$1.events")
    [ "$got" = "$2" ] || complain "$1: $got events match $3, not $2"
}

call() { # FN MODULE ARGS [AT]
    printf '{"at": {"when": "%s"}, "fn": "%s", "module": "%s", "args": {%s}}' "${4:-after_wrap}" "$1" "$2" "$3"
}

scenario plain ''
counts plain 0 '"e":"grad_hook"'
counts plain 2 '"e":"reduce","g":"b","params":\["b.x.weight"\]'
counts plain 0 '"e":"reduce".*b.y.weight'
counts plain 0 '"dtype":"u8"'

# R175: b.y, which never runs, takes part.
scenario unused "$(call set_reduce_scatter_unused_params b '"value": true')"
counts unused 2 '"e":"reduce","g":"b","params":\["b.x.weight","b.y.weight"\]'

# R152: once per parameter and reduction.
scenario hook "$(call register_post_accumulate_grad_hook '' '"param": "c.*"')"
counts hook 2 '"e":"grad_hook","param":"c.weight"'
counts hook 2 '"e":"grad_hook"'

# R158: reductions do not wait for the one before.
waits() { # NAME: of the compute stream, before the last reduction of iteration 0 is issued
    last=$(grep '"e":"' "$tmp/$1.events" | grep -v '"at":' | grep -n '"e":"reduce","g":"a"' | head -n 1 | cut -d : -f 1)
    sed -n 's/.*"e":"wait_event","at":\([0-9]*\),"stream":"default".*/\1/p' "$tmp/$1.events" |
        awk -v last="$last" '$1 <= last' | wc -l
}
scenario inputs "$(call set_reduce_scatter_max_input_buffers '' '"value": 3')"
checks=$((checks + 1))
[ "$(waits inputs)" -lt "$(waits plain)" ] || complain "inputs: $(waits inputs) waits, $(waits plain) without"
scenario none "$(call set_reduce_scatter_max_input_buffers '' '"value": 0')" '' error
has "$tmp/none.out" ValueError "call set_reduce_scatter_max_input_buffers" "found 0; allowed: 1 to 16"

# R202: the end of backward waits for the call.
manual=$(call set_manual_backward_finalization '' '"value": true')
scenario manual "$manual, $(call finalize_backward '' '' after_backward)"
counts plain 8 '"e":"finalize_backward"'
counts manual 8 '"e":"finalize_backward"'
checks=$((checks + 1))
sed -n '/"e":"final_callback_end"/,$p' "$tmp/manual.events" | grep -q '"e":"finalize_backward"' ||
    complain "manual: the backward is finalized before its end"
scenario never "$manual"
counts never 0 '"e":"finalize_backward"'
scenario auto "$(call finalize_backward '' '' after_backward)" '' error
has "$tmp/auto.out" RuntimeError "not in manual mode"

# R201: a forward that nobody takes back leaves an order behind, unless it is reset.
abandoned='"schedule": ["F0"]'
scenario left '' "$abandoned"
counts left 1 '"e":"record_post_forward".*"index":0'
scenario reset "$(call reset_iter_state '' '' after_forward)" "$abandoned"
counts reset 2 '"e":"record_post_forward".*"index":0'

# An all-gather extension: bytes and a scale travel in place of the shard.
scenario bytes "$(call set_all_gather_extension '' '"param": "a.weight"')"
counts bytes 4 '"e":"all_gather","g":"a",.*"n_in":36,.*"dtype":"u8"'
counts plain 4 '"e":"all_gather","g":"a",.*"n_in":32,.*"dtype":"f32"'

# Rules of 2.15 need `torch`; others are refused.
sed 's/"2.15"/"2.13"/' "$tmp/plain.json" >"$tmp/version.json"
fails 2 version.json:1 torch: "found 2.13" "2.11, 2.15" -- trace "$tmp/version.json"

# A comm hook of the bucketed replicate: gradients travel in half precision, and come out near.
ddp=$TSR_SOURCE_DIR/tests/golden/scenarios/ddp-default-w2.json
mkdir -p "$tmp/golden/scenarios"
ln -s "$TSR_SOURCE_DIR/tests/golden/tensors" "$tmp/golden/tensors"
losses() { # HOOK: of all iterations
    sed "s/\"ddp\": {/\"ddp\": {\"comm_hook\": \"$1\", /" "$ddp" >"$tmp/golden/scenarios/$1.json"
    "$TESSERA" trace "$tmp/golden/scenarios/$1.json" --executor host -o "$tmp/$1.out" >"$out" 2>"$err" ||
        complain "comm_hook $1"
    tr -d ' \n' <"$tmp/$1.out" | sed 's/.*"loss":\(.*\),"loss_per_rank".*/\1/'
}
checks=$((checks + 2))
whole=$(losses allreduce)
half=$(losses bf16_compress)
[ -n "$half" ] && [ "$whole" != "$half" ] || complain "bf16_compress: losses $half, as without"
[ "$(printf %.5s "${whole#[[}")" = "$(printf %.5s "${half#[[}")" ] || complain "losses $whole, $half"
sed 's/"ddp": {/"ddp": {"comm_hook": "powersgd", /' "$ddp" >"$tmp/golden/scenarios/other.json"
fails 2 comm_hook: "found powersgd" "allreduce, fp16_compress, bf16_compress" -- \
    trace "$tmp/golden/scenarios/other.json"

# The older tensor-parallel extension (R241, R242, R248, R249), and metadata of state that moved.
cat >"$tmp/chunk.json" <<'EOF'
{"name": "chunk", "kind": "chunk", "cases": [
 {"fn": "flatten", "shape": [8, 6], "mesh": [2, 2], "tp_dim": 1},
 {"fn": "flatten", "shape": [8, 6], "mesh": [4], "tp_dim": null},
 {"fn": "pre_load", "shape": [8, 6], "mesh": [2, 2], "tp_dim": 0},
 {"fn": "move_to_host", "shape": [8], "world": 2}]}
EOF
works trace "$tmp/chunk.json"
tr -d ' \n' <"$out" >"$tmp/chunk.events"
has "$tmp/chunk.events" '"active":true' '"recorded":true,"flattened":[8,3],"requires_grad":true,"global":[8,6]' \
    '"stride":[6,1],"placements":[["shard",1]],"grad_wait":"current"' \
    '"active":false' '"recorded":false,"flattened":[8,6],"requires_grad":false' \
    '"rank":0,"size":[4,6],"local":[[0,0],[2,6]]' '"placements":["cpu","cuda:1"]' '"placements":["cuda:0","cpu"]'
finish
