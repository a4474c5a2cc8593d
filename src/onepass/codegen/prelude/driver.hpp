// Runs CPU kernels over threads it does not own: the OpenMP runtime that PyTorch has loaded is called through pointers,
// so that there is one pool. Launches CUDA kernels, through a pointer to the driver's cuLaunchKernelEx. Compiled once, apart
// from the kernels.
//
// Python calls both as built-in functions: 0.12 us a call, where ctypes took 0.97 us for the same five values (and
// torch.add takes 1.8 us; Python 3.11, Zen 3, 2026-11-30). But for PyObject_Vectorcall, which came into Python's stable ABI
// with 3.12, the functions used are all in it.

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
PyObject* PyTuple_GetItem(PyObject*, long);
PyObject* PyObject_Vectorcall(PyObject*, PyObject* const*, unsigned long, PyObject*);
void PyErr_SetString(PyObject*, const char*);
void* PyEval_SaveThread();
void PyEval_RestoreThread(void*);
extern PyObject* PyExc_TypeError;
extern PyObject* PyExc_IndexError;
extern PyObject* PyExc_RuntimeError;
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

// False if there is no memory for the scratch.
static bool run_items(const Job* job, const void* args, i64 outer, i64 item_bytes, i64 scratch_bytes) {
  Call c = {job, args, outer, 1, scratch_bytes, 0};
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
  return !c.failed;
}

// (args: bytes, outer: int, item_bytes: int, scratch_bytes: int) -> None; self is the bytes of a Job.
static PyObject* run(PyObject* self, PyObject* const* a, long count) {
  if (count != 4) {
    PyErr_SetString(PyExc_TypeError, "a CPU kernel takes (args, outer, item_bytes, scratch_bytes)");
    return nullptr;
  }
  const Job* job = (const Job*)PyBytes_AsString(self);
  const char* args = PyBytes_AsString(a[0]);
  i64 outer = PyLong_AsLongLong(a[1]), item_bytes = PyLong_AsLongLong(a[2]), scratch_bytes = PyLong_AsLongLong(a[3]);
  if (!args || PyErr_Occurred()) return nullptr;
  return run_items(job, args, outer, item_bytes, scratch_bytes) ? Py_BuildValue("") : PyErr_NoMemory();
}

// What a generated kernel needs besides (runtime/launch_cpu.py packs it).
struct Work {
  Job job;
  i64* launched;          // counts launches
  i64 values;             // of the block, before those added here
  i64 cols_at;            // which of them is the row length
  i64 chunk;              // of a row in an item; 0: an item is a row
  i64 whole_rows;         // an item covers the row length, chunk times where there are chunks
  i64 lanes;              // of the row length that are done together
  i64 kept_bytes;         // of scratch for each of their elements
  double element_bytes;   // read and written
  i64 reports;            // the kernel reports an index out of range, or an integer divisor of zero
  i64 part;               // columns that are reduced apart; 0: rows are whole
  i64 part_bytes;         // of memory for what a part leaves
  i64 loops;              // over the columns
  i64 phases;             // those, and one more where values are stored once a row
};

// Rows fewer than threads, each in parts: every loop over the columns is run over all parts of all rows, in memory that
// they share. The order in which parts are combined is that of the columns. False if there is no memory.
static bool run_parts(const Work* w, i64* block, i64 rows, i64 parts, i64 row_bytes) {
  char* memory = (char*)malloc(rows * row_bytes + 64);
  if (!memory) return false;
  i64 *phase = block + w->values + 4, *shared = phase + 1;
  *shared = (i64)(memory + (-(unsigned long)memory & 63));
  bool fine = true;
  for (*phase = 0; *phase < w->phases && fine; ++*phase) {
    bool once = *phase == w->loops;  // a row
    i64 bytes = once ? 1 : (i64)(w->element_bytes * w->part / w->loops) + 1;
    fine = run_items(&w->job, block, once ? rows : rows * parts, bytes, 0);
  }
  free(memory);
  return fine;
}

// (rows, extent, *values: int) -> None; self is the bytes of a Work.
static PyObject* work(PyObject* self, PyObject* const* a, long count) {
  const Work* w = (const Work*)PyBytes_AsString(self);
  if (count != 2 + w->values) {
    PyErr_SetString(PyExc_TypeError, "a CPU kernel takes (rows, extent, *values)");
    return nullptr;
  }
  i64 rows = PyLong_AsLongLong(a[0]), extent = PyLong_AsLongLong(a[1]), n = w->values, error = 0;
  i64* block = (i64*)__builtin_alloca((n + 7) * sizeof(i64));
  for (i64 i = 0; i < n; i++) block[i] = PyLong_AsLongLong(a[2 + i]);
  if (PyErr_Occurred()) return nullptr;

  i64 cols = block[w->cols_at];
  i64 chunks = w->chunk ? (extent + w->chunk - 1) / w->chunk : 1;
  i64 items = rows * chunks;
  if (items == 0) return Py_BuildValue("");
  block[n] = chunks;
  block[n + 1] = w->chunk;
  block[n + 2] = (i64)&error;
  ++*w->launched;
  i64 elements = (w->whole_rows ? cols : 1) * (w->chunk ? w->chunk : 1);
  i64 parts = !w->part ? 0 : cols ? (cols + w->part - 1) / w->part : 1;
  i64 scratch_bytes = (w->kept_bytes * ((cols * w->lanes + 63) & ~63ll) + parts * w->part_bytes + 63) & ~63ll;
  block[n + 3] = parts;
  block[n + 4] = -1;
  block[n + 6] = scratch_bytes;
  bool fine = parts > 1 && w->job.parallel && rows < w->job.thread_count()
                  ? run_parts(w, block, rows, parts, scratch_bytes)
                  : run_items(&w->job, block, items, (i64)(w->element_bytes * elements) + 1, scratch_bytes);
  if (!fine) return PyErr_NoMemory();
  if (error == 2) {
    PyErr_SetString(PyExc_RuntimeError, "ZeroDivisionError");
    return nullptr;
  }
  if (error) {
    PyErr_SetString(PyExc_IndexError, "index out of range in self");
    return nullptr;
  }
  return Py_BuildValue("");
}

// How a CUDA kernel is launched (runtime/launch_cuda.py packs it).
struct Mask {
  i64 at, by, mask;  // value `at` of the block, times `by`, has no bit of `mask` where accesses are aligned
};

struct Attribute {  // CUlaunchAttribute
  int id, pad;
  i64 value[8];
};
struct Config {  // CUlaunchConfig
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  Attribute* attributes;
  unsigned attribute_count;
};

struct Launch {
  int (*launch)(const Config*, void*, void**, void**);
  void* function;
  i64* launched;  // counts launches
  i64 values;     // of the block, before the extras
  i64 threads, shared_bytes;
  i64 attribute;  // of the launch, with the value 1; 0: none
  i64 per_block;     // rows or elements
  i64 of_elements;   // or of rows
  i64 width;         // elements of an access, which goes by single ones where something is not aligned
  i64 extras;        // 0: none, 1: a zero, 2: whether accesses are wide, 3: vectors of a row, and that
  i64 aligned_only;  // there is another kernel for what is not aligned
  i64 masks;
};

// (stream, rows, extent, *values: int) -> None; self is the bytes of a Launch with its masks after it, and a function of
// (rows, extent, *values) for what is not done here: nothing to do, another kernel, an error of the driver.
static PyObject* launch(PyObject* self, PyObject* const* a, long count) {
  const Launch* job = (const Launch*)PyBytes_AsString(PyTuple_GetItem(self, 0));
  if (count != 3 + job->values) {
    PyErr_SetString(PyExc_TypeError, "a CUDA kernel takes (stream, rows, extent, *values)");
    return nullptr;
  }
  void* stream = (void*)PyLong_AsLongLong(a[0]);
  i64 rows = PyLong_AsLongLong(a[1]), extent = PyLong_AsLongLong(a[2]), n = job->values;
  i64* block = (i64*)__builtin_alloca((n + 2) * sizeof(i64));  // the driver copies it before it returns
  for (i64 i = 0; i < n; i++) block[i] = PyLong_AsLongLong(a[3 + i]);
  if (PyErr_Occurred()) return nullptr;

  const Mask* masks = (const Mask*)(job + 1);
  i64 off = 0;
  for (i64 i = 0; i < job->masks; i++) off |= block[masks[i].at] * masks[i].by & masks[i].mask;
  i64 wide = off == 0 && extent % job->width == 0;
  bool here = rows > 0 && extent > 0 && (wide || !job->aligned_only);
  if (here) {
    i64 vectors = wide ? extent / job->width : extent;
    i64 work = job->of_elements ? rows * vectors : rows;
    if (job->extras == 3) block[n++] = vectors;
    if (job->extras) block[n] = job->extras == 1 ? 0 : wide;
    void* pointers[1] = {block};
    unsigned blocks = (unsigned)((work + job->per_block - 1) / job->per_block);
    Attribute attribute = {(int)job->attribute, 0, {1}};
    Config config = {{blocks, 1, 1}, {(unsigned)job->threads, 1, 1}, (unsigned)job->shared_bytes, stream,
                     &attribute,     job->attribute != 0};
    here = job->launch(&config, job->function, pointers, nullptr) == 0;
  }
  if (!here) return PyObject_Vectorcall(PyTuple_GetItem(self, 1), a + 1, (unsigned long)(count - 1), nullptr);
  ++*job->launched;
  return Py_BuildValue("");
}

struct PyMethodDef {
  const char* name;
  PyObject* (*function)(PyObject*, PyObject* const*, long);
  int flags;
  const char* doc;
};
extern "C" {
PyMethodDef onepass_run = {"run", run, 0x80 /* METH_FASTCALL */, nullptr};
PyMethodDef onepass_work = {"work", work, 0x80 /* METH_FASTCALL */, nullptr};
PyMethodDef onepass_launch = {"launch", launch, 0x80 /* METH_FASTCALL */, nullptr};
}
