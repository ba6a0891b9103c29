#!/usr/bin/env bash
# `tessera trace` of the kinds that are about layout only: mistakes in their scenarios.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

# tp NAME MESH STYLE WRAP: a tp_layout scenario.
tp() {
    cat >"$tmp/$1.json" <<EOF
{"name": "$1", "kind": "tp_layout", "mesh": {"shape": $2, "dim_names": ["dp", "tp"]},
 "model": {"kind": "tree", "tokens": 16, "modules": [
  {"name": "emb", "type": "embedding", "num": 16, "dim": 8}, {"name": "norm", "type": "rmsnorm", "dim": 8},
  {"name": "out", "type": "linear", "in": 8, "out": 10}]},
 "tp": [$3],
 "wrap": [{"modules": [""], "api": "fully_shard", $4}]}
EOF
}

dp='"mesh_dims": ["dp"]'
tp good '[2, 2]' '["out", "colwise"]' "$dp"
fails 2 "--out: found $tmp/none/x.json" "No such file or directory" -- trace "$tmp/good.json" -o "$tmp/none/x.json"
fails 2 "--out: found $tmp, " "Is a directory" -- trace "$tmp/good.json" -o "$tmp"
works trace "$tmp/good.json" -o "$tmp/x.json"
works trace "$tmp/good.json"
has "$out" '"strided_shard"' '"tp_placements"' '"runs"'
tp style '[2, 2]' '["out", "colwize"]' "$dp"
fails 2 style.json:5 tp: colwize "colwise | rowwise | sequence" -- trace "$tmp/style.json"
tp pair '[2, 2]' '"out"' "$dp"
fails 2 pair.json:5 tp: "MODULE PATTERN" -- trace "$tmp/pair.json"
tp norm '[2, 2]' '["norm", "rowwise"]' "$dp"
fails 2 RowwiseParallel norm RMSNorm Linear -- trace "$tmp/norm.json"
tp dim '[2, 2]' '["out", "colwise"]' '"mesh_dims": ["data"]'
fails 2 mesh data -- trace "$tmp/dim.json"
tp used '[2, 2]' '["out", "colwise"]' '"mesh_dims": ["tp"]'
fails 2 mesh "'tp'" "tensor parallelism" -- trace "$tmp/used.json"
tp uneven '[4, 2]' '["out", "rowwise"]' "$dp, \"shard_dim\": [[\"emb.weight\", 1], [\"out.weight\", 1]]"
works trace "$tmp/uneven.json"
tp uneven '[3, 2]' '["out", "rowwise"]' "$dp, \"shard_dim\": [[\"out.weight\", 1]]"
fails 2 "uneven sharding on dim 1" "[10, 4]" "world size: 3" -- trace "$tmp/uneven.json"
tp large '[65536, 4096]' '["out", "colwise"]' "$dp"
fails 2 large.json mesh 268435456 1048576 -- trace "$tmp/large.json"

# cases NAME KIND CASE: a scenario without a model.
cases() {
    printf '{"name": "%s", "kind": "%s", "cases": [%s]}\n' "$1" "$2" "$3" >"$tmp/$1.json"
}

cases fn chunk '{"fn": "chunk", "shape": [4], "world": 2}'
fails 2 fn.json:1 "found chunk" chunk_tensor_2d -- trace "$tmp/fn.json"
cases shape chunk '{"fn": "chunk_tensor", "shape": [-4], "world": 2}'
fails 2 shape.json:1 shape: "found -4" "0 to 2^60" -- trace "$tmp/shape.json"
cases world chunk '{"fn": "chunk_tensor", "shape": [4], "world": 0}'
fails 2 world.json:1 world: "found 0" -- trace "$tmp/world.json"
cases nodim chunk '{"fn": "chunk_tensor_2d", "shape": [4], "mesh": [2, 2], "tp_dim": 1}'
fails 2 nodim.json:1 tp_dim: "found 1" -- trace "$tmp/nodim.json"
cases plain chunk '{"fn": "chunk_tensor_2d", "shape": [4], "mesh": [2, 2], "tp_dim": null}'
fails 2 plain.json:1 "with tp_dim" -- trace "$tmp/plain.json"
cases line chunk '{"fn": "chunk_dtensor", "shape": [4], "mesh": [4], "tp_dim": null}'
works trace "$tmp/line.json"
has "$out" RuntimeError "at least 2D"
cases limits bucket '{"tensors": [{"shape": [4], "dtype": "f32"}], "limits": []}'
fails 2 limits.json:1 limits: "a list of" -- trace "$tmp/limits.json"
cases dtype bucket '{"tensors": [{"shape": [4], "dtype": "f7"}], "limits": [1]}'
fails 2 dtype.json:1 dtype: "found f7" -- trace "$tmp/dtype.json"
cases big bucket '{"tensors": [{"shape": [1152921504606846976, 16], "dtype": "f32"}], "limits": [1]}'
fails 2 big.json:1 "64 bits" -- trace "$tmp/big.json"
cases kind buckets ''
fails 2 kind: "found buckets" tp_layout chunk bucket -- trace "$tmp/kind.json"
finish
