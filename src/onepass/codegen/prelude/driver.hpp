// Runs a kernel over threads it does not own: the OpenMP runtime that PyTorch has loaded is called through pointers,
// so that there is one pool. Compiled once, apart from the kernels.
//
// Python calls it as a built-in function: 0.12 us a call, where ctypes took 0.97 us for the same five values (and
// torch.add takes 1.8 us; Python 3.11, Zen 3, 2026-11-30). The functions used are all in Python's stable ABI.

typedef long long i64;
typedef void (*kernel_fn)(const void* args, i64 begin, i64 end, void* scratch);

struct Job {
  kernel_fn kernel;
  void (*parallel)(void (*)(void*), void*, unsigned, unsigned);  // GOMP_parallel, or null
  int (*thread_index)();                                         // omp_get_thread_num
  int (*team_size)();                                            // omp_get_num_threads
  int (*thread_count)();                                         // at::get_num_threads
  i64 grain_bytes;                                               // a thread is worth starting for so much work
};

struct PyObject;
extern "C" {
void* malloc(unsigned long);
void free(void*);
char* PyBytes_AsString(PyObject*);
long long PyLong_AsLongLong(PyObject*);
PyObject* Py_BuildValue(const char*, ...);
PyObject* PyErr_Occurred();
PyObject* PyErr_NoMemory();
void PyErr_SetString(PyObject*, const char*);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
extern PyObject* PyExc_TypeError;
}

struct Call {
  const Job* job;
  const void* args;
  i64 outer, pieces, scratch_bytes;  // of scratch, for each thread
  int failed;
};

// Up to this much scratch lies on the thread's stack: always mapped, always warm. OpenMP threads have 2 MiB or more.
static const i64 kStackScratchBytes = 131072;

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

// Where the ranges are cut depends on the number of items, their bytes and the thread count, and on nothing else.
static i64 pieces_for(const Job* job, i64 outer, i64 item_bytes) {
  i64 pieces = outer * item_bytes / job->grain_bytes;
  if (pieces <= 1 || !job->parallel) return 1;
  i64 threads = job->thread_count();
  pieces = pieces < threads ? pieces : threads;
  return pieces < outer ? pieces : outer;
}

// (args: bytes, outer: int, item_bytes: int, scratch_bytes: int) -> None; self is the bytes of a Job.
static PyObject* run(PyObject* self, PyObject* const* a, long count) {
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "a CPU kernel takes (args, outer, item_bytes, scratch_bytes)");
    return nullptr;
  }
  const Job* job = (const Job*)PyBytes_AsString(self);
  const char* args = PyBytes_AsString(a[0]);
  i64 outer = PyLong_AsLongLong(a[1]), item_bytes = PyLong_AsLongLong(a[2]);
  Call c = {job, args, outer, 1, PyLong_AsLongLong(a[3]), 0};
  if (!args || PyErr_Occurred()) return nullptr;
  if (outer > 0 && outer * item_bytes < job->grain_bytes) {  // a few us: not worth letting go of the interpreter
    c.failed = !run_range(&c, 0, outer);
  } else if (outer > 0) {
    void* python = PyEval_SaveThread();
    c.pieces = pieces_for(job, outer, item_bytes);
    if (c.pieces == 1)
      c.failed = !run_range(&c, 0, outer);
    else
      job->parallel(run_pieces, &c, (unsigned)c.pieces, 0);
    PyEval_RestoreThread(python);
  }
  return c.failed ? PyErr_NoMemory() : Py_BuildValue("");
}

struct PyMethodDef {
  const char* name;
  PyObject* (*function)(PyObject*, PyObject* const*, long);
  int flags;
  const char* doc;
};
extern "C" {
PyMethodDef onepass_run = {"run", run, 0x80 /* METH_FASTCALL */, nullptr};
}
