/* request.h: which experiment a study is about. Messages name the fields as the program's options
 * do: "--set batch=x: ...", "--only: ...".
 */
#ifndef TSR_STUDY_REQUEST_H
#define TSR_STUDY_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All texts are borrowed for as long as what was opened with the request; NULL: not given. */
/* What is drawn: .svg and .png, .svg alone, nothing. */
enum tsr_pictures { TSR_PICTURES_ALL, TSR_PICTURES_SVG, TSR_PICTURES_NONE };

struct tsr_study_request {
    const char *path; /* an experiment file */
    const char *text; /* instead of it: its text. Messages call it "<text>", and relative paths
                         in it count from the working directory */
    const char *const *sets; /* [n_sets] "batch=2", "strategies.fsdp.wrap=root": keys that are
                                overridden, in this order */
    size_t n_sets;
    const char *only;     /* "fsdp,ddp": only these strategies */
    const char *strategy; /* only this one */
    bool no_traces;       /* no traces and snapshots among the files */
    bool traces;          /* those of every strategy; else of the strategies of a small study */
    enum tsr_pictures pictures;
    uint32_t gpus_here; /* GPUs of this machine that `run --on cuda` can use, for what reports
                           suggest; 0: none */
    const char *out;    /* the folder that files will be written to: they name the resolved
                           experiment there where sets change the file */
};

#endif
