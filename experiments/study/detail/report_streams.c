/* report_streams.c: streams.csv: what every stream did in the steady iteration. */
#include "experiments/study/detail/report_detail.h"
#include "experiments/study/job/owner.h"
#include "experiments/study/report/report_text.h"

#include <inttypes.h>

static void put_work(FILE *out, const struct tsr__view *view, size_t i)
{
    const struct tsr_instr *instr = &view->program->instrs[i];
    char label[160], buffer[32];
    tsr__work_label(view->tables, instr, label, sizeof label);
    fprintf(out, "%s,%.9f,%.9f,%s,", view->tables->streams[instr->stream].name,
            view->spans[i].start - view->start, view->spans[i].end - view->start,
            tsr_instr_kind_name(instr->kind));
    tsr__put_csv(out, label);
    fputc(',', out);
    tsr__put_csv(out, tsr_owner_of(view->tables, &instr->origin, buffer));
    fprintf(out, ",%s,%u,", tsr_phase_name(instr->origin.phase), instr->origin.micro);
    uint64_t bytes = instr->bytes;
    if (instr->kind == TSR_OP && instr->work)
        bytes = instr->work->bytes_read + instr->work->bytes_written;
    fprintf(out, "%" PRIu64 ",", bytes);
    if (tsr__is_collective(instr))
        fprintf(out, "%.9f", view->exposed[i]);
    fputc('\n', out);
}

tsr_status tsr__write_streams(FILE *out, const void *user)
{
    const struct tsr__page *page = user;
    const struct tsr__view *view = page->view;
    tsr__put_provenance(out, page->info, view->detail->row->strategy,
                        "times in seconds of the steady step; bytes: of the big side of a "
                        "collective, moved by a kernel; exposed_s: of a collective while the "
                        "compute stream is idle");
    fputs("stream,start_s,end_s,kind,name,module,phase,micro_batch,bytes,exposed_s\n", out);
    for (uint16_t s = 0; s < view->tables->n_streams; s++) {
        for (size_t i = 0; i < view->program->n_instrs; i++) {
            const struct tsr_instr *instr = &view->program->instrs[i];
            if (instr->stream == s && tsr__is_busy_work(instr))
                put_work(out, view, i);
        }
    }
    return TSR_OK;
}
