#!/usr/bin/env bash
# `tessera memory`: what it reads and writes, every kind of mistake, and a device that is too small.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
golden=$TSR_SOURCE_DIR/tests/golden-memory/tiny-base.json

config='"family":"llama","hidden_size":256,"intermediate_size":688,"num_hidden_layers":2,"num_attention_heads":8,"num_key_value_heads":4,"vocab_size":1000,"max_position_embeddings":512'
plain='"mesh":[8]'
input=$tmp/s.json
# scenario KEYS [KEYS]: keys of the scenario, and of its model_config; the later of two counts.
scenario() {
    printf '{"model_config":{%s}%s}\n' "${2:-$config}" "${1:+,$1}" >"$input"
}
# model KEY VALUE: the model with another value.
model() {
    scenario "$plain" "$(printf '%s' "$config" | sed "s/\"$1\":[^,]*/\"$1\":$2/")"
}
# wrong KEY FOUND ALLOWED: the one line about $input.
wrong() {
    fails 2 "$input: key \"$1\": found $2; allowed: $3" -- memory "$input" -o "$tmp/none"
    [ ! -e "$tmp/none" ] || complain "a result in spite of a mistake"
}

# ---- what it reads and writes --------------------------------------------------------------------

works memory --help
has "$out" "SCENARIO.json [-o RESULT.json]" "--timeline" "Exit status: 3" "would have fitted"
works help memory
has "$out" "--timeline" "--out FILE"
if grep -q "DIR" "$out"; then complain "the result is no folder"; fi
works help trace
has "$out" "--out FILE"
works memory "$golden"
cp "$out" "$tmp/whole"
has "$tmp/whole" '"name":"tiny-base"' '"groups":[' '"allocator":{' '"categories":{' '"snapshot_columns":[' '"snapshots":[' '"scenario":{'
[ -s "$err" ] && complain "notes on stderr"
works memory "$golden" -o "$tmp/result.json" --timeline "$tmp/line.json"
[ -s "$out" ] && complain "the result on stdout, too"
same "$tmp/result.json" "$tmp/whole"
has "$tmp/line.json" '"tables":{' '"events":['
works memory "$golden" --out="$tmp/again.json"
same "$tmp/again.json" "$tmp/whole"
[ "$(find "$tmp" -name '*.tmp-*' | wc -l)" = 0 ] || complain "temporary files are left"
# A scenario alone: the same figures as in a recording. The key is the last of the golden file.
sed -n '/"scenario"/,/^ *}/p' "$golden" | tr -d '\n' | sed 's/^ *"scenario": *//; s/}, *"num_params.*/}/; s/}} *,.*/}}/; s/, *$//' >"$tmp/bare.json"
works memory "$tmp/bare.json"
sed 's/"name":"",/"name":"tiny-base",/' "$out" >"$tmp/of-bare"
same "$tmp/of-bare" "$tmp/whole"
# Keys that have a usual value may be left away.
scenario "$plain"
works memory "$input"
has "$out" '"name":""' '"allocator":{'
scenario '"mesh":[4],"rank":3,"kind":"replicate","reshard_after_forward":3'
works memory "$input"
scenario '"mesh":[2,4],"rank":7,"cpu_offload":null,"param_dtype":null,"output_dtype":null'
works memory "$input"

# ---- the command line ----------------------------------------------------------------------------

fails 2 "memory: no file given" "SCENARIO.json" -- memory
fails 2 "memory: found a second file, b; allowed: one" -- memory "$golden" b
fails 2 "memory: unknown option --timelin" "nearest: --timeline" -- memory "$golden" --timelin x
fails 2 "found --set without --strategy" allowed -- memory "$golden" --set batch=2
fails 2 "found --rank without --strategy" allowed -- memory "$golden" --rank 1
fails 2 "--out" -- memory "$golden" -o
fails 2 "memory: found $tmp/one for --out and for --timeline" "two different files" -- memory "$golden" -o "$tmp/one" -t "$tmp/one"
[ ! -e "$tmp/one" ] || complain "one file for two things"

# ---- files that are none -------------------------------------------------------------------------

fails 2 "$tmp/nowhere.json: cannot be opened: No such file" "allowed: a scenario in JSON" -- memory "$tmp/nowhere.json"
fails 2 "$tmp: cannot be opened: Is a directory" "allowed: a scenario in JSON" -- memory "$tmp"
# text CONTENT WORD...: a file with that content.
text() {
    printf '%b' "$1" >"$input"
    shift
    fails 2 "$input:1:" "allowed: a scenario in JSON" "$@" -- memory "$input"
}
text '' "near end of file"
text 'mesh: [8]\n' "expected near 'mesh'"
text '"scenario"' "expected near"
text '{"scenario":{"mesh":[8],' "near end of file"
text '{"batch":NaN}' "near 'NaN'"
text '{"batch":1e999}' "overflow near '1e999'"
text '{"batch":99999999999999999999}' "too big integer"
text '{"batch":1,"batch":2}' "duplicate object key"
text '{"a\\u0000b":1}' "NUL"
text '\0001\0377\0376\0033[2J' "control character U+0001"
text "$(printf '%5000s' '' | tr ' ' '[')" "nested deeper than 64 levels"
head -c 700 "$golden" >"$input"
fails 2 "$input:" "near end of file" -- memory "$input"
head -c 4096 "$TESSERA" >"$input"
fails 2 "$input:1:" -- memory "$input"
printf '{"a\033[2Jb": 1}' >"$input"
fails 2 -- memory "$input"
if grep -q "$(printf '\033')" "$err"; then complain "an escape sequence on the terminal"; fi

# ---- keys and values -----------------------------------------------------------------------------

for content in '[]' '[{"mesh":[8]}]' '{"scenario":[]}' '{"scenario":null}' '{"scenario":"tiny"}'; do
    printf '%s' "$content" >"$input"
    fails 2 "$input: key \"scenario\": found " "allowed: an object, the scenario" -- memory "$input"
done
printf '{}' >"$input"
wrong model_config nothing "the sizes of a model"
printf '{"model_config":[1],"mesh":[8]}' >"$input"
wrong model_config '[1]' "the sizes of a model"
scenario "$plain,\"bacth\":2"
wrong bacth 2 "the keys of a scenario"
scenario "$plain" "$config,\"heads\":2"
wrong heads 2 "the keys of model_config"

for key in hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size max_position_embeddings; do
    for value in '"8"' -1 0 1.5 true '[]' 4611686018427387904; do
        model $key "$value"
        wrong $key "$value" "an integer from 1 to "
    done
    model $key null
    wrong $key null "a size, in model_config"
    scenario "$plain" "$(printf '%s' "$config" | sed "s/\"$key\":[0-9]*,*//; s/,\$//")"
    wrong $key nothing "a size, in model_config"
done
model num_attention_heads 3
wrong num_attention_heads 3 "a divisor of hidden_size"
model num_key_value_heads 3
wrong num_key_value_heads 3 "a divisor of num_attention_heads"
model num_key_value_heads 16
wrong num_key_value_heads 16 "a divisor of num_attention_heads"
model hidden_size 24
wrong hidden_size 24 "an even number per attention head"
for key in family impl; do
    model family '"llama","impl":"own"'
    sed -i "s/\"$key\":\"[a-z]*\"/\"$key\":\"bert\"/" "$input"
    wrong $key '"bert"' "$([ $key = family ] && echo "llama, gpt2" || echo "own, hf")"
done
model family '"llama","norm":3'
wrong norm 3 "a word"
model family '"llama","gqa":[]'
wrong gqa '[]' "a word"
model family '"llama","tie_word_embeddings":1'
wrong tie_word_embeddings 1 "true or false"

scenario ""
wrong mesh nothing "[shards] or [replicas, shards]"
for value in '[]' '[2,2,2]' 8 '"8"' null; do
    scenario "\"mesh\":$value"
    wrong mesh "$value" "[shards] or [replicas, shards]"
done
for value in '[0]' '[-8]' '[2147483648]' '["8"]' '[8,0]' '[8.5]'; do
    scenario "\"mesh\":$value"
    wrong mesh "$value" "sizes from 1 to 1048576"
done
scenario '"mesh":[2,4],"kind":"replicate"'
wrong mesh '[2,4]' "[replicas] of kind replicate"
scenario '"mesh":[1048576,1048576]'
wrong mesh '[1048576,1048576]' "up to 16777216 ranks"
for value in 8 -1 '"0"' 0.5 true; do
    scenario "$plain,\"rank\":$value"
    wrong rank "$value" "an integer from 0 to 7"
done

# each KEY ALLOWED VALUE...: each of the values is refused.
each() {
    key=$1
    allowed=$2
    shift 2
    for value; do
        scenario "$plain,\"$key\":$value"
        wrong "$key" "$value" "$allowed"
    done
}
each kind "fsdp, replicate" '"ddp"' 1 null
each wrap "block_root, embed_block_tail_root, root" '"blocks"' '{}' null
each ac "none, full, every2, selective_op" '"some"' true
each optimizer "adamw_foreach, adamw_fused, adamw_loop, sgd, sgd_momentum, none" '"adam"' 0 null
each sdpa "flash, efficient, math" '"cudnn"' '[]'
for key in param_dtype reduce_dtype output_dtype; do
    each $key "null, fp32, bf16, fp16" '"fp8"' 16 true
done
each accum_mode "reduce_each, no_reduce, no_reduce_no_reshard, no_all_reduce" '"sum"' 2
each cpu_offload "null, pageable, pinned" '"nvme"' true
each clip "true or false" 1.0 '"yes"'
each expandable_segments "true or false" 0 '[]'
each reshard_after_forward "a divisor of the number of shards" 3 0 -1 16 4611686018427387904
each reshard_after_forward "true, false, null or an integer" '"yes"' 2.5 '[2]'
each batch "an integer from 1 to 16777216" '"2"' 0 -1 2.5 true '[1]' 4611686018427387904
each seq "an integer from 1 to 16777216" '"2"' 0 -1 2.5 true '[1]'
each seq "up to max_position_embeddings, 512" 513
each batch "batch x seq up to 16777216 tokens" 16777216
each grad_accum "an integer from 1 to 64" 0 65 '"1"'
each iters "an integer from 1 to 64" 0 65 '{}'
each fwd_prefetch "an integer from 0 to 4096" -1 '"1"' 4097
each bwd_prefetch "an integer from 0 to 4096" -1 1.5
each device_bytes "an integer from 1 to 1125899906842624" 0 -1 '"80GB"' 2.5 1125899906842625
scenario "$plain,\"iters\":64,\"grad_accum\":64" "$(printf '%s' "$config" | sed 's/"num_hidden_layers":2/"num_hidden_layers":32/')"
wrong iters 64 "num_hidden_layers x grad_accum x iters up to 65536"

# ---- output that cannot be written ---------------------------------------------------------------

scenario "$plain"
fails 2 "$tmp/nowhere/r.json, which cannot be written: No such file" -- memory "$input" -o "$tmp/nowhere/r.json"
fails 2 "$tmp, which cannot be written: Is a directory" -- memory "$input" -o "$tmp"
fails 2 "--timeline: found $tmp/nowhere/t.json, which cannot be written" -- memory "$input" -o "$tmp/none" --timeline "$tmp/nowhere/t.json"
[ ! -e "$tmp/none" ] || complain "a result without its time line"
if [ -w /dev/full ]; then
    fails 1 "/dev/full: " "No space left" -- memory "$input" -o /dev/full
    fails 1 "/dev/full: " "No space left" -- memory "$input" -o "$tmp/none" --timeline /dev/full
    [ ! -e "$tmp/none" ] || complain "a result without its time line"
    checks=$((checks + 1))
    "$TESSERA" memory "$input" >/dev/full 2>"$err"
    if [ $? != 1 ] || [ "$(wc -l <"$err")" != 1 ]; then
        complain "a full disk is no failure of the machine"
    fi
fi

# ---- a device that is too small ------------------------------------------------------------------

# small KEYS: that scenario does not fit; the line is in $err.
small() {
    scenario "$1"
    fails 3 "device out of memory: tried to allocate" "free are" "the largest free block has" "in phase" \
        "module" "for" "would" -- memory "$input" -o "$tmp/none"
    [ ! -e "$tmp/none" ] || complain "a result of what does not fit"
}
# fits KEYS, and: does not fit KEYS
fits() {
    scenario "$1"
    works memory "$input" -o "$tmp/fits.json"
}
mib() { echo $(($1 * 1048576)); }

device="\"mesh\":[8],\"device_bytes\":$(mib 200)"
small "$device,\"batch\":64"
has "$err" "the device has 0.20 GiB ($(mib 200) bytes)" "for Activation"
batch=$(sed -n 's/.*; batch \([0-9]*\) would fit$/\1/p' "$err")
[ "${batch:-0}" -gt 1 ] || complain "no batch is named"
fits "$device,\"batch\":${batch:-1}"
small "$device,\"batch\":$((batch + 1))"
has "$err" "; batch $batch would fit"

device="\"mesh\":[8],\"device_bytes\":$(mib 130),\"optimizer\":\"sgd\",\"ac\":\"none\""
config=$(printf '%s' "$config" | sed 's/"max_position_embeddings":512/"max_position_embeddings":8192/')
small "$device,\"batch\":2,\"seq\":8000"
seq=$(sed -n 's/.*; batch 1 with seq \([0-9]*\) would fit$/\1/p' "$err")
[ "${seq:-0}" -ge 64 ] || complain "no sequence is named"
fits "$device,\"seq\":${seq:-1}"
small "$device,\"seq\":$((seq + 64))"
has "$err" "; batch 1 with seq $seq would fit"

device="\"mesh\":[8],\"device_bytes\":"
small "$device$(mib 70)"
has "$err" "no batch or sequence would fit"
needs=$(sed -n 's/.*a device of [0-9.]* GiB (\([0-9]*\) bytes) would do without retries$/\1/p' "$err")
[ "${needs:-0}" -gt "$(mib 70)" ] || complain "no device is named"
fits "$device${needs:-1}"
checks=$((checks + 1))
grep -q '"num_alloc_retries":[1-9]' "$tmp/fits.json" && complain "it needs retries"
finish
