// Runs a kernel over threads it does not own: the OpenMP runtime that PyTorch has loaded is called through pointers,
// so that there is one pool. Compiled once, apart from the kernels.

typedef long long i64;
typedef void (*kernel_fn)(const void* args, i64 begin, i64 end, void* scratch);

struct Job {
  kernel_fn kernel;
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel, or null
  int (*thread_index)();                                         // omp_get_thread_num
  int (*team_size)();                                            // omp_get_num_threads
};

extern "C" void* malloc(unsigned long);
extern "C" void free(void*);

// Up to this much scratch lies on the thread's stack: always mapped, always warm. OpenMP threads have 2 MiB or more.
static const i64 kStackScratchBytes = 131072;

struct Call {
  const Job* job;
  const void* args;
  i64 outer, pieces, scratch_bytes;  // of scratch, for each thread
  int failed;
};

static __attribute__((noinline)) void run_on_stack(const Call* c, i64 begin, i64 end) {
  c->job->kernel(c->args, begin, end, __builtin_alloca_with_align(c->scratch_bytes + 64, 512));
}

static bool run_range(const Call* c, i64 begin, i64 end) {
  if (c->scratch_bytes <= kStackScratchBytes) {
    run_on_stack(c, begin, end);
  } else {
    char* block = (char*)malloc(c->scratch_bytes + 64);
    if (!block) return false;
    c->job->kernel(c->args, begin, end, block + (-(unsigned long)block & 63));
    free(block);
  }
#if defined(__x86_64__)
  __builtin_ia32_sfence();  // stores past the caches are seen by other threads from here on
#endif
  return true;
}

static void run_pieces(void* p) {
  Call* c = (Call*)p;
  i64 team = c->job->team_size();  // may be smaller than asked for (OMP_THREAD_LIMIT, nesting)
  for (i64 i = c->job->thread_index(); i < c->pieces; i += team)
    if (!run_range(c, c->outer * i / c->pieces, c->outer * (i + 1) / c->pieces))
      __atomic_store_n(&c->failed, 1, __ATOMIC_RELAXED);
}

// Runs outer items 0 .. outer - 1 in `pieces` <= outer ranges. 0 when done, 1 when there was no memory for scratch.
extern "C" int onepass_run(const Job* job, const void* args, i64 outer, i64 pieces, i64 scratch_bytes) {
  Call c = {job, args, outer, pieces, scratch_bytes, 0};
  if (outer <= 0) return 0;
  if (pieces <= 1 || !job->parallel) return !run_range(&c, 0, outer);
  job->parallel(run_pieces, &c, (unsigned)pieces, 0);
  return c.failed;
}
