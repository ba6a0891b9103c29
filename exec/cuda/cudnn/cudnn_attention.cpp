/* cudnn_attention.cpp: attention.h by cuDNN's graphs. The frontend is a header that takes the compiler
 * most of a minute and 2 GB: it is included here and nowhere else.
 */
#include <cstdio>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <cudnn_frontend.h>

#include "exec/cuda/cudnn/cudnn_attention.h"

namespace fe = cudnn_frontend;

/* Numbers of tensors in a graph: those of enum tsr_attention_tensor from 1 on, then lse. */
enum { UID_FIRST = 1, UID_LSE = UID_FIRST + TSR_ATTENTION_TENSORS };

struct tsr_attention_plan {
    struct tsr_cudnn_shape shape;
    std::shared_ptr<fe::graph::Graph> graph; /* null: cuDNN has none */
    int64_t bytes;
};

struct tsr_cuda_attention {
    cudnnHandle_t handle;
    int architecture;
    std::mutex lock;
    std::vector<std::unique_ptr<tsr_attention_plan>> plans;
    std::string note;
};

static int say(char why[TSR_ATTENTION_TEXT], const std::string &text)
{
    std::snprintf(why, TSR_ATTENTION_TEXT, "%s", text.c_str());
    for (char *c = why; *c; c++)
        if (*c == '\n')
            *c = ' ';
    return 1;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static bool is_of_keys(int tensor)
{
    return tensor == TSR_ATTENTION_K || tensor == TSR_ATTENTION_V || tensor == TSR_ATTENTION_GK ||
           tensor == TSR_ATTENTION_GV;
}

/* cuDNN's order is (batch, head, token, element), with any strides. */
static std::vector<int64_t> dims_of(const tsr_cudnn_shape &s, int tensor)
{
    bool keys = is_of_keys(tensor);
    return {static_cast<int64_t>(s.batch), static_cast<int64_t>(keys ? s.kv_heads : s.heads),
            static_cast<int64_t>(keys ? s.keys : s.queries), static_cast<int64_t>(s.d)};
}

static std::vector<int64_t> strides_of(const tsr_cudnn_shape &s, int tensor)
{
    uint64_t tokens = is_of_keys(tensor) ? s.keys : s.queries;
    return {static_cast<int64_t>(tokens * s.row[tensor]), static_cast<int64_t>(s.head[tensor]),
            static_cast<int64_t>(s.row[tensor]), 1};
}

static std::shared_ptr<fe::graph::Tensor_attributes>
input(fe::graph::Graph &graph, const tsr_cudnn_shape &s, int tensor, const char *name)
{
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_name(name)
                            .set_uid(UID_FIRST + tensor)
                            .set_dim(dims_of(s, tensor))
                            .set_stride(strides_of(s, tensor)));
}

static void output(const std::shared_ptr<fe::graph::Tensor_attributes> &t,
                   const tsr_cudnn_shape &s, int tensor)
{
    t->set_output(true)
        .set_uid(UID_FIRST + tensor)
        .set_dim(dims_of(s, tensor))
        .set_stride(strides_of(s, tensor));
}

static std::vector<int64_t> lse_dims(const tsr_cudnn_shape &s)
{
    return {static_cast<int64_t>(s.batch), static_cast<int64_t>(s.heads),
            static_cast<int64_t>(s.queries), 1};
}

static std::vector<int64_t> lse_strides(const tsr_cudnn_shape &s)
{
    return {static_cast<int64_t>(s.heads * s.lse_row), static_cast<int64_t>(s.lse_row), 1, 1};
}

static void add_forward(fe::graph::Graph &graph, const tsr_cudnn_shape &s)
{
    auto q = input(graph, s, TSR_ATTENTION_Q, "q");
    auto k = input(graph, s, TSR_ATTENTION_K, "k");
    auto v = input(graph, s, TSR_ATTENTION_V, "v");
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(true)
                       .set_attn_scale(static_cast<float>(s.scale));
    if (s.causal)
        options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
            .set_diagonal_band_right_bound(0);
    auto results = graph.sdpa(q, k, v, options);
    output(results[0], s, TSR_ATTENTION_OUT);
    results[1]
        ->set_output(true)
        .set_uid(UID_LSE)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim(lse_dims(s))
        .set_stride(lse_strides(s));
}

static void add_backward(fe::graph::Graph &graph, const tsr_cudnn_shape &s)
{
    auto q = input(graph, s, TSR_ATTENTION_Q, "q");
    auto k = input(graph, s, TSR_ATTENTION_K, "k");
    auto v = input(graph, s, TSR_ATTENTION_V, "v");
    auto out = input(graph, s, TSR_ATTENTION_OUT, "out");
    auto g = input(graph, s, TSR_ATTENTION_G, "g");
    auto lse = graph.tensor(fe::graph::Tensor_attributes()
                                .set_name("lse")
                                .set_uid(UID_LSE)
                                .set_data_type(fe::DataType_t::FLOAT)
                                .set_dim(lse_dims(s))
                                .set_stride(lse_strides(s)));
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention_backward")
                       .set_attn_scale(static_cast<float>(s.scale))
                       .set_deterministic_algorithm(s.deterministic != 0);
    if (s.causal)
        options.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
            .set_diagonal_band_right_bound(0);
    auto results = graph.sdpa_backward(q, k, v, out, g, lse, options);
    output(results[0], s, TSR_ATTENTION_GQ);
    output(results[1], s, TSR_ATTENTION_GK);
    output(results[2], s, TSR_ATTENTION_GV);
}

/* A graph that the frontend has found no fault with; null: `why`. */
static std::shared_ptr<fe::graph::Graph> describe(int architecture, const tsr_cudnn_shape &s,
                                                  char why[TSR_ATTENTION_TEXT])
{
    auto graph = std::make_shared<fe::graph::Graph>();
    graph->set_io_data_type(s.half ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    graph->set_sm_version(architecture);
    if (s.backward)
        add_backward(*graph, s);
    else
        add_forward(*graph, s);
    auto result = graph->validate();
    if (result.is_good())
        return graph;
    say(why, result.get_message());
    return nullptr;
}

/* The same, ready to run. */
static std::shared_ptr<fe::graph::Graph> build(const tsr_cuda_attention &a,
                                               const tsr_cudnn_shape &s, int64_t &bytes,
                                               char why[TSR_ATTENTION_TEXT])
{
    auto graph = describe(a.architecture, s, why);
    if (!graph)
        return nullptr;
    auto result = graph->build_operation_graph(a.handle);
    if (result.is_good())
        result = graph->create_execution_plans({fe::HeurMode_t::A});
    if (result.is_good())
        result = graph->check_support();
    if (result.is_good())
        result = graph->build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE);
    if (result.is_good())
        result = graph->get_workspace_size(bytes);
    if (result.is_good())
        return graph;
    say(why, result.get_message());
    return nullptr;
}

/* ---- plans ----------------------------------------------------------------------------------- */

static bool same(const tsr_cudnn_shape &x, const tsr_cudnn_shape &y)
{
    for (int i = 0; i < TSR_ATTENTION_TENSORS; i++)
        if (x.row[i] != y.row[i] || x.head[i] != y.head[i])
            return false;
    return std::tie(x.batch, x.heads, x.kv_heads, x.queries, x.keys, x.d, x.lse_row, x.half,
                    x.causal, x.backward, x.deterministic, x.scale) ==
           std::tie(y.batch, y.heads, y.kv_heads, y.queries, y.keys, y.d, y.lse_row, y.half,
                    y.causal, y.backward, y.deterministic, y.scale);
}

static void note_first(tsr_cuda_attention &a, const tsr_cudnn_shape &s, const std::string &why)
{
    if (a.note.empty())
        a.note = "attention of " + std::to_string(s.heads) + " heads of " + std::to_string(s.d) +
                 " runs in plain kernels, much slower: " + why;
}

static const tsr_attention_plan *find_or_make(tsr_cuda_attention &a, const tsr_cudnn_shape &s)
{
    for (const auto &plan : a.plans)
        if (same(plan->shape, s))
            return plan.get();
    char why[TSR_ATTENTION_TEXT] = "";
    auto plan = std::make_unique<tsr_attention_plan>();
    plan->shape = s;
    plan->bytes = 0;
    try {
        plan->graph = build(a, s, plan->bytes, why);
    } catch (const std::exception &e) {
        plan->graph = nullptr;
        say(why, e.what());
    }
    if (!plan->graph)
        note_first(a, s, std::string("cuDNN says '") + why + "'");
    a.plans.push_back(std::move(plan));
    return a.plans.back().get();
}

extern "C" int tsr_attention_create(int architecture, struct tsr_cuda_attention **out,
                                    char why[TSR_ATTENTION_TEXT])
{
    static std::mutex one_at_a_time; /* cuDNN's advice: ranks may be threads */
    *out = nullptr;
    try {
        auto a = std::make_unique<tsr_cuda_attention>();
        a->architecture = architecture;
        std::lock_guard<std::mutex> guard(one_at_a_time);
        cudnnStatus_t status = cudnnCreate(&a->handle);
        if (status != CUDNN_STATUS_SUCCESS)
            return say(why, std::string("cuDNN does not start: ") + cudnnGetErrorString(status));
        *out = a.release();
        return 0;
    } catch (const std::exception &e) {
        return say(why, e.what());
    }
}

extern "C" void tsr_attention_destroy(struct tsr_cuda_attention *attention)
{
    if (!attention)
        return;
    attention->plans.clear();
    cudnnDestroy(attention->handle);
    delete attention;
}

extern "C" const struct tsr_attention_plan *
tsr_attention_prepare(struct tsr_cuda_attention *attention, const struct tsr_cudnn_shape *shape,
                      uint64_t *bytes)
{
    *bytes = 0;
    try {
        std::lock_guard<std::mutex> guard(attention->lock);
        const auto *plan = find_or_make(*attention, *shape);
        if (!plan->graph)
            return nullptr;
        *bytes = static_cast<uint64_t>(plan->bytes);
        return plan;
    } catch (const std::exception &) {
        return nullptr; /* out of memory */
    }
}

extern "C" int tsr_attention_run(struct tsr_cuda_attention *attention,
                                 const struct tsr_attention_plan *plan,
                                 const struct tsr_attention_pointers *at, void *workspace,
                                 cudaStream_t stream, char why[TSR_ATTENTION_TEXT])
{
    try {
        std::unordered_map<int64_t, void *> pointers = {{UID_LSE, at->lse}};
        int n = plan->shape.backward ? TSR_ATTENTION_TENSORS : TSR_ATTENTION_G;
        for (int i = 0; i < n; i++)
            pointers[UID_FIRST + i] = at->tensor[i];
        std::lock_guard<std::mutex> guard(attention->lock);
        cudnnStatus_t status = cudnnSetStream(attention->handle, stream);
        if (status != CUDNN_STATUS_SUCCESS)
            return say(why, cudnnGetErrorString(status));
        auto result = plan->graph->execute(attention->handle, pointers, workspace);
        return result.is_good() ? 0 : say(why, result.get_message());
    } catch (const std::exception &e) {
        return say(why, e.what());
    }
}

extern "C" void tsr_attention_lacks(struct tsr_cuda_attention *attention,
                                    const struct tsr_attention_plan *plan, uint64_t bytes)
{
    try {
        std::lock_guard<std::mutex> guard(attention->lock);
        note_first(*attention, plan->shape,
                   "cuDNN needs a workspace of " + std::to_string(bytes >> 20) +
                       " MiB, for which there is no memory");
    } catch (const std::exception &) {
        return; /* out of memory: nothing is noted */
    }
}

extern "C" void tsr_attention_note(struct tsr_cuda_attention *attention,
                                   char note[TSR_ATTENTION_TEXT])
{
    std::lock_guard<std::mutex> guard(attention->lock);
    say(note, attention->note);
}

extern "C" int tsr_attention_validate(int architecture, const struct tsr_cudnn_shape *shape,
                                      char why[TSR_ATTENTION_TEXT])
{
    try {
        return describe(architecture, *shape, why) ? 0 : 1;
    } catch (const std::exception &e) {
        return say(why, e.what());
    }
}
