/* commands.c: the table of subcommands: what each is called, what it does, what it accepts and what
 * it says about itself. Dispatch, the overview, the help and the lists of errors come from here.
 * Texts stand as they are printed.
 */
#include "experiments/cli/commands.h"

/* clang-format off */
const struct tsr_command tsr_commands[] = {
    {.run = tsr_cmd_compare, .place = 1, .group = TSR_GROUP_ASK, .usage = {
         .name = "compare",
         .line = "simulate the strategies of a file: which is fastest, which fit",
         .synopsis = "FILE [--out DIR] [options]",
         .options = TSR_OPT_SET | TSR_OPT_PRINT_CONFIG | TSR_OPT_FORMAT | TSR_OPT_WIDE | TSR_OPT_NOTES | TSR_OPT_OUT |
                    TSR_OPT_ONLY | TSR_OPT_JOBS | TSR_OPT_MEASURED | TSR_OPT_PART | TSR_OPT_MERGE |
                    TSR_OPT_SAMPLES | TSR_OPT_FILES | TSR_OPT_EMIT,
         .formats = "md, csv or json (default md)",
         .text =
         "Simulates each strategy of the experiment file until its step repeats itself, and prints a\n"
         "row each: step time, tokens per second, MFU, peak memory against the card, the share of\n"
         "exposed communication; with --wide also bytes sent and the first step. With --out:\n"
         "summary.csv and summary.json, and per strategy a memory timeline, a stream timeline, a\n"
         "Perfetto trace, a memory snapshot (snapshot.pickle, for pytorch.org/memory_viz), pictures, and\n"
         "report.html, a page with all of it to look at.\n"
         "Traces and snapshots are large: of more than 2 strategies they are written with --traces,\n"
         "and memory.csv is compressed without it; --no-traces leaves them out in any case.\n"
         "\n"
         "A sweep that is larger than a machine: --part I/N --out DIR simulates every N-th strategy and\n"
         "leaves the rest to others; started again it goes on where it was stopped. --part auto takes I\n"
         "and N from a Slurm array, srun, mpirun or torchrun. --merge DIR... makes of the parts the\n"
         "table and the files of one run.\n"
         "\n"
         "--emit torch DIR leaves a Python file per strategy there, build_mesh() and apply(model, mesh),\n"
         "which needs PyTorch alone; torchtitan and accelerate: their configuration. Each says at its\n"
         "top what was predicted, and which keys it does not say.\n"
         "\n"
         "Exit status: 0 also when strategies do not fit (the table says so), 1 the machine failed,\n"
         "2 a mistake in the file or the options.\n"
         "\n"
         "Examples\n"
         "  tessera compare experiments/flagship/dgx-h100-8.yaml --out out/dgx\n"
         "  tessera compare FILE --only fsdp,ddp --set batch=2 --format csv\n"
         "  tessera compare FILE --only fsdp --emit torch out/code\n"
         "  tessera compare FILE --part 3/8 --out out/part-3; tessera compare --merge out/part-* --out out\n"
         "  tessera compare FILE --set model=qwen2.5-7b --set cluster=dgx-a100-16 --print-config"}},

    {.run = tsr_cmd_sim, .place = 13, .group = TSR_GROUP_MORE, .usage = {
         .name = "sim",
         .line = "simulate one strategy",
         .synopsis = "FILE --strategy NAME [--out DIR] [options]",
         .options = TSR_OPT_SET | TSR_OPT_PRINT_CONFIG | TSR_OPT_FORMAT | TSR_OPT_WIDE | TSR_OPT_NOTES | TSR_OPT_OUT |
                    TSR_OPT_STRATEGY | TSR_OPT_SAMPLES | TSR_OPT_FILES | TSR_OPT_EMIT,
         .formats = "md, csv or json (default md)",
         .text =
         "As compare, for one strategy. Exit status 3 if it does not fit on the card. With\n"
         "allocator.limit: card the allocator fails as on the card: one line on stderr says who asked\n"
         "for how much, what was free, who holds most, what would fit; with --out, DIR/STRATEGY has\n"
         "oom.json and the snapshot at that moment.\n"
         "\n"
         "Examples\n"
         "  tessera sim experiments/flagship/dgx-h100-8.yaml --strategy fsdp\n"
         "  tessera sim FILE --strategy fsdp --set seq=8192 --out out/long"}},

    {.run = tsr_cmd_goodput, .place = 19, .group = TSR_GROUP_MORE, .usage = {
         .name = "goodput",
         .line = "what failures and checkpoints leave of a month",
         .synopsis = "FILE --strategy NAME [options]",
         .options = TSR_OPT_SET | TSR_OPT_PRINT_CONFIG | TSR_OPT_FORMAT | TSR_OPT_WIDE | TSR_OPT_OUT |
                    TSR_OPT_STRATEGY | TSR_OPT_MTBF | TSR_OPT_CKPT,
         .formats = "md, csv or json (default md)",
         .text =
         "Simulates a step and a checkpoint of the strategy, then the month event by event: nodes fail\n"
         "at random, the job restarts from its last complete checkpoint. Prints the share of time that\n"
         "was useful work, what the rest went into, and the interval between checkpoints that is best.\n"
         "The keys goodput.* say how often nodes fail and how fast storage is (tessera help keys).\n"
         "With --out: goodput.csv, the shares by interval, a picture of it, and report.html.\n"
         "\n"
         "Examples\n"
         "  tessera goodput experiments/flagship/h100-128.yaml --strategy fsdp --checkpoint-minutes 30\n"
         "  tessera goodput FILE --strategy fsdp --mtbf-hours 2000 --set goodput.asynchronous=true"}},

    {.run = tsr_cmd_jobs, .place = 20, .group = TSR_GROUP_MORE, .usage = {
         .name = "jobs",
         .line = "what jobs that share a cluster take from each other",
         .synopsis = "FILE [options]",
         .options = TSR_OPT_SET | TSR_OPT_FORMAT | TSR_OPT_WIDE,
         .formats = "md, csv or json (default md)",
         .text =
         "Simulates the jobs that the key `jobs` lists (strategies of the file, each on nodes of its\n"
         "own) one by one, then together: what they share are the uplinks of the network. Prints each\n"
         "one's step alone, its step beside the others, and the ratio.\n"
         "experiments/guide/clusters.md tells more.\n"
         "\n"
         "Example\n"
         "  tessera jobs experiments/topologies/two-jobs.yaml"}},

    {.run = tsr_cmd_run, .place = 11, .group = TSR_GROUP_RUN, .usage = {
         .name = "run",
         .line = "train one strategy on CPU cores or GPUs, or simulate it",
         .synopsis = "FILE --strategy NAME --on sim|host|cuda [options]",
         .options = TSR_OPT_SET | TSR_OPT_PRINT_CONFIG | TSR_OPT_FORMAT | TSR_OPT_WIDE | TSR_OPT_NOTES | TSR_OPT_OUT |
                    TSR_OPT_STRATEGY | TSR_OPT_ON | TSR_OPT_RANKS | TSR_OPT_NPROC |
                    TSR_OPT_TRANSPORT | TSR_OPT_TIMEOUT | TSR_OPT_RESUME | TSR_OPT_PROFILE |
                    TSR_OPT_CHECK | TSR_OPT_SERIAL | TSR_OPT_VERIFY | TSR_OPT_GPU | TSR_OPT_COMM |
                    TSR_OPT_FORCE_NCCL | TSR_OPT_EXACT | TSR_OPT_GRAPHS | TSR_OPT_ASYNC_SAVE,
         .formats = "md, csv or json (default md)",
         .text =
         "Takes the step program that compare and sim predict, and executes it:\n"
         "  --on sim   predicts, as `tessera sim`: nothing is computed, no GPU is needed\n"
         "  --on host  trains on CPU cores: the same results, but its times say nothing of GPUs\n"
         "  --on cuda  trains on the GPUs of this machine, one for each rank, which talk by NCCL\n"
         "The executors are tessera's own, not PyTorch: its code comes from compare --emit torch DIR.\n"
         "Next: run --profile --out DIR; then compare FILE --measured DIR sets the prediction beside the\n"
         "run. Not known before a run: what CUDA's libraries take outside the allocator; --on cuda prints\n"
         "the memory that each rank took.\n"
         "\n"
         "Ranks are threads (--ranks), processes (--nproc), or what mpirun, srun or torchrun started; a\n"
         "rank's streams are threads. The keys that begin with data., train., eval. and checkpoints. say\n"
         "on what and how. With --out DIR the run leaves metrics.jsonl and checkpoints there, and\n"
         "--resume DIR goes on from the latest one that is whole, at any number of ranks and in any\n"
         "strategy. With --comm loopback --ranks N are threads that share one GPU. --on cuda is done by\n"
         "the program tessera-cuda, which is beside tessera where a build has CUDA.\n"
         "\n"
         "SIGINT, SIGTERM and SIGHUP end a run after the step at hand: it saves, says how to go on, and its\n"
         "exit status is 0. When a rank is lost, or does not answer within --timeout, the others end\n"
         "with status 75, and after any failure of the machine each has left DIR/flight-rank-N.json:\n"
         "its last instructions and how far they had come. A loss that is no number ends the run with\n"
         "status 1. Checkpoints that were complete stay as they were.\n"
         "\n"
         "Examples\n"
         "  tessera run experiments/flagship/dgx-h100-8.yaml --strategy fsdp --on sim\n"
         "  tessera run experiments/small/llama.yaml --strategy fsdp --on host --ranks 4 --out run"}},

    {.run = tsr_cmd_corpus, .place = 17, .group = TSR_GROUP_MORE, .usage = {
         .name = "corpus",
         .line = "make a small corpus of bytes from a text",
         .synopsis = "PATH --out DIR [--shuffle]",
         .options = TSR_OPT_OUT | TSR_OPT_SHUFFLE,
         .formats = "",
         .text =
         "Puts the texts of a file or folder together as bytes (tokens 0 to 255): DIR/train.bin and\n"
         "DIR/val.bin for data.train and data.val. Texts that repeat others are left out. Prints what\n"
         "models that look at no byte, or at one byte before, reach on the held-out part.\n"
         "\n"
         "Example\n"
         "  tessera corpus /usr/share/common-licenses --out out/corpus"}},

    {.run = tsr_cmd_export, .place = 18, .group = TSR_GROUP_MORE, .usage = {
         .name = "export",
         .line = "write a checkpoint as a Hugging Face model",
         .synopsis = "RUN --out DIR [--dtype DTYPE]",
         .options = TSR_OPT_OUT | TSR_OPT_DTYPE,
         .formats = "",
         .text =
         "Writes model.safetensors and config.json, which transformers loads, from the latest\n"
         "checkpoint of a run (its --out).\n"
         "\n"
         "Example\n"
         "  tessera export out/run --out out/model"}},

    {.run = tsr_cmd_inspect, .place = 12, .group = TSR_GROUP_INSPECT, .usage = {
         .name = "inspect",
         .line = "show model, groups, layout and cluster",
         .synopsis = "FILE [options]",
         .options = TSR_OPT_SET | TSR_OPT_PRINT_CONFIG | TSR_OPT_FORMAT | TSR_OPT_WIDE | TSR_OPT_ONLY |
                    TSR_OPT_STATES,
         .formats = "text or json (default text)",
         .text =
         "Shows what an experiment stands for, without simulating: exact parameter counts, the groups\n"
         "and shard sizes of each strategy, the cluster and its links (? where a value is unknown).\n"
         "FILE may also be a Hugging Face config.json (mixture-of-experts models are counted too), a\n"
         "module tree, a traced model, or a cluster or node file. With --states: the engine's\n"
         "state machines.\n"
         "\n"
         "Examples\n"
         "  tessera inspect --states | dot -Tsvg -o states.svg\n"
         "  tessera inspect experiments/flagship/dgx-h100-8.yaml --only fsdp\n"
         "  tessera inspect experiments/models/deepseek-v3.json"}},

    {.run = tsr_cmd_program, .place = 14, .group = TSR_GROUP_MORE, .usage = {
         .name = "program",
         .line = "print the step program of one rank",
         .synopsis = "FILE --strategy NAME [--iteration I] [--rank R]",
         .options = TSR_OPT_SET | TSR_OPT_PRINT_CONFIG | TSR_OPT_STRATEGY | TSR_OPT_ITERATION |
                    TSR_OPT_RANK,
         .formats = "",
         .text =
         "Prints every instruction that an iteration (or init, load, eval, save) of one rank gives to\n"
         "an executor, in the order of issue, and the two hashes: of the program, and of the addresses.\n"
         "\n"
         "Example\n"
         "  tessera program experiments/flagship/dgx-h100-8.yaml --strategy fsdp --iteration 0"}},

    {.run = tsr_cmd_memory, .place = 15, .group = TSR_GROUP_MORE, .usage = {
         .name = "memory",
         .line = "what PyTorch's allocator holds, phase by phase",
         .synopsis = "FILE --strategy NAME [-o RESULT.json] [options]",
         .options = TSR_OPT_OUT_FILE | TSR_OPT_STRATEGY | TSR_OPT_RANK | TSR_OPT_SET,
         .formats = "",
         .text =
         "Predicts the figures of PyTorch's allocator in iterations 0 and 1 of one rank (--rank) of the\n"
         "strategy, phase by phase, and names what a run beside it has to bring. `python -m tessera\n"
         "check` compares written code with them.\n"
         "\n"
         "Example\n"
         "  tessera memory experiments/small/llama.yaml --strategy fsdp -o figures.json"}},

    {.run = tsr_cmd_explain, .place = 3, .group = TSR_GROUP_ASK, .usage = {
         .name = "explain",
         .line = "why memory peaks where it does, and what would lower it",
         .synopsis = "FILE --strategy NAME [options]",
         .options = TSR_OPT_SET | TSR_OPT_PRINT_CONFIG | TSR_OPT_FORMAT | TSR_OPT_WIDE | TSR_OPT_NOTES | TSR_OPT_STRATEGY |
                    TSR_OPT_JOBS | TSR_OPT_TOP | TSR_OPT_NO_WHAT_IF | TSR_OPT_TIME | TSR_OPT_DEEP,
         .formats = "text or json (default text)",
         .text =
         "Shows the instant of the peak (iteration, phase, module, hook, operation), everything alive\n"
         "then by category and owner, the units with unsharded parameters, what checkpointing keeps,\n"
         "the peaks of the phases and the next-highest ones, and what the allocator holds beyond it.\n"
         "Then what-ifs: the strategy with one key changed; with --deep also the best pair and triple of\n"
         "changes. Each is a full emission of the changed strategy. experiments/guide/explain.md has\n"
         "more.\n"
         "\n"
         "Exit status: 3 if the strategy runs out of memory (with allocator.limit: card).\n"
         "\n"
         "Examples\n"
         "  tessera explain experiments/flagship/dgx-h100-8.yaml --strategy fsdp\n"
         "  tessera explain FILE --strategy fsdp --set batch=2 --time --format json"}},

    {.run = tsr_cmd_overlap, .place = 4, .group = TSR_GROUP_ASK, .usage = {
         .name = "overlap",
         .line = "which communication is exposed, why, and what would hide it",
         .synopsis = "FILE|RUN_DIR [--strategy NAME] [options]",
         .options = TSR_OPT_SET | TSR_OPT_PRINT_CONFIG | TSR_OPT_FORMAT | TSR_OPT_WIDE | TSR_OPT_NOTES | TSR_OPT_OUT |
                    TSR_OPT_STRATEGY | TSR_OPT_JOBS | TSR_OPT_TOP | TSR_OPT_NO_WHAT_IF | TSR_OPT_RANK,
         .formats = "text, json or csv (default text)",
         .text =
         "Simulates a strategy of FILE, or reads what a run left: RUN_DIR is the --out folder of\n"
         "compare or sim, of run --profile, or the folder of one strategy in it. Shows what hides\n"
         "behind computation and what does not: by kind, and for the most exposed collectives when\n"
         "they were issued, began and ended. Why each is exposed: the host was late, another kind of\n"
         "collective held its communicator, a buffer was not free, its stream had to wait, or there was\n"
         "no computation left to hide it (bandwidth). The slowest rank is shown; --rank R shows another:\n"
         "with sim.slow_rank, what the others wait for. For a FILE, then changes that may hide it, each\n"
         "simulated. --out writes overlap.csv, a picture and report.html. experiments/guide/overlap.md tells\n"
         "more.\n"
         "\n"
         "Examples\n"
         "  tessera overlap experiments/flagship/dgx-h100-8.yaml --strategy fsdp\n"
         "  tessera overlap experiments/flagship/h100-128.yaml --strategy fsdp --out out/overlap\n"
         "  tessera overlap out/run --format json"}},

    {.run = tsr_cmd_diff, .place = 5, .group = TSR_GROUP_ASK, .usage = {
         .name = "diff",
         .line = "where the memory of two strategies or recorded runs parts",
         .synopsis = "A B [options]",
         .options = TSR_OPT_SET | TSR_OPT_FORMAT | TSR_OPT_WIDE | TSR_OPT_TOP | TSR_OPT_SECOND_FILE,
         .formats = "text or json (default text)",
         .text =
         "A and B are each one of\n"
         "  FILE:STRATEGY    a strategy of an experiment file (FILE alone if it has one)\n"
         "  DIR              the folder of a strategy that compare or sim wrote (--out)\n"
         "  memory.csv       the same; phases.csv beside it names the phases\n"
         "  NAME.timeline.json[.gz]   a recorded run of PyTorch (tests/golden-memory)\n"
         "  NAME.pickle[.gz]          a memory snapshot: torch.cuda.memory._dump_snapshot() of a real run,\n"
         "                            or snapshot.pickle of compare; its last whole step\n"
         "The two curves are aligned by phase and module, not by time. Shown are the place where they\n"
         "part first, what grew at each one's peak by category and owner, the peaks of the phases,\n"
         "and, where times are known, the collectives that are exposed more or less.\n"
         "--set applies to both experiment files.\n"
         "\n"
         "Examples\n"
         "  tessera diff experiments/flagship/dgx-h100-8.yaml:fsdp experiments/flagship/dgx-h100-8.yaml:fsdp-checkpoint\n"
         "  tessera diff my.yaml:fsdp rank0.pickle\n"
         "  tessera diff out/dgx/fsdp out/dgx/ddp --format json"}},

    {.run = tsr_cmd_plan, .place = 2, .group = TSR_GROUP_ASK, .usage = {
         .name = "plan",
         .line = "search for the fastest strategies, or the largest size, that fit",
         .synopsis = "FILE [--strategy NAME] [--max batch|seq|layers] [options]",
         .options = TSR_OPT_SET | TSR_OPT_FORMAT | TSR_OPT_WIDE | TSR_OPT_NOTES | TSR_OPT_OUT | TSR_OPT_STRATEGY | TSR_OPT_JOBS |
                    TSR_OPT_TOP | TSR_OPT_MAX | TSR_OPT_EXHAUSTIVE | TSR_OPT_GO_ON | TSR_OPT_EMIT | TSR_OPT_ALLOW |
                    TSR_OPT_COMMANDS | TSR_OPT_WRITE,
         .formats = "md, csv or json (default md)",
         .text =
         "Tries every combination of some settings on top of one strategy. Prints the N fastest that\n"
         "fit the memory budget (--top), the Pareto front of time per token and memory in brief, why\n"
         "the first one wins, and what to do with it; --wide prints all rows, --commands a command\n"
         "for each, --write N FILE leaves one as an experiment. `plan: {budget_gib: N, space: {KEY: [values]}}` in the file\n"
         "says what is tried and what may be used; without it: a default space, and the card's usable\n"
         "memory. Rows that need more than the strategy (torch.compile, a loss in chunks, another API)\n"
         "are marked and come last, unless --allow names it, or `plan: {allow: [...]}`.\n"
         "What cannot fit is not emitted and what cannot win is not simulated; nothing is lost by that\n"
         "(--exhaustive does without). With --max: the largest value that fits. With --out: plan.csv,\n"
         "summary.json, a picture and report.html. Ctrl-C ends the search and prints the best so far;\n"
         "--resume goes on with what it left in --out DIR. --emit torch DIR leaves what was found as\n"
         "code (tessera help compare). experiments/guide/plan.md tells more.\n"
         "\n"
         "Exit status: 3 if nothing fits, 128 and the signal's number if it was interrupted (SIGINT: 130).\n"
         "\n"
         "Examples\n"
         "  tessera plan experiments/flagship/dgx-h100-8.yaml --out out/plan\n"
         "  tessera plan FILE --strategy fsdp --set 'plan.space={batch: [1, 2], wrap: [block, root]}'\n"
         "  tessera plan FILE --strategy fsdp --set plan.budget_gib=60 --top 3\n"
         "  tessera plan FILE --strategy fsdp --max seq"}},

    {.run = tsr_cmd_check, .place = 10, .group = TSR_GROUP_TRUST, .usage = {
         .name = "check",
         .line = "look for races, leaks, deadlocks and ranks that differ",
         .synopsis = "FILE [--strategy NAME] [options]",
         .options = TSR_OPT_SET | TSR_OPT_PRINT_CONFIG | TSR_OPT_STRATEGY,
         .formats = "",
         .text =
         TSR_HELP_CHECK
         "collectives that differ between ranks, deadlocks. engine/check/CHECKER.md has the rules, and\n"
         "what mutated programs showed.\n"
         "\n"
         TSR_HELP_CHECK_STATUS
         "Examples\n"
         "  tessera check experiments/flagship/dgx-h100-8.yaml\n"
         "  tessera check FILE --strategy fsdp --set accumulation.steps=4"}},

    {.run = tsr_cmd_kernels, .place = 8, .group = TSR_GROUP_TRUST, .usage = {
         .name = "kernels",
         .line = "predict measured kernels: by how much the cost model misses",
         .synopsis = "FILE.csv [--leave-one-out] [options]",
         .options = TSR_OPT_FORMAT | TSR_OPT_WIDE | TSR_OPT_LEAVE_OUT,
         .formats = "md, csv or json (default md)",
         .text =
         "Reads a table of measured kernels (matrix products: m, n, k, batch, dtype, tflops; attention:\n"
         "kernel, pass, head_dim, seq_len, tflops; norms: backend, rows_N, cols_C, fwd_GBps, bwd_GBps;\n"
         "losses: rows, vocab, fwd_ms, full_ms),\n"
         "prices each row on the card of its column gpu, and prints predicted, measured, error and\n"
         "their quantiles: of points that the simulator's tables have, and of those that they have\n"
         "not. With --leave-one-out each point is predicted by its neighbours. No sustained factor\n"
         "applies: tables are short runs.\n"
         "\n"
         "Examples\n"
         "  tessera kernels experiments/validation/kernels/gemm.csv --leave-one-out\n"
         "  tessera kernels TABLE.csv --format csv"}},

    {.run = tsr_cmd_collectives, .place = 9, .group = TSR_GROUP_TRUST, .usage = {
         .name = "collectives",
         .line = "predict what nccl-tests prints on a cluster",
         .synopsis = "CLUSTER [--ranks N] [--sizes BYTES,...] [--set KEY=VALUE] [options]",
         .options = TSR_OPT_SET | TSR_OPT_ONLY | TSR_OPT_FORMAT | TSR_OPT_WIDE | TSR_OPT_RANKS | TSR_OPT_SIZES,
         .formats = "md or csv (default md)",
         .text =
         "Simulates all-reduce, all-gather, reduce-scatter, all-to-all and broadcast by size over the\n"
         "first N GPUs of a cluster (default: all). CLUSTER is a file or a name. Keys of --set: sim.*,\n"
         "such as sim.algorithm=ring, sim.protocol=ll or sim.calibration.intra_efficiency=0.8.\n"
         "\n"
         "Examples\n"
         "  tessera collectives dgx-h100-2\n"
         "  tessera collectives dgx-h100-2 --ranks 8 --sizes 67108864,1073741824 --format csv"}},

    {.run = tsr_cmd_calibrate, .place = 7, .group = TSR_GROUP_TRUST, .usage = {
         .name = "calibrate",
         .line = "time a machine, or read what was timed, for the simulator",
         .synopsis = "--on host|cuda --out DIR [options], TRACE.json --out DIR [--ranks N], or --nccl-log "
                     "LOG [--out FILE.csv]",
         .options = TSR_OPT_NCCL_LOG | TSR_OPT_OUT_FILE | TSR_OPT_ON | TSR_OPT_RANKS | TSR_OPT_GPU |
                    TSR_OPT_COMM,
         .formats = "",
         .text =
         "Times a machine as `run` uses it: every kernel at several sizes, what issuing an instruction\n"
         "costs, collectives between 2 to N ranks (--ranks, default 8; threads), and on the host how many\n"
         "ranks the cores carry. --on cuda: a rank on each GPU, or all on one with --comm loopback. DIR\n"
         "gets cluster-NAME.json (host, or the GPU's name) and the node, device and kernel tables that it\n"
         "names: `compare --set cluster=DIR/cluster-NAME.json` then predicts runs there. Takes some seconds\n"
         "on a host, some minutes on GPUs. Times are medians: what else the machine does is left out.\n"
         "\n"
         "TRACE.json[.gz] is a trace of torch.profiler with record_shapes=True: the same files of the GPU\n"
         "that it is of: medians of kernels by operator and shape, of the gaps between launches, and of\n"
         "collectives by bytes, of groups of up to --ranks GPUs (those of a node, default 8).\n"
         "\n"
         "--nccl-log reads a log of nccl-tests (all_reduce_perf, all_gather_perf, reduce_scatter_perf,\n"
         "alltoall_perf, broadcast_perf) and writes it as a table with the columns of\n"
         "experiments/validation/nccl_busbw.csv: `tessera validate` predicts its rows, and\n"
         "experiments/validation/collectives/fit.py fits a device file to them.\n"
         "\n"
         "Examples\n"
         "  tessera calibrate --on host --out my-host\n"
         "  tessera calibrate --on cuda --comm loopback --ranks 2 --out my-gpu\n"
         "  tessera calibrate rank0.json.gz --out my-gpu\n"
         "  tessera calibrate --nccl-log all_reduce_perf.log --out my-cluster.csv"}},

    {.run = tsr_cmd_validate, .place = 6, .group = TSR_GROUP_TRUST, .usage = {
         .name = "validate",
         .line = "predict a published table, and compare with what was measured",
         .synopsis = "FILE.csv [--out DIR] [options]",
         .options = TSR_OPT_SET | TSR_OPT_FORMAT | TSR_OPT_WIDE | TSR_OPT_OUT | TSR_OPT_JOBS | TSR_OPT_CONDITIONS |
                    TSR_OPT_STRICT,
         .formats = "md, csv or json (default md)",
         .text =
         "Reads a table with the columns of one of experiments/validation/*.csv, simulates every row as\n"
         "an experiment and prints predicted, measured and error, then median, 90 % quantile and largest\n"
         "error by class, and the rank correlation of MFU. A row that is not modelled, or has a cell that\n"
         "cannot be read, is named with its reason and counts as 100 % (--strict: such a cell is an error);\n"
         "a row without a measured figure is left out; of a range of GPUs the worse end counts.\n"
         "--set changes keys of every row. With --out: the rows as CSV, a picture of predicted against\n"
         "measured, and report.html. experiments/guide/validation.md has the figures and what they rest on.\n"
         "\n"
         "Examples\n"
         "  tessera validate experiments/validation/llm_foundry.csv --out out/validate\n"
         "  tessera validate TABLE.csv --format json"}},

    {.run = NULL}};
/* clang-format on */
