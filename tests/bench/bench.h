/* bench.h: the parts of the benchmark. Each prints its figures and returns 0, or 1 if it failed. */
#ifndef TSR_BENCH_H
#define TSR_BENCH_H

double bench_now(void); /* seconds; monotonic */
double bench_cpu(void); /* seconds that this process has run */

/* The allocator against a naive list, by the number of live blocks. */
int bench_allocator(void);
/* Memory of Llama-3.1-8B steps: one, and 500 configurations. */
int bench_memory(void);

#endif
