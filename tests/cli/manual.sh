#!/bin/bash
# The manual page, and what shells complete: printed from the tables of help, whole, and understood by their readers.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"

for topic in man bash zsh fish; do
    works help $topic
    cp "$out" "$tmp/$topic"
done

# Every subcommand and every option of its help is in each.
works help all
sed -n '/^Help$/q;s/^  \([a-z]*\) .*/\1/p' "$out" >"$tmp/commands"
[ "$(wc -l <"$tmp/commands")" -gt 15 ] || complain "hardly a subcommand"
sed 's/\\-/-/g; s/\\f[BRI]//g' "$tmp/man" >"$tmp/plain"
bash=$(<"$tmp/bash") zsh=$(<"$tmp/zsh") fish=$(<"$tmp/fish") plain=$newline$(<"$tmp/plain")$newline
while read -r command; do
    works "$command" --help
    sed -n '/^Options$/,$s/^  ..[, ] --\([a-z-]*\).*/\1/p' "$out" | grep -v '^help$' >"$tmp/options"
    sed -n "/^\\.SS $command$/,/^\\.S[SH] /p" "$tmp/plain" >"$tmp/section"
    for text in bash zsh section; do # a file of its words, with a space on both sides of each
        tr -sc 'a-zA-Z0-9-' ' ' <"$tmp/$text" >"$tmp/$text.words"
    done
    in_bash=$(<"$tmp/bash.words") in_zsh=$(<"$tmp/zsh.words") in_section=$(<"$tmp/section.words")
    while read -r option; do
        checks=$((checks + 1))
        [[ $bash = *"$newline    $command)"* && $in_bash = *" --$option "* &&
            $zsh = *"$newline    $command)"* && $in_zsh = *" --$option "* &&
            $fish = *"from $command' -l $option "* && $in_section = *" --$option "* ]] ||
            complain "$command --$option is not in all of them"
    done <"$tmp/options"
done <"$tmp/commands"
works help keys
sed -n 's/^\([a-z0-9_][a-z0-9_]*\(\.[a-z0-9_]*\)*\)$/\1/p' "$out" | while read -r key; do
    [[ $plain = *"$newline$key$newline"* && $fish = *" $key="* && $zsh = *"$newline    $key$newline"* &&
        ($bash = *"'$key "* || $bash = *" $key "*) ]] || echo "$key"
done >"$tmp/missing"
[ ! -s "$tmp/missing" ] || complain "keys that are not in all of them: $(head -n 3 "$tmp/missing")"

# What bash completes.
checks=$((checks + 1))
bash -n "$tmp/bash" || complain "bash does not understand it"
completes() { # WANT WORD...
    want=$1
    shift
    got=$(bash -c '. "$0"
        COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
        _tessera tessera "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        echo "${COMPREPLY[*]}"' "$tmp/bash" "$@")
    checks=$((checks + 1))
    [ "$got" = "$want" ] || complain "$*: completes $got, not $want"
}
completes "validate" tessera va
completes "md csv json" tessera compare --format ""
completes "on off" tessera run --graphs o
completes "optimizer.name= optimizer.nesterov=" tessera sim FILE --set optimizer.n
completes "keys" tessera help key
completes "$tmp/fish" tessera sim "$tmp/fi"
mkdir "$tmp/fiasco"
completes "$tmp/fiasco" tessera sim FILE --out "$tmp/fi"

# And what the others say of theirs, where they are.
reads() { # PROGRAM...
    checks=$((checks + 1))
    if ! command -v "$1" >/dev/null; then
        echo "skipped: no $1"
        return
    fi
    "$@" >"$tmp/said" 2>&1 || complain "$*: status $?"
    [ ! -s "$tmp/said" ] || complain "$*: $(head -n 2 "$tmp/said")"
}
reads zsh -n "$tmp/zsh"
reads fish -n "$tmp/fish"
reads groff -man -ww -z "$tmp/man"
finish
