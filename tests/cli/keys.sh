#!/usr/bin/env bash
# Every key of every format changes what comes out, or is refused: keys.py.
# Environment: TESSERA, TSR_SOURCE_DIR.
exec python3 "$TSR_SOURCE_DIR/tests/cli/keys.py"
