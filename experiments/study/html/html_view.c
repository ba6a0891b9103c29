/* html_view.c: view.json: the step of a strategy, packed for the page (html.h). */
#include "experiments/study/html/html_view.h"

#include <inttypes.h>
#include <stdlib.h>

#include "experiments/study/base/files.h"
#include "experiments/study/html/html.h"
#include "experiments/study/report/report_text.h"

static void put_head(FILE *out, const struct tsr__html *html)
{
    const struct tsr__page *page = html->page;
    const struct tsr__view *view = page->view;
    fputs("{\"schema\":\"tessera.view\",\"schema_version\":1,\"strategy\":", out);
    tsr__put_json(out, view->detail->row->strategy);
    fprintf(out,
            ",\"measured\":%s,\"rank\":%" PRIu32 ",\"iteration\":%d,\"quantum_s\":%.1e,"
            "\"step_s\":%.9f,\"usable_bytes\":",
            page->info->measured ? "true" : "false", view->detail->rank, view->program->iteration,
            TSR__HTML_QUANTUM, view->end - view->start);
    if (view->detail->row->usable_bytes)
        fprintf(out, "%" PRIu64, view->detail->row->usable_bytes);
    else
        fputs("null", out);
    fputs(",\n\"streams\":[", out);
    for (int s = 0; s < view->tables->n_streams; s++) {
        fputs(s ? "," : "", out);
        tsr__put_json(out, s == view->compute ? "compute" : view->tables->streams[s].name);
    }
    fprintf(out, "],\"compute\":%u", view->compute);
}

/* [label, start, end], seconds */
static tsr_status put_phases(FILE *out, const struct tsr__view *view)
{
    struct tsr__phase *phases;
    size_t n;
    bool numbered = false;
    TSR_TRY(tsr__phases(view, &phases, &n));
    for (size_t i = 0; i < n; i++)
        numbered |= phases[i].micro > 0;
    fputs(",\n\"phases\":[", out);
    for (size_t i = 0; i < n; i++) {
        char name[48];
        tsr__phase_label(&phases[i], numbered, name, sizeof name);
        fprintf(out, "%s[\"%s\",%.9f,%.9f]", i ? "," : "", name, phases[i].start - view->start,
                phases[i].end - view->start);
    }
    fputc(']', out);
    free(phases);
    return TSR_OK;
}

static tsr_status put_texts(FILE *out, const struct tsr__html *html)
{
    fputs(",\n\"modules\":", out);
    tsr__words_write(out, &html->owners);
    fputs(",\n\"ops\":", out);
    tsr__words_write(out, &html->ops);
    fputs("}\n", out);
    return html->owners.failed || html->ops.failed ? tsr_no_memory("the page of a strategy")
                                                   : TSR_OK;
}

static tsr_status write_view(FILE *out, const void *user)
{
    struct tsr__html html = {.page = user};
    tsr_status status;
    put_head(out, &html);
    TSR_GOTO(done, put_phases(out, html.page->view));
    TSR_GOTO(done, tsr__html_put_slices(out, &html));
    TSR_GOTO(done, tsr__html_put_memory(out, &html));
    status = put_texts(out, &html);
done:
    tsr__words_fini(&html.owners);
    tsr__words_fini(&html.ops);
    return status;
}

tsr_status tsr_html_view_in(const char *folder, const struct tsr_study_info *info,
                            const struct tsr_detail *detail)
{
    struct tsr__view view;
    struct tsr__curve curve = {0};
    struct tsr__in_use in_use = {0};
    const struct tsr__page page = {info, &view, &curve, &in_use};
    tsr_status status;
    TSR_TRY(tsr__view_init(&view, detail, detail->steady));
    TSR_GOTO(no_curve, tsr__curve_init(&curve, detail, detail->steady));
    TSR_GOTO(done, tsr__in_use_init(&in_use, &view));
    TSR_GOTO(done, tsr_make_own_folder(folder));
    status = tsr_write_in(folder, "view.json", write_view, &page);
done:
    tsr__in_use_fini(&in_use);
    tsr__curve_fini(&curve);
no_curve:
    tsr__view_fini(&view);
    return status;
}

tsr_status tsr_html_view(const char *dir, const struct tsr_study_info *info,
                         const struct tsr_detail *detail)
{
    char name[256];
    tsr__folder_name(detail->row->strategy, name, sizeof name);
    char *folder = tsr_path_join(dir, name);
    tsr_status status = folder ? tsr_html_view_in(folder, info, detail) : TSR_ENOMEM;
    free(folder);
    return status;
}
