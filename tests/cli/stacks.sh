#!/usr/bin/env bash
# Training stacks: what they put below the keys of an experiment, what wins over them, who is refused.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

mkdir -p "$tmp/study/stacks" "$tmp/elsewhere"
cat >"$tmp/study/stacks/mine.yaml" <<'Y'
title: a loop of my own
source: nobody
clip: true
gqa_repeat: true
model: {norm: hand, names: torchtitan}
optimizer: {variant: loop}
fsdp1: {backward_prefetch: post}
Y
cat >"$tmp/study/e.yaml" <<'Y'
stack: mine
model: llama-3.2-1b
cluster: dgx-h100-1
seq: 256
gqa_repeat: false
strategies:
  plain: {}
  model: {model: {name: llama-3.1-8b, layers: 2}}
  own: {gqa_repeat: true, optimizer: {variant: fused}}
  other: {stack: llm-foundry-2023-10}
  back: {stack: null}
sweeps: {clip: [true, false]}
Y

# value STRATEGY KEY: the value in the resolved file, which is complete but for what is as at the top.
value() {
    python3 - "$out" "$1" "$2" <<'END'
import re, sys
path, strategy, key = sys.argv[1:]
def keys(lines, indent):
    found, prefix = {}, ""
    for line in lines:
        m = re.match(r"( *)([\w.@=-]+):(?: ([^#]*?))?(?: #.*)?$", line.rstrip("\n"))
        if not m or len(m[1]) < indent:
            continue
        name, text = m[2], (m[3] or "").strip()
        if len(m[1]) == indent:
            prefix = name
            if text == "null" and name in ("model", "mesh"): # the others are not given
                found.update({k: None for k in found if k.startswith(name + ".")})
            found[name] = text
        else:
            found[f"{prefix}.{name}"] = text
    return found
text = open(path).read()
top, rest = text.split("\nstrategies:\n")
found = keys(top.splitlines(), 0)
for block in re.split(r"\n(?=  \S)", "\n" + rest):
    if block.startswith(f"\n  {strategy}:") or block.startswith(f"  {strategy}:"):
        found.update(keys(block.strip("\n").splitlines()[1:], 4))
print(found.get(key))
END
}
is() { # STRATEGY KEY VALUE
    checks=$((checks + 1))
    got=$(value "$1" "$2")
    [ "$got" = "$3" ] || complain "$1: $2 is $got, not $3"
}
works compare "$tmp/study/e.yaml" --print-config
is plain@clip=true optimizer.variant loop   # the stack's
is plain@clip=true gqa_repeat false         # the file's
is plain@clip=false clip false              # a sweep's
is own@clip=true gqa_repeat true            # a strategy's
is own@clip=true optimizer.variant fused
is model@clip=true model.norm hand          # naming another model resets model.*, not the stack
is model@clip=true model.names torchtitan
is other@clip=true api fsdp1                # another stack takes the place of the file's
is other@clip=true optimizer.variant decoupled_read
is other@clip=true model.norm kernel
is other@clip=true gqa_repeat false
is other@clip=true fsdp1.backward_prefetch post
is plain@clip=true fsdp1.backward_prefetch pre # of another API: not for this strategy
is back@clip=true optimizer.variant foreach
has "$out" "stack: mine" "variant: loop # stack mine" "gqa_repeat: false # the stack has true" \
    "variant: decoupled_read # stack llm-foundry-2023-10"
cp "$out" "$tmp/study/first.yaml"
works compare "$tmp/study/first.yaml" --print-config
same "$tmp/study/first.yaml" "$out"
# --set, of a key and of the stack; a path is found from elsewhere once it is printed.
works compare "$tmp/study/e.yaml" --print-config --set optimizer.variant=foreach
is plain@clip=true optimizer.variant foreach
works compare "$tmp/study/e.yaml" --print-config --set stack=stacks/mine.yaml --set gqa_repeat=true
is plain@clip=true model.norm hand
has "$out" 'stack: "/' "stacks/mine.yaml"
cp "$out" "$tmp/elsewhere/printed.yaml"
works compare "$tmp/elsewhere/printed.yaml" --print-config
same "$tmp/elsewhere/printed.yaml" "$out"

# Shipped stacks are found from anywhere, and each of them runs.
for file in "$TSR_SOURCE_DIR"/experiments/stacks/*.yaml; do
    name=$(basename "$file" .yaml)
    model=llama-3.2-1b
    case $name in llm-foundry*) model=mpt-125m ;; llm.c | nanogpt) model=gpt2 ;; esac
    printf 'stack: %s\nmodel: {name: %s, layers: 2}\ncluster: dgx-h100-1\nseq: 128\n' "$name" "$model" \
        >"$tmp/elsewhere/$name.yaml"
    works compare "$tmp/elsewhere/$name.yaml" --print-config
    cp "$out" "$tmp/printed.yaml"
    works compare "$tmp/printed.yaml" --print-config
    same "$tmp/printed.yaml" "$out"
    works sim "$tmp/elsewhere/$name.yaml" --format json
    grep -q '^source:' "$file" || complain "$name has no source"
    grep -q "\`$name\`" "$TSR_SOURCE_DIR/experiments/stacks/README.md" || complain "README: no $name"
done
# A tree says itself how it is written: model.* of a stack is not for it.
printf 'stack: torchtitan-2024-12\nmodel: {tree: %s}\ncluster: dgx-h100-1\nseq: 128\n' \
    "$TSR_SOURCE_DIR/experiments/own-model/tree.yaml" >"$tmp/study/tree.yaml"
works sim "$tmp/study/tree.yaml"

# Every shipped study rests on one.
for file in "$TSR_SOURCE_DIR"/experiments/*/*.yaml; do
    case $file in */stacks/* | */conditions.yaml | */models/* | */tree.yaml | */vit-l.yaml) continue ;; esac
    grep -q '^stack: ' "$file" || complain "$file names no stack"
    checks=$((checks + 1))
done

# Mistakes.
e=$tmp/study/e.yaml
fails 2 "stack: found torchtitan;" "nearest: torchtitan-2026" "mine" "torchtitan-2024-12" -- \
    compare "$e" --set stack=torchtitan
fails 2 "stack: found transformres;" "nearest: transformers" -- compare "$e" --set stack=transformres
fails 2 "stack: found nowhere.yaml, which is not there" -- compare "$e" --set stack=nowhere.yaml
fails 2 "stack: found [a]" "a text" -- compare "$e" --set 'stack=[a]'
wrong() { # LINE MESSAGE...
    printf 'source: nobody\n%s\n' "$1" >"$tmp/study/stacks/bad.yaml"
    shift
    fails 2 "bad.yaml:2:" "$@" -- compare "$e" --set stack=bad
}
wrong "clipp: true" 'unknown key "clipp"' 'nearest: "clip"'
wrong "clip: maybe" "clip: found maybe" "true or false"
wrong "stack: mine" "found stack in a stack"
wrong "world: 8" "found world in a stack" "how training is written"
wrong "model: gpt2" "found model.name in a stack"
wrong "mesh: [2, 4]" "found mesh.shape in a stack"
wrong "title: [a]" "title: found [a]"
# A value that the model has no use for is the stack's: its line is named.
fails 2 "mine.yaml:5:" "model.norm: found hand beside model gpt2" -- compare "$e" --set model=gpt2 --only plain
finish
