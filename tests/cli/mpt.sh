#!/usr/bin/env bash
# MPT files: what is modelled and what is refused; the table of positions; a Composer step and the
# forms of checkpointing by their keys, and what excludes what.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

# file LINE: a config.json of MPT with one more line.
file() {
    printf '{"model_type": "mpt", "d_model": 64, "n_heads": 4, "n_layers": 4, "max_seq_len": 128,\n"vocab_size": 256%s}\n' \
        "$1" >"$tmp/mpt.json"
}

# refuses LINE WORD...: the file is refused by the key of its second line.
refuses() {
    file ", $1"
    shift
    fails 2 mpt.json:2 "$@" -- inspect "$tmp/mpt.json"
}

file ''
works inspect "$tmp/mpt.json"
has "$out" "MPTBlock" "Wqkv" "transformer" "224,640"
file ', "no_bias": false, "attn_config": {"alibi": false, "attn_impl": "triton", "clip_qkv": null}, "emb_pdrop": 0.0'
works inspect "$tmp/mpt.json"
refuses '"attn_config": {"alibi": true}' attn_config.alibi true false
refuses '"attn_config": {"qk_ln": true}' attn_config.qk_ln
refuses '"attn_config": {"clip_qkv": 6}' attn_config.clip_qkv 6 null
refuses '"attn_config": {"attn_type": "grouped_query_attention"}' attn_type multihead_attention
refuses '"attn_config": 3' attn_config mapping
refuses '"no_bias": true' no_bias false
refuses '"learned_pos_emb": false' learned_pos_emb true
refuses '"norm_type": "rmsnorm"' norm_type low_precision_layernorm
refuses '"resid_pdrop": 0.1' resid_pdrop 0.1
refuses '"expansion_ratio": 0' expansion_ratio
file ''
sed -i 's/"n_heads": 4/"n_heads": 5/' "$tmp/mpt.json"
fails 2 d_model 64 n_heads 5 -- inspect "$tmp/mpt.json"

# A run of the whole step; the model's positions bound the sequence.
file ''
cat >"$tmp/e.yaml" <<END
model: {name: ./mpt.json}
cluster: node-dgx-a100-80g
seq: 128
batch: 2
clip: true
strategies:
  plain: {}
  composer: {optimizer.variant: decoupled_read, clip_variant: loop_read, loss.kernel: flash_attn, loss.metrics: 2, loss.read: true}
  unpad: {attention_unpad: true}
END
works compare "$tmp/e.yaml"
has "$out" composer unpad
works check "$tmp/e.yaml"
# no STRATEGY WORD... -- ARGUMENT...: emitting it is refused.
no() {
    strategy=$1
    shift
    fails 2 "$@" --strategy "$strategy"
}
no plain seq 256 128 -- program "$tmp/e.yaml" --set seq=256
works program "$tmp/e.yaml" --set seq=256 --set model.positions=256 --strategy plain
no plain model.positions 256 llama-3.2-1b -- program "$tmp/e.yaml" --set model.name=llama-3.2-1b --set model.positions=256
no unpad attention_unpad llama-3.2-1b MPT -- program "$tmp/e.yaml" --set model=llama-3.2-1b
no unpad attention_unpad compile eager -- program "$tmp/e.yaml" --set dialect=compile
no unpad attention_unpad math flash -- program "$tmp/e.yaml" --set attention=math
no composer loss.metrics flash_attn_inplace -- program "$tmp/e.yaml" --set strategies.composer.loss.kernel=flash_attn_inplace
no composer loss.kernel loss.chunks eager -- program "$tmp/e.yaml" --set loss.chunks=2
no composer optimizer.variant decoupled_read offload -- program "$tmp/e.yaml" --set offload=cpu
no composer clip_variant loop offload -- program "$tmp/e.yaml" --set offload=cpu --set strategies.composer.optimizer.variant=loop
for key in optimizer.variant=decoupled clip_variant=loop loss.kernel=flash_attn loss.metrics=1 attention_unpad=true; do
    fails 2 "${key%=*}" "--on sim" -- run "$tmp/e.yaml" --strategy plain --on host --ranks 1 --set "$key"
done

# Which blocks are checkpointed: recomputed ones are named in the program.
cat >"$tmp/c.yaml" <<END
model: {name: llama-3.2-1b, layers: 6}
cluster: node-dgx-a100-80g
seq: 128
END
# blocks WANTED KEY=VALUE...: the blocks that a step recomputes.
blocks() {
    wanted=$1
    shift
    sets=
    for key; do sets="$sets --set checkpoint.$key"; done
    # shellcheck disable=SC2086 # several words
    works program "$tmp/c.yaml" $sets
    found=$(grep ' recompute' "$out" | sed -n 's/.*model\.layers\.\([0-9]*\).*/\1/p' | sort -nu | tr '\n' ' ')
    checks=$((checks + 1))
    [ "$found" = "$wanted" ] || complain "checkpoint $*: blocks $found, not $wanted"
}
blocks '0 1 2 3 4 5 ' every=full
blocks '0 2 4 ' every=full share=0.5
blocks '1 4 ' every=full share=0.333333
blocks '0 2 3 5 ' every=full share=0.666667
blocks '' every=full share=0
blocks '0 1 ' every=full count=2
blocks '4 5 ' every=full first=5
blocks '1 3 ' every=2 count=2
fails 2 checkpoint.share 0.5 checkpoint.every -- program "$tmp/c.yaml" --set checkpoint.every=2 --set checkpoint.share=0.5
fails 2 checkpoint.share checkpoint.first -- program "$tmp/c.yaml" --set checkpoint.every=full --set checkpoint.share=0.5 --set checkpoint.first=2
finish
