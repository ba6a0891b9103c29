#include "cmd.h"
int tsr_cmd_diff(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return tsr_finish(tsr_fail(TSR_ECONFIG, "x"), 0);
}
