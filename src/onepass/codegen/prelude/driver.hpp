// Runs a kernel over threads it does not own: the OpenMP runtime that PyTorch has loaded is called through pointers,
// so that there is one pool. Compiled once, apart from the kernels.

typedef long long i64;
typedef void (*kernel_fn)(const void* args, i64 begin, i64 end, void* scratch);

struct Job {
  kernel_fn kernel;
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel, or null
  int (*thread_index)();                                         // omp_get_thread_num
  int (*team_size)();                                            // omp_get_num_threads
  i64 scratch_bytes;                                             // for each thread
};

extern "C" void* malloc(unsigned long);
extern "C" void free(void*);

// Up to this much scratch lies on the thread's stack: always mapped, always warm. OpenMP threads have 2 MiB or more.
static const i64 kStackScratchBytes = 131072;

static __attribute__((noinline)) void on_stack(const Job* job, const void* args, i64 begin, i64 end) {
  void* scratch = __builtin_alloca_with_align(job->scratch_bytes + 64, 512);
  job->kernel(args, begin, end, scratch);
}

static bool run_range(const Job* job, const void* args, i64 begin, i64 end) {
  if (job->scratch_bytes <= kStackScratchBytes) {
    on_stack(job, args, begin, end);
    return true;
  }
  char* block = (char*)malloc(job->scratch_bytes + 64);
  if (!block) return false;
  job->kernel(args, begin, end, block + (-(unsigned long)block & 63));
  free(block);
  return true;
}

struct Call {
  const Job* job;
  const void* args;
  i64 outer, pieces;
  int failed;
};

static void run_pieces(void* p) {
  Call* c = (Call*)p;
  i64 team = c->job->team_size();  // may be smaller than asked for (OMP_THREAD_LIMIT, nesting)
  for (i64 i = c->job->thread_index(); i < c->pieces; i += team) {
    i64 begin = c->outer * i / c->pieces, end = c->outer * (i + 1) / c->pieces;
    if (begin < end && !run_range(c->job, c->args, begin, end)) __atomic_store_n(&c->failed, 1, __ATOMIC_RELAXED);
  }
}

// 0 when done, 1 when there was no memory for scratch. `pieces` is how many ranges the outer items are cut into.
extern "C" int onepass_run(const Job* job, const void* args, i64 outer, i64 pieces) {
  Call c = {job, args, outer, pieces < outer ? pieces : outer, 0};
  if (c.pieces <= 1 || !job->parallel) return outer > 0 && !run_range(job, args, 0, outer);
  job->parallel(run_pieces, &c, (unsigned)c.pieces, 0);
  return c.failed;
}
