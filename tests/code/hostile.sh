#!/bin/sh
# Texts of users in what is written: through the writers of languages alone (literals.py), and as literals whatever the names
# are (hostile.py). Exit status 77: no python3.
command -v python3 >/dev/null || exit 77
python3 "$TSR_SOURCE_DIR/tests/code/literals.py" || exit 1
exec python3 "$TSR_SOURCE_DIR/tests/code/hostile.py"
