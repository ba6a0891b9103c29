/* check_kernels.c: what an executor refuses: kernels without an operand that they need. Names that
 * are not in the table are those of users, and of programs that are only simulated. Also those
 * whose operands are smaller or larger than what the kernel computes or copies.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/check/check_impl.h"

/* Slot by slot (engine/ops/KERNELS.md): r is read, w written, b both, . is optional or not there;
 * | before another form. In the order of strcmp(); a * at the end stands for any rest.
 *
 * sizes: what the elements of each slot's operands, all together, must be: the product of dims (a
 * is dims[0]), as many as those of another slot (its number), its bytes (~), a divisor of them (/),
 * one
 * (#), or anything (-, and slots that are not named). */
struct kernel {
    const char *name, *slots, *sizes;
};

static const struct kernel kernels[] = {
    {"accumulate_grad", "rb", "- 0"},
    {"accumulate_sharded_grad", "rb", "- 0"},
    {"add", "rrw", "/2 /2"},
    {"add_decay", "r..rw|...rwr", "- - - 0 3 3"},
    {"add_eps", "rw", "/1"},
    {"add_into", "rb", "- 0"},
    {"add_mask", "rrw", "/2 /2"},
    {"add_momentum", "rb|.b..r", "- 0 - - 1"},
    {"add_nesterov", "rr..w|.r..wr", "- 0 - - 1 1"},
    {"add_scalar", "rw", "/1"},
    {"add_sgd", "r..b|.r.b|...br", "3 - - 1 3"},
    {"addcdiv", ".r.br|.rrb", "- - 1 1 1"},
    {"addcmul_exp_avg_sq", "r.b|..b.r", "- - 0 - 2"},
    {"addmm", "rrrw", "ac bc b ab"},
    {"addmm_input_grad", "rrrw", "ac bc ab ab"},
    {"addmm_weight_grad", "rrrw", "ac bc ab ab"},
    {"all_gather_cast", "rw", "- 0"},
    {"all_gather_copy_in", "rw", "- ~0"},
    {"arange", "w", ""},
    {"bmm_grad_k", "rr.w", "acd bcd - abd"},
    {"bmm_grad_p", "rr.w", "acd bcd - abd"},
    {"bmm_grad_q", "rr.w", "acd bcd - abd"},
    {"bmm_grad_v", "rr.w", "abd acd - abd"},
    {"bmm_scores", "rr.w", "acd bcd - abd"},
    {"bmm_values", "rr.w", "acd bcd - abd"},
    {"bucket_cast", "rw", "- 0"},
    {"bucket_to_grad", "rw", "- 0"},
    {"cast", "rw", "/1"},
    {"cat", "rrw", ""},
    {"cat_gradients", "rw", "- 0"},
    {"chunk_cat", "r.w", ""},
    {"clamp", "rw", "/1"},
    {"clone", "rw", "/1"},
    {"clone_momentum", "rw|.w..r", "- 0 - - 1"},
    {"compress", "rw", ""},
    {"conjugate", "rw", "- 0"},
    {"copy", "rw", "/1"},
    {"cos", "rw", "/1"},
    {"count_labels", "rw", ""},
    {"cross_entropy_backward", "rrrw", "ab - # ab"},
    {"d2h_*", "rw", "- ~0"},
    {"decompress", "rw", ""},
    {"device_copy", "rw", "- ~0"},
    {"div", "b|rw", "/1"},
    {"div_bias_correction", "....wr", "- - - - - 4"},
    {"div_by_world", "b", ""},
    {"efficient_attention", "rrrww", "- - 1 0"},
    {"efficient_attention_backward", "rrrrrrwww", "- - 1 0 - 0 0 1 1"},
    {"embedding", "rrw", "/2"},
    {"embedding_dense_backward", "rrw", "- /0"},
    {"expand_heads", "rw", "- ab"},
    {"fill", "w", ""},
    {"flash_attention", "rrrww", "- - 1 0"},
    {"flash_attention_backward", "rrrrrrwww", "- - 1 0 - 0 0 1 1"},
    {"foreach_add_decay", "r..rw|...rb", "- - - 0 3"},
    {"foreach_add_eps", "....b", ""},
    {"foreach_add_momentum", "rb|.b..r", "- 0 - - 1"},
    {"foreach_add_nesterov", "br|.r..b", "- 0 - - 1"},
    {"foreach_add_sgd", "r..b|.r.b|...br", "3 - - 1 3"},
    {"foreach_add_step", "....b", ""},
    {"foreach_addcdiv", ".r.br|.rrb", "- - 1 1 1"},
    {"foreach_addcmul_exp_avg_sq", "r.b|..b.r", "- - 0 - 2"},
    {"foreach_div_bias_correction", "....b", ""},
    {"foreach_lerp_exp_avg", "rb|.b..r", "- 0 - - 1"},
    {"foreach_maximum", ".br", "- - 1"},
    {"foreach_mul_clip", ".....r", ""},
    {"foreach_mul_exp_avg_sq", "..b", ""},
    {"foreach_mul_momentum", ".b", ""},
    {"foreach_mul_weight_decay", "...b", ""},
    {"foreach_neg_grad", "r...w", "- - - - 0"},
    {"foreach_norm", "......w", ""},
    {"foreach_sqrt", "..r.w", "- - - - 2"},
    {"fused_adamw", "rbbb|rbbbb", "- 0 0 0 0"},
    {"fused_add_layer_norm", "rrrrww", "ab ab b b ab ab"},
    {"fused_add_layer_norm_backward", "r.rr...rr", "ab ab ab b ab"},
    {"fused_add_rms_norm", "rrr.ww", "ab ab b - ab ab"},
    {"fused_add_rms_norm_backward", "r.rr....r", "ab ab ab b ab"},
    {"fused_cross_entropy", "rrrw", "ab - # #"},
    {"fused_rope", "rrw", "- - 0"},
    {"fused_sgd", "r..b", "- 0 - 0"},
    {"fused_sgd_nesterov", "rw.b", "- 0 - 0"},
    {"fused_swiglu", "rrw", "ab ab ab ab ab"},
    {"fused_swiglu_backward", "rrr", "ab ab ab ab ab"},
    {"gelu", "rw", "/1"},
    {"gelu_backward", "rrw", "/2 /2"},
    {"grad_cast", "rw", "- 0"},
    {"grad_to_bucket", ".w", "- 0"},
    {"grad_upcast", "rw", "- 0"},
    {"h2d_*", "rw", "- ~0"},
    {"host_add", "rb", ""},
    {"init_param", "w", ""},
    {"join_checkpoint", "", ""},
    {"layer_norm", "rrrw", "ab b b ab"},
    {"layer_norm_backward", "rrr...rr", "ab ab b ab"},
    {"lend_checkpoint", "r", ""},
    {"lerp_exp_avg", "rb|.b..r", "- 0 - - 1"},
    {"load_shard", "rw", "- ~0"},
    {"log_softmax", "rw", "ab ab"},
    {"log_softmax_backward", "rrw", "ab ab ab"},
    {"log_softmax_tp", "rrrw", "ab a a ab"},
    {"maximum", ".br", "- - 1"},
    {"mean", "rw", "ab a"},
    {"mean_all", "rw", ""},
    {"mm", "rr.w", "ac bc - ab"},
    {"mm_input_grad", "rr.w", "ac bc - ab"},
    {"mm_weight_grad", "rr.w", "ac bc - ab"},
    {"mse", "r.w", ""},
    {"mse_backward", "rrw", ""},
    {"mse_target", "rrw", ""},
    {"mul", "rrw", "/2 /2"},
    {"mul_exp_avg_sq", "..b", ""},
    {"mul_max_norm", "rw", "/1"},
    {"mul_momentum", ".b", ""},
    {"mul_scalar", "rw", "/1"},
    {"mul_weight_decay", "...b", ""},
    {"neg", "rw", "/1"},
    {"neg_grad", "r...w", "- - - - 0"},
    {"nll_backward_tp", "rrrrw", "# a # ab ab"},
    {"nll_gather", "rrw", "ab a a"},
    {"nll_loss", "rrww", ""},
    {"nll_loss_backward", "rrrw", ""},
    {"nll_loss_part", "rrrw", ""},
    {"nll_rows", "rrww", "a a"},
    {"norm_power", "rw", "/1"},
    {"ones", "w", ""},
    {"pad", "rw", "- ab"},
    {"pad_backward", "rw", "- ab"},
    {"pad_shard", "rw", ""},
    {"param_cast", "rw", "- 0"},
    {"param_copy", "rw", "- 0"},
    {"post_forward_slice", "rw", "- ~0"},
    {"pow", "rw", "/1"},
    {"read_batch", "w", ""},
    {"read_checkpoint", "w", ""},
    {"reciprocal", "rw", "/1"},
    {"reduce_scatter_copy", "rw", "- ~0"},
    {"relu", "rw", "/1"},
    {"report", "r", ""},
    {"rms_norm", "rr.w", "ab b - ab a"},
    {"rms_norm_backward", "rrr...r", "ab ab b ab b - a"},
    {"root", "rw", "/1"},
    {"rotary", "rrw", "ab - ab"},
    {"rotary_backward", "rrw", "ab - ab"},
    {"rotary_table", "w", ""},
    {"row_exp_sum", "rrw", "ab a a"},
    {"row_max", "r.w", "ab - a"},
    {"rsqrt", "rw", "/1"},
    {"save_shard", "rw", "- ~0"},
    {"scalar", "w", ""},
    {"scale", "rrw", ""},
    {"scale_input_grad", "rrw", ""},
    {"scale_weight_grad", "rrw", ""},
    {"silu", "rw", "/1"},
    {"silu_backward", "rrw", "/2 /2"},
    {"sin", "rw", "/1"},
    {"slice_backward", "rw", "- ab"},
    {"softmax", "rw", "ab ab"},
    {"softmax_backward", "rrw", "ab ab ab"},
    {"split_with_sizes_copy", "r.w", "- - ~0"},
    {"sqrt", "..r.w", "- - - - 2"},
    {"stack", "rw", "- 0"},
    {"sub_scalar", "rw", "/1"},
    {"sum", "rw", "ab a"},
    {"sum_bias_grad", "r..w", "ab - - b"},
    {"sum_heads", "rw", "- ab"},
    {"sum_rows", "rw", "- /0"},
    {"sum_weight_grad", "r..w", "ab - - b"},
    {"tanh", "rw", "/1"},
    {"tanh_backward", "rrw", "/2 /2"},
    {"threshold_backward", "rrw", "/2 /2"},
    {"total_norm", "rw", ""},
    {"tril", "rw", ""},
    {"used_map", "w", ""},
    {"where", "rrrw", "/3 /3 /3"},
    {"write_checkpoint", "r", ""},
};

static int by_name(const void *key, const void *element)
{
    const char *name = key, *entry = ((const struct kernel *)element)->name;
    size_t n = strlen(entry);
    return entry[n - 1] == '*' ? strncmp(name, entry, n - 1) : strcmp(name, entry);
}

/* The first operand that the form needs and the instruction has not, as a slot; -1: none. */
static int missing(const struct tsr_instr *instr, const char *form)
{
    for (int slot = 0; form[slot] && form[slot] != '|'; slot++) {
        unsigned access = form[slot] == 'r'   ? TSR_READ
                          : form[slot] == 'w' ? TSR_WRITE
                          : form[slot] == 'b' ? TSR_READ_WRITE
                                              : 0;
        bool has = access == 0;
        for (uint32_t i = 0; i < instr->n_operands && !has; i++) /* the first one counts */
            if (instr->operands[i].slot == slot) {
                has = (instr->operands[i].access & access) == access;
                break;
            }
        if (!has)
            return slot;
    }
    return -1;
}

/* Slot 7 of fused_adamw: there is one for each parameter that is said to have a mirror. */
static bool lacks_mirrors(const struct tsr_instr *instr)
{
    uint32_t said = 0, has = 0;
    for (uint32_t i = 0; i < instr->work->n_args; i++)
        said += instr->work->args[i] >> 1 & 1;
    for (uint32_t i = 0; i < instr->n_operands; i++)
        has += instr->operands[i].slot == 7;
    return has < said;
}

static int missing_of_any_form(const struct tsr_instr *instr, const char *slots)
{
    int first = missing(instr, slots);
    for (const char *form = strchr(slots, '|'); form && first >= 0; form = strchr(form + 1, '|'))
        if (missing(instr, form + 1) < 0)
            return -1;
    return first;
}

/* Elements and bytes of all operands of a slot; rows count with their width, which may repeat. */
struct amount {
    uint32_t n_operands;
    uint64_t n, bytes;
};

static struct amount amount_in(const struct tsr_instr *instr, int slot)
{
    struct amount a = {0, 0, 0};
    for (uint32_t i = 0; i < instr->n_operands; i++) {
        const struct tsr_operand *o = &instr->operands[i];
        if (o->slot != slot)
            continue;
        uint64_t item = o->dtype == TSR_DTYPE_NONE ? 1 : tsr_dtype_bytes((tsr_dtype)o->dtype);
        uint64_t bytes = o->pitch ? tsr_ceil_div(o->bytes, o->pitch) * o->width : o->bytes;
        a.n_operands++;
        a.bytes += bytes;
        a.n += bytes / item;
    }
    return a;
}

/* One word of `sizes` for what a slot has; *wanted: what it should have. */
static bool fits(const struct tsr_instr *instr, const char *word, const struct amount *has,
                 uint64_t *wanted)
{
    const uint64_t *dims = instr->work->dims;
    char kind = *word;
    if (kind >= 'a' && kind < 'a' + TSR_MAX_DIMS) {
        for (*wanted = 1; *word >= 'a' && *word < 'a' + TSR_MAX_DIMS; word++)
            *wanted *= dims[*word - 'a'];
        return has->n == *wanted;
    }
    *wanted = 1;
    if (kind == '#')
        return has->n == 1;
    struct amount other = amount_in(instr, word[kind == '/' || kind == '~'] - '0');
    *wanted = kind == '~' ? other.bytes : other.n;
    if (other.n_operands == 0 || kind == '-')
        return true;
    if (kind == '/')
        return has->n > 0 && *wanted % has->n == 0;
    return (kind == '~' ? has->bytes : has->n) == *wanted;
}

/* The first slot whose operands do not have the size that they must; -1: none. An input of an
 * elementwise kernel that has one element a row says so in dims[2]. */
static int unfit(const struct tsr_instr *instr, const char *sizes, struct tsr__refused *out)
{
    int slot = 0;
    for (const char *word = sizes; *word; slot++) {
        struct amount has = amount_in(instr, slot);
        bool by_row = *word == '/' && instr->work->dims[2] >> slot & 1;
        if (*word != '-' && !by_row && has.n_operands > 0 &&
            !fits(instr, word, &has, &out->wanted)) {
            out->has = *word == '~' ? has.bytes : has.n;
            out->unit = *word == '~' ? "bytes" : "elements";
            return slot;
        }
        word += strcspn(word, " ");
        word += *word == ' ';
    }
    return -1;
}

/* What is called for what it lacks is said at the end, if the program is one that an executor would
 * run, or at once, if one is about to. */
static void refuse(struct tsr__check_rank *r, int slot, struct tsr__refused f)
{
    f.note = r->now;
    f.slot = slot;
    f.key = tsr_hash_u64(tsr__note_key(r, r->now), (uint64_t)slot);
    f.times = 1;
    for (size_t i = 0; i < r->n_refused; i++)
        if (r->refused[i].key == f.key) {
            r->refused[i].times++;
            return;
        }
    if (r->n_refused < TSR__N_REFUSED)
        r->refused[r->n_refused++] = f;
    if (r->checker->config.stop)
        tsr__report_refused(r);
}

static void report_one(struct tsr__check_rank *r, const struct tsr__refused *f)
{
    char text[TSR__TEXT];
    tsr__short(r, f->note, text, sizeof text);
    if (f->unit)
        tsr__find(r, TSR_CHECK_STRUCTURE, f->key, &f->note, 1,
                  "%s has %llu %s in slot %d, which do not fit the %llu that it computes with",
                  text, (unsigned long long)f->has, f->unit, f->slot,
                  (unsigned long long)f->wanted);
    else
        tsr__find(r, TSR_CHECK_STRUCTURE, f->key, &f->note, 1,
                  "%s has no operand in slot %d that it can use as it must", text, f->slot);
}

void tsr__report_refused(struct tsr__check_rank *r)
{
    for (size_t i = 0; i < r->n_refused && !r->is_simulated; i++)
        for (uint64_t k = 0; k < r->refused[i].times; k++)
            report_one(r, &r->refused[i]);
    r->n_refused = 0;
}

void tsr__check_kernel(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    const struct tsr_work *w = instr->work;
    struct tsr__refused why = {0};
    int slot = -1;
    if (instr->kind == TSR_FILL) {
        slot = missing(instr, "w");
    } else if (w && w->name) {
        const struct kernel *k =
            bsearch(w->name, kernels, sizeof kernels / sizeof *kernels, sizeof *kernels, by_name);
        bool is_empty = instr->n_operands == 0 && w->n_args == 0 && w->op == TSR_OP_OPTIMIZER;
        r->is_simulated |= w->compiled || (!k && instr->origin.hook != TSR_HOOK_USER);
        if (k && !is_empty) /* a list of no parameters is one */
            slot = missing_of_any_form(instr, k->slots);
        if (k && slot < 0 && !strcmp(k->name, "fused_adamw") && lacks_mirrors(instr))
            slot = 7;
        if (k && slot < 0 && !is_empty && !w->compiled)
            slot = unfit(instr, k->sizes, &why);
    }
    if (slot >= 0)
        refuse(r, slot, why);
}
