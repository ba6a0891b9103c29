# Prints FILE:FUNCTION <tab> LINE for each function that the given C files define, calls and prototypes aside. A
# definition begins in the first column and has its brace there, too, as clang-format writes it.
FNR == 1 { name = "" }
/^[A-Za-z_].*\(/ {
    match($0, /[A-Za-z_][A-Za-z_0-9]*\(/)
    name = substr($0, RSTART, RLENGTH - 1)
    line = FNR
}
/;[ \t]*$/ { name = "" }
/^\{/ && name != "" {
    print FILENAME ":" name "\t" line
    name = ""
}
