#!/usr/bin/env bash
# Every command of experiments/guide/faq.md runs, and prints what its section says to look at; in the short form those of every
# second question.
# shellcheck source=tests/cli/_common.sh
. "$TSR_SOURCE_DIR/tests/cli/_common.sh"
doc=$TSR_SOURCE_DIR/experiments/guide/faq.md
cd "$TSR_SOURCE_DIR" || exit 1

# Lines "Q heading", "C command", "L word" in the order of the document.
awk '
    /^## / { print "Q " substr($0, 4); next }
    /^```/ { code = !code; look = 0; next }
    code { print "C " $0; next }
    /^Look at:/ { look = 1 }
    /^$/ { look = 0 }
    look {
        n = split($0, part, "`")
        for (i = 2; i <= n && look; i += 2) { # words in backquotes up to the first full stop
            print "L " part[i]
            if (part[i + 1] ~ /\./) look = 0
        }
    }
' "$doc" >"$tmp/lines"

questions=0 commands=0 in_question=1
all=$tmp/all
: >"$all"
end_question() { # a question without a command is not answered
    [ "$in_question" -ge 1 ] || complain "\"$heading\" has no command"
}
asked() {
    thorough || [ $((questions % 3)) = 1 ]
}
while IFS= read -r line; do
    text=${line#??}
    case $line in
    Q\ *)
        end_question
        heading=$text
        questions=$((questions + 1)) in_question=0
        : >"$all"
        ;;
    C\ *)
        in_question=$((in_question + 1))
        commands=$((commands + 1))
        asked || continue
        eval "set -- $text"
        [ "$1" = tessera ] || {
            complain "\"$heading\": not a command of tessera: $text"
            continue
        }
        shift
        works "$@"
        [ -s "$out" ] || complain "$text: printed nothing"
        cat "$out" >>"$all"
        ;;
    L\ *)
        ! asked || has "$all" "$text"
        ;;
    esac
done <"$tmp/lines"
end_question

[ $questions -ge 17 ] || complain "only $questions questions were found in faq.md"
[ $commands -ge 20 ] || complain "only $commands commands were tried"
printf '%d questions, %d commands\n' "$questions" "$commands"
finish
