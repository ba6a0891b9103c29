/* tessera.h: the public API of the engine: models, wrapping, steps. A program that uses the engine
 * includes this file; each noun is documented in the header that it lives in.
 *
 * One tsr_engine stands for one rank (or one class of ranks that do the same). The life of a job,
 * and where to read on:
 *
 *   tsr_engine_create()              engine/create.h: rank, mesh, executor, trace sink; config.h
 *   tsr_model_llama() and others     engine/models/models.h; a model of one's own, and what can be
 *                                    asked of any: engine/graph/module_tree.h, engine/ops/ops.h
 *   tsr_fully_shard(),               engine/fsdp/fully_shard.h, then tsr_set_...() of methods.h;
 *     tsr_replicate(), bottom-up     older ways: engine/fsdp1/fsdp1_wrap.h, engine/ddp/ddp.h
 *   tsr_engine_init_params()         engine/step/step.h: shards are materialised (iteration -1)
 *   tsr_step_run() per iteration     engine/step/step.h, also the parts of a step; options in
 *                                    engine/graph/step_config.h
 *   tsr_save_run() and others        engine/step/load_save.h: between two steps
 *
 * What was built, and what happened: engine/inspect.h, engine/graph/device_memory.h,
 * engine/step/values.h. What not every program needs is included by itself: operations (ops/ops.h),
 * tensor parallelism, DTensors and state dicts (layout/), the checker (check/check.h), steps
 * without emission (replay/replay.h), memory of a recorded program (program/memory.h).
 *
 * Rule numbers (R1 ... R256) and sections are those of engine/SEMANTICS.md.
 *
 * Ownership: everything that the engine returns belongs to the engine and dies with it. Strings and
 * arrays that are passed in are copied. Errors: tsr_status + tsr_error_text(); after a failed step
 * the engine can only be destroyed. One engine is used by one thread at a time. C++ includes this
 * file inside extern "C".
 */
#ifndef TSR_TESSERA_H
#define TSR_TESSERA_H

#include "engine/create.h"
#include "engine/ddp/ddp.h"
#include "engine/fsdp/custom_comm.h"
#include "engine/fsdp/fully_shard.h"
#include "engine/fsdp/methods.h"
#include "engine/fsdp1/fsdp1_wrap.h"
#include "engine/graph/config.h"
#include "engine/graph/device_memory.h"
#include "engine/graph/module_tree.h"
#include "engine/graph/step_config.h"
#include "engine/graph/user_emit.h"
#include "engine/inspect.h"
#include "engine/models/models.h"
#include "engine/step/load_save.h"
#include "engine/step/step.h"
#include "engine/step/values.h"
#include "engine/traced/traced_model.h"

#endif
