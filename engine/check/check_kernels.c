/* check_kernels.c: what an executor refuses: kernels without an operand that they need. Names that
 * are not in the table are those of users, and of programs that are only simulated.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/check/check_impl.h"

/* Slot by slot (engine/ops/KERNELS.md): r is read, w written, b both, . is optional or not there;
 * | before another form. In the order of strcmp(); a * at the end stands for any rest. */
struct kernel {
    const char *name, *slots;
};

static const struct kernel kernels[] = {
    {"accumulate_grad", "rb"},
    {"accumulate_sharded_grad", "rb"},
    {"add", "rrw"},
    {"add_eps", "rw"},
    {"add_into", "rb"},
    {"add_mask", "rrw"},
    {"add_scalar", "rw"},
    {"addcdiv", ".r.bb|.rrb"},
    {"addcmul_exp_avg_sq", "r.b"},
    {"addmm", "rrrw"},
    {"addmm_input_grad", "rrrw"},
    {"addmm_weight_grad", "rrrw"},
    {"all_gather_cast", "rw"},
    {"all_gather_copy_in", "rw"},
    {"arange", "w"},
    {"bmm_grad_k", "rr.w"},
    {"bmm_grad_p", "rr.w"},
    {"bmm_grad_q", "rr.w"},
    {"bmm_grad_v", "rr.w"},
    {"bmm_scores", "rr.w"},
    {"bmm_values", "rr.w"},
    {"bucket_to_grad", "rw"},
    {"cast", "rw"},
    {"cat", "rrw"},
    {"cat_gradients", "rw"},
    {"chunk_cat", "r.w"},
    {"clamp", "rw"},
    {"clone", "rw"},
    {"compress", "rw"},
    {"conjugate", "rw"},
    {"copy", "rw"},
    {"cos", "rw"},
    {"count_labels", "rw"},
    {"cross_entropy_backward", "rrrw"},
    {"d2h_*", "rw"},
    {"decompress", "rw"},
    {"device_copy", "rw"},
    {"div", "b|rw"},
    {"div_bias_correction", "....wr"},
    {"div_by_world", "b"},
    {"efficient_attention", "rrrww"},
    {"efficient_attention_backward", "rrrrrrwww"},
    {"embedding", "rrw"},
    {"embedding_dense_backward", "rrw"},
    {"expand_heads", "rw"},
    {"fill", "w"},
    {"flash_attention", "rrrww"},
    {"flash_attention_backward", "rrrrrrwww"},
    {"foreach_add_eps", "....b"},
    {"foreach_add_sgd", "r..b|.r.b"},
    {"foreach_addcdiv", ".r.bb|.rrb"},
    {"foreach_addcmul_exp_avg_sq", "r.b"},
    {"foreach_div_bias_correction", "....b"},
    {"foreach_lerp_exp_avg", "rb"},
    {"foreach_momentum", "rb"},
    {"foreach_mul_clip", ".....r"},
    {"foreach_mul_exp_avg_sq", "..b"},
    {"foreach_mul_weight_decay", "...b"},
    {"foreach_norm", "......w"},
    {"foreach_sqrt", "..r.w"},
    {"fused_adamw", "rbbb"},
    {"fused_add_layer_norm", "rrrrww"},
    {"fused_add_layer_norm_backward", "r.rr...rr"},
    {"fused_add_rms_norm", "rrr.ww"},
    {"fused_add_rms_norm_backward", "r.rr....r"},
    {"fused_cross_entropy", "rrrw"},
    {"fused_rope", "rrw"},
    {"fused_swiglu", "rrw"},
    {"fused_swiglu_backward", "rrr"},
    {"gelu", "rw"},
    {"gelu_backward", "rrw"},
    {"grad_cast", "rw"},
    {"grad_to_bucket", ".w"},
    {"grad_upcast", "rw"},
    {"h2d_*", "rw"},
    {"host_add", "rb"},
    {"init_param", "w"},
    {"join_checkpoint", ""},
    {"layer_norm", "rrrw"},
    {"layer_norm_backward", "rrr...rr"},
    {"lend_checkpoint", "r"},
    {"lerp_exp_avg", "rb"},
    {"load_shard", "rw"},
    {"log_softmax", "rw"},
    {"log_softmax_backward", "rrw"},
    {"log_softmax_tp", "rrrw"},
    {"mean", "rw"},
    {"mean_all", "rw"},
    {"mm", "rr.w"},
    {"mm_input_grad", "rr.w"},
    {"mm_weight_grad", "rr.w"},
    {"mse", "r.w"},
    {"mse_backward", "rrw"},
    {"mse_target", "rrw"},
    {"mul", "rrw"},
    {"mul_exp_avg_sq", "..b"},
    {"mul_max_norm", "rw"},
    {"mul_scalar", "rw"},
    {"mul_weight_decay", "...b"},
    {"neg", "rw"},
    {"nll_backward_tp", "rrrrw"},
    {"nll_gather", "rrw"},
    {"nll_loss", "rrww"},
    {"nll_loss_backward", "rrrw"},
    {"nll_loss_part", "rrrw"},
    {"nll_rows", "rrww"},
    {"norm_power", "rw"},
    {"ones", "w"},
    {"pad", "rw"},
    {"pad_backward", "rw"},
    {"pad_shard", "rw"},
    {"param_cast", "rw"},
    {"param_copy", "rw"},
    {"post_forward_slice", "rw"},
    {"pow", "rw"},
    {"read_batch", "w"},
    {"read_checkpoint", "w"},
    {"reciprocal", "rw"},
    {"reduce_scatter_copy", "rw"},
    {"relu", "rw"},
    {"report", "r"},
    {"rms_norm", "rr.w"},
    {"rms_norm_backward", "rrr...r"},
    {"root", "rw"},
    {"rotary", "rrw"},
    {"rotary_backward", "rrw"},
    {"rotary_table", "w"},
    {"row_exp_sum", "rrw"},
    {"row_max", "r.w"},
    {"rsqrt", "rw"},
    {"save_shard", "rw"},
    {"scalar", "w"},
    {"scale", "rrw"},
    {"scale_input_grad", "rrw"},
    {"scale_weight_grad", "rrw"},
    {"silu", "rw"},
    {"silu_backward", "rrw"},
    {"sin", "rw"},
    {"slice_backward", "rw"},
    {"softmax", "rw"},
    {"softmax_backward", "rrw"},
    {"split_with_sizes_copy", "r.w"},
    {"sqrt", "..r.w"},
    {"stack", "rw"},
    {"sub_scalar", "rw"},
    {"sum", "rw"},
    {"sum_bias_grad", "r..w"},
    {"sum_heads", "rw"},
    {"sum_rows", "rw"},
    {"sum_weight_grad", "r..w"},
    {"tanh", "rw"},
    {"tanh_backward", "rrw"},
    {"threshold_backward", "rrw"},
    {"total_norm", "rw"},
    {"tril", "rw"},
    {"used_map", "w"},
    {"where", "rrrw"},
    {"write_checkpoint", "r"},
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

/* What is called for what it lacks is said at the end, if the program is one that an executor would
 * run, or at once, if one is about to. */
static void refuse(struct tsr__check_rank *r, int slot)
{
    struct tsr__refused f = {r->now, slot, tsr_hash_u64(tsr__note_key(r, r->now), (uint64_t)slot),
                             1};
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

void tsr__report_refused(struct tsr__check_rank *r)
{
    char text[TSR__TEXT];
    for (size_t i = 0; i < r->n_refused && !r->is_simulated; i++)
        for (uint64_t k = 0; k < r->refused[i].times; k++)
            tsr__find(r, TSR_CHECK_STRUCTURE, r->refused[i].key, &r->refused[i].note, 1,
                      "%s has no operand in slot %d that it can use as it must",
                      tsr__short(r, r->refused[i].note, text, sizeof text), r->refused[i].slot);
    r->n_refused = 0;
}

void tsr__check_kernel(struct tsr__check_rank *r, const struct tsr_instr *instr)
{
    const struct tsr_work *w = instr->work;
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
    }
    if (slot >= 0)
        refuse(r, slot);
}
