// Runs the threads of one CUDA block, or of blocks side by side (a thread-block cluster's, or a grid's that wait for each
// other), as fibers on one host thread, and watches every memory access.
// Compiled without instrumentation and linked into each emulated module, so that a module owns its state.
#include "runtime.hpp"

#include <link.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

namespace {

constexpr unsigned max_threads = 1024, max_cluster = 64;
// libm is called on a fiber's stack, and a kernel that spills may hold a row there; 64 KiB holds both, touched lazily.
constexpr size_t stack_bytes = 64 << 10;
constexpr size_t guard_bytes = 64 << 10;  // below all stacks, a page of any host: endless recursion ends there
constexpr uint64_t max_history_bytes = 1 << 20;  // 52 bytes of history each
constexpr uint64_t stack_canary = 0x5ca1ab1e0ddba11ull;

enum Readers : uint8_t { one_thread, one_warp, many_warps };
enum State : uint8_t { running, at_warp, at_barrier, at_cluster, at_grid, exited };

// A copy to shared memory that was asked for.
struct Copy {
  void* to;
  Bytes16 value;
};

struct Fiber {
  void* stack_pointer;
  uint64_t site;     // source line of the collective it waits in
  uint64_t pc;       // return address of that call
  uint64_t value;    // deposited for the warp, then the lane's result
  uint32_t mask;     // lanes it waits for
  int32_t source;    // lane it reads
  uint8_t operation;
  bool from_nobody;  // what the shuffle gave is no lane's
  State state;
  uint8_t depth;        // of calls
  uint64_t callers[4];  // where the outer functions go on
  uint32_t arrives, waits;      // at the cluster's barrier
  uint32_t released, acquired;  // of those, the ones that order memory
  bool relaxed;                 // its last arrival was none of these
  const void* polled;           // the word that it has read last, of those that blocks wait for
  Copy* copies;
  uint32_t copy_count, copy_room;
};

// Who wrote and read a byte of shared memory last, and when. A block never sees stamps of an older one.
struct Shadow {
  uint32_t write_epoch, read_epoch;  // value of `epoch` then; 0 means never
  uint32_t write_warp_epoch, read_warp_epoch;
  uint32_t write_pc, read_pc, another_pc;  // in the module
  uint16_t writer, reader, another;        // `another`: who has read it beside the first reader
  uint8_t readers;  // a Readers: who has read it since `read_epoch` began
  bool atomic;      // written by an atomic last
  uint8_t write_rank;                // of the block that wrote it
  uint32_t write_stamp, read_stamp;  // the `released` of who wrote it, and the most of who has read it since
};

// The same of a byte of global memory, which keeps its history from block to block.
struct GlobalShadow : Shadow {
  uint32_t reader_block, reader_block_pc;  // `block_epoch` of the first block that has read it since it was written
  uint16_t reader_block_thread;
};

struct Shared {
  uintptr_t begin, bytes;
  Shadow* shadow;
};

// One block of a cluster while another one runs: its shared memory lies in `memory`, and at its own place while it runs.
struct Block {
  Index3 index;
  unsigned alive, waiting_at_barrier;
  uint32_t epoch, block_epoch;
  uint32_t warp_epoch[max_threads / 32];
  Shadow* shadow[3];
  char* memory[3];
  uint32_t stored_stamp;  // 1 + the most of those that other blocks' stores to its memory had; 0: none
  uint64_t stored_pc;
  Index3 storing_block, storing_thread;
};

const Launch* launch;
Outcome* outcome;
bool stopped;  // the launch ends: a fault was found that it can't go on after, or enough of them
volatile bool inside;  // a fiber runs, and not the scheduler or the loader
void* scheduler;  // the scheduler's saved stack pointer
char* stacks;
unsigned room;  // fibers that there are stacks for
Fiber all_fibers[max_cluster * max_threads];
Fiber* fibers;  // of the block that runs
Block blocks[max_cluster];
unsigned rank;                         // of the block that runs
uint32_t cluster_phase;                // barriers of the cluster that are complete
unsigned cluster_pending, cluster_live;  // threads that the next one waits for, and that have not returned
Fiber* current;
unsigned threads, alive, waiting_at_barrier;
uint32_t epoch, block_epoch;          // epoch grows at each barrier and each block
uint32_t warp_epoch[max_threads / 32];  // grows at each completed warp collective
uint64_t accesses, run;                 // run: grows each time a fiber is resumed
uint64_t polls, words_written;          // times that a fiber waited for a word of another block; words written
uintptr_t stack_low, module_low, module_high;
Region* last_region;
GlobalShadow** histories;  // of each region; null where none is kept
bool fenced;               // a __threadfence() was executed: blocks may hand over to one another
uint16_t site_table[1 << 15];  // by hash: 1 + the number of a site; at most half full
Shared shared[3];  // dynamic, static, thread-local
// Linked last, so it ends the module's thread-local block; touching it makes the loader allocate the block.
__thread volatile unsigned char thread_local_end;

}  // namespace

alignas(1024) unsigned char onepass_dynamic_shared[232448];  // the most a block may have (sm_90)
Index3 onepass_thread, onepass_block;
Index3 onepass_block_size, onepass_grid_size;

// ---- switching stacks ----

#if defined(__x86_64__)
asm(R"(
.text
.type onepass_switch,@function
onepass_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
onepass_resume:
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size onepass_switch,.-onepass_switch
)");
constexpr int return_word = 6;   // after the six saved registers
constexpr int frame_words = 10;  // 8 read by the switch; a function starts with its stack 8 bytes off a multiple of 16
#elif defined(__aarch64__)
asm(R"(
.text
.type onepass_switch,%function
onepass_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
onepass_resume:
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size onepass_switch,.-onepass_switch
)");
constexpr int return_word = 11;  // x30
constexpr int frame_words = 20;
#else
#error "the emulator switches stacks on x86-64 and aarch64 only"
#endif
extern "C" void onepass_switch(void** save, void* load);
extern "C" void onepass_resume();  // its second half: what the stack pointer's frame holds goes on

namespace {

void to_scheduler() { onepass_switch(&current->stack_pointer, scheduler); }

// Each kind once a place: what a loop does wrong a thousand times is one fault.
void record(FaultKind kind, uint64_t address, uint64_t bytes, uint64_t pc, int32_t other, uint64_t other_pc = 0) {
  for (uint64_t i = 0; i < outcome->faults; ++i)
    if (launch->faults[i].kind == kind && launch->faults[i].pc == pc - module_low) return;
  if (outcome->faults < launch->max_faults)
    launch->faults[outcome->faults++] =
        Fault{kind, other, onepass_block, onepass_thread, address, bytes, pc - module_low, other_pc};
  stopped |= outcome->faults == launch->max_faults;
}

[[noreturn]] void stop(FaultKind kind, uint64_t address, uint64_t bytes, uint64_t pc, int32_t other,
                       uint64_t other_pc = 0) {
  record(kind, address, bytes, pc, other, other_pc);
  stopped = true;
  to_scheduler();
  __builtin_unreachable();  // an abandoned fiber is never resumed
}

// For what the host survives: the launch goes on unless this was the last fault asked for.
void note(FaultKind kind, uint64_t address, uint64_t bytes, uint64_t pc, int32_t other, uint64_t other_pc = 0) {
  record(kind, address, bytes, pc, other, other_pc);
  if (!stopped) return;
  to_scheduler();
  __builtin_unreachable();
}

char* stack_of(unsigned i) { return stacks + guard_bytes + (rank * threads + i) * stack_bytes; }

unsigned thread_number() { return unsigned(current - fibers); }

Index3 thread_index(unsigned i) {
  const Index3& n = onepass_block_size;
  return Index3{i % n.x, i / n.x % n.y, i / (n.x * n.y)};
}

void go_on_without();
void leave_cluster();

void enter() {
  launch->entry(launch->args);
  current->state = exited;
  --alive;
  go_on_without();
  leave_cluster();
  to_scheduler();
  __builtin_unreachable();
}

void prepare_fiber(unsigned i) {
  char* low = stack_of(i);
  *reinterpret_cast<uint64_t*>(low) = stack_canary;
  void** frame = reinterpret_cast<void**>(low + stack_bytes) - frame_words;
  memset(frame, 0, frame_words * sizeof(void*));
  frame[return_word] = reinterpret_cast<void*>(&enter);
  free(fibers[i].copies);
  fibers[i] = Fiber{};
  fibers[i].stack_pointer = frame;
}

// A loop that only waits must end as well.
void count_step(uint64_t pc) {
  if (++accesses > launch->max_accesses) stop(too_many_accesses, 0, 0, pc, 0);
}

// ---- collectives ----

uint64_t combine(int operation, uint64_t a, uint64_t b) {
  const int32_t i = int32_t(a), j = int32_t(b);
  const uint32_t u = uint32_t(a), v = uint32_t(b);
  switch (operation) {
    case exchange_add: return u + v;
    case exchange_min: return uint32_t(i < j ? i : j);
    case exchange_max: return uint32_t(i > j ? i : j);
    case exchange_umin: return u < v ? u : v;
    case exchange_umax: return u > v ? u : v;
    case exchange_and: return u & v;
    case exchange_or: return u | v;
    default: return u ^ v;
  }
}

uint64_t result_for(const Fiber& f, const uint64_t* in, uint32_t mask) {
  if (f.operation == exchange_sync) return f.value;
  if (f.operation == exchange_shuffle) return f.from_nobody ? launch->garbage : in[f.source];
  const bool votes = f.operation == exchange_ballot || f.operation == exchange_match;
  uint64_t result = 0;
  bool first = true;
  for (unsigned l = 0; l < 32; ++l) {
    if (!(mask >> l & 1)) continue;
    if (votes)
      result |= uint64_t(f.operation == exchange_ballot ? in[l] != 0 : in[l] == f.value) << l;
    else
      result = first ? in[l] : combine(f.operation, result, in[l]);
    first = false;
  }
  return result;
}

// The lanes of a mask that are threads and have not returned: a collective waits for these alone.
uint32_t live_lanes(unsigned warp, uint32_t mask) {
  uint32_t live = 0;
  for (unsigned l = 0; l < 32; ++l)
    if ((mask >> l & 1) && warp * 32 + l < threads && fibers[warp * 32 + l].state != exited) live |= 1u << l;
  return live;
}

void finish_exchange(unsigned warp, uint32_t live) {
  Fiber* lanes = fibers + warp * 32;
  uint64_t in[32];
  for (unsigned l = 0; l < 32; ++l)
    if (live >> l & 1) in[l] = lanes[l].value;
  for (unsigned l = 0; l < 32; ++l) {
    if (!(live >> l & 1)) continue;
    lanes[l].state = running;
    lanes[l].from_nobody = lanes[l].operation == exchange_shuffle && !(live >> lanes[l].source & 1);
    lanes[l].value = result_for(lanes[l], in, live);
  }
  ++warp_epoch[warp];
  ++outcome->exchanges;
}

// Finishes what lane `f` waits in if all whom it waits for are there.
bool finish_if_all_are_here(const Fiber& f) {
  const unsigned warp = unsigned(&f - fibers) / 32;
  const uint32_t mask = f.mask, live = live_lanes(warp, mask);
  Fiber* lanes = fibers + warp * 32;
  for (unsigned l = 0; l < 32; ++l)
    if ((live >> l & 1) && (lanes[l].state != at_warp || lanes[l].mask != mask)) return false;
  for (unsigned l = 0; l < 32; ++l)
    if ((live >> l & 1) &&
        (lanes[l].operation != f.operation || (lanes[l].site != f.site && f.operation != exchange_sync))) {
      onepass_thread = thread_index(unsigned(&f - fibers));
      stop(warp_divergence, 0, 0, f.pc, int(l), lanes[l].pc - module_low);
    }
  finish_exchange(warp, live);
  return true;
}

}  // namespace

uint64_t onepass_exchange(uint32_t mask, int operation, uint64_t value, int source, uint64_t site) {
  const uint64_t pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
  const unsigned lane = thread_number() % 32;
  if (!(mask >> lane & 1)) stop(shuffle_missing_lane, 0, 0, pc, int(lane));
  Fiber& f = *current;
  count_step(pc);
  f.site = site;
  f.pc = pc;
  f.value = value;
  f.mask = mask;
  f.source = source;
  f.operation = uint8_t(operation);
  f.from_nobody = false;
  f.state = at_warp;
  if (!finish_if_all_are_here(f)) to_scheduler();
  // The value is undefined, which is harmless where nobody uses it: the launcher that asked for one fault alone wants
  // to know anyway, others compare launches with different garbage.
  if (f.from_nobody) {
    if (launch->max_faults == 1) stop(shuffle_missing_lane, 0, 0, pc, source);
    note(undefined_lane, 0, 0, pc, source);
  }
  return f.value;
}

namespace {

// One line, but perhaps called from two places, or one place that the compiler doubled: the source lines tell.
void compare_ways(const Fiber& f, const Fiber& other) {
  if (f.pc != other.pc) note(barrier_elsewhere, 0, 0, f.pc, int(&other - fibers), other.pc - module_low);
  if (f.depth != other.depth || f.depth > 4) return;
  for (int d = f.depth; d-- > 0;)
    if (f.callers[d] != other.callers[d])
      return note(barrier_elsewhere, 0, 0, f.callers[d], int(&other - fibers), other.callers[d] - module_low);
}

// Lets all go on that wait at the barrier; `f` is the last of them.
void finish_barrier(const Fiber& f) {
  uint64_t votes = 0;
  for (unsigned i = 0; i < threads; ++i) {
    if (fibers[i].state == exited) continue;
    if (fibers[i].site != f.site) stop(barrier_divergence, 0, 0, f.pc, int(i), fibers[i].pc - module_low);
    if (launch->max_faults > 1) compare_ways(f, fibers[i]);
    votes += fibers[i].value;
  }
  for (unsigned i = 0; i < threads; ++i) {
    if (fibers[i].state == exited) continue;
    fibers[i].state = running;
    fibers[i].value = votes;
  }
  waiting_at_barrier = 0;
  ++epoch;
  ++outcome->barriers;
}

uint64_t wait_for_all(uint64_t site, uint64_t pc, bool vote) {
  Fiber& f = *current;
  count_step(pc);
  f.site = site;
  f.pc = pc;
  f.value = vote;
  f.state = at_barrier;
  if (++waiting_at_barrier < alive)
    to_scheduler();
  else
    finish_barrier(f);
  return f.value;
}

// A thread has returned: since sm_70 nobody waits for it, at a barrier or in its warp.
void go_on_without() {
  const unsigned warp = thread_number() / 32;
  for (unsigned i = warp * 32; i < warp * 32 + 32 && i < threads; ++i)
    if (fibers[i].state == at_warp) finish_if_all_are_here(fibers[i]);
  if (!alive || waiting_at_barrier < alive) return;
  unsigned last = threads - 1;
  while (fibers[last].state != at_barrier) --last;
  onepass_thread = thread_index(last);
  finish_barrier(fibers[last]);
}

}  // namespace

void onepass_barrier(uint64_t site) { wait_for_all(site, reinterpret_cast<uint64_t>(__builtin_return_address(0)), false); }
uint64_t onepass_barrier_count(uint64_t site, bool vote) {
  return wait_for_all(site, reinterpret_cast<uint64_t>(__builtin_return_address(0)), vote);
}

// ---- clusters ----

namespace {

// All have arrived. An arrival that is relaxed orders no memory.
void finish_cluster_phase(bool relaxed) {
  ++cluster_phase;
  cluster_pending = cluster_live;
  for (unsigned r = 0; r < launch->cluster; ++r)
    for (unsigned i = 0; i < threads; ++i)
      if (all_fibers[r * threads + i].state == at_cluster) all_fibers[r * threads + i].state = running;
  if (relaxed) return;
  ++epoch;
  for (unsigned r = 0; r < launch->cluster; ++r)
    if (r != rank) ++blocks[r].epoch;
}

// A thread has returned: the cluster's barrier does not wait for it.
void leave_cluster() {
  --cluster_live;
  if (current->arrives == cluster_phase && --cluster_pending == 0 && cluster_live) finish_cluster_phase(false);
}

}  // namespace

unsigned onepass_cluster_rank() { return rank; }

void onepass_cluster_arrive(bool relaxed) {
  const uint64_t pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
  Fiber& f = *current;
  count_step(pc);
  if (f.arrives != f.waits) stop(barrier_divergence, 0, 0, pc, -1);
  ++f.arrives;
  f.relaxed = relaxed;
  f.released += !relaxed;
  if (--cluster_pending == 0) finish_cluster_phase(relaxed);
}

void onepass_cluster_wait(uint64_t site) {
  const uint64_t pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
  Fiber& f = *current;
  count_step(pc);
  if (f.arrives == f.waits) stop(barrier_divergence, 0, 0, pc, -1);
  f.site = site;
  f.pc = pc;
  if (cluster_phase < f.arrives) {
    f.state = at_cluster;
    to_scheduler();
  }
  ++f.waits;
  f.acquired += !f.relaxed;
}

// ---- grids whose blocks wait for each other ----

void onepass_grid_wrote() { ++words_written; }

// The first read is at once. Reading a word again is waiting: the others go on first.
void onepass_grid_reads(const void* word) {
  const uint64_t pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
  Fiber& f = *current;
  count_step(pc);
  if (f.polled == word) {
    f.pc = pc;
    f.state = at_grid;
    ++polls;
    to_scheduler();
  }
  f.polled = word;
}

void onepass_fence() { fenced = true; }
void onepass_trap() { stop(trap, 0, 0, reinterpret_cast<uint64_t>(__builtin_return_address(0)), 0); }

// ---- memory ----

namespace {

// A barrier lies between then and now, or they are one thread's, or one warp's with a collective between.
bool ordered(uint32_t then_epoch, uint32_t then_warp_epoch, unsigned then_thread, unsigned now_thread) {
  if (then_epoch < epoch || then_thread == now_thread) return true;
  const unsigned warp = now_thread / 32;
  return then_thread / 32 == warp && then_warp_epoch < warp_epoch[warp];
}

// What another block of the cluster stored is there once a barrier of the cluster lies between.
bool ordered(const Shadow& h, unsigned t) {
  if (h.write_rank != rank) return h.write_stamp < current->acquired;
  return ordered(h.write_epoch, h.write_warp_epoch, h.writer, t);
}

void note_read(Shadow& h, unsigned t, uint64_t pc) {
  const uint32_t now = warp_epoch[t / 32];
  const bool first = h.read_epoch < epoch;
  if (first || (h.readers != many_warps && h.reader / 32 == t / 32 && h.read_warp_epoch < now)) {
    h.readers = one_thread;
    h.reader = h.another = uint16_t(t);
    h.read_pc = h.another_pc = uint32_t(pc - module_low);
  } else if (h.reader / 32 != t / 32) {
    h.readers = many_warps;
  } else if (h.reader != t && h.readers == one_thread) {
    h.readers = one_warp;
  }
  if (h.reader != t) {
    h.another = uint16_t(t);
    h.another_pc = uint32_t(pc - module_low);
  }
  h.read_epoch = epoch;
  h.read_warp_epoch = now;
}

bool readers_done(const Shadow& h, unsigned t) {
  if (h.read_epoch < epoch || h.readers == one_thread)
    return ordered(h.read_epoch, h.read_warp_epoch, h.reader, t);
  return h.readers == one_warp && h.reader / 32 == t / 32 && h.read_warp_epoch < warp_epoch[t / 32];
}

void check_shared(Shared& s, uintptr_t address, uint64_t bytes, bool write, int path, uint64_t pc) {
  const unsigned t = thread_number();
  for (uint64_t i = 0; i < bytes; ++i) {
    Shadow& h = s.shadow[address - s.begin + i];
    const bool written = h.write_epoch >= block_epoch, plain = path != atomic_path;
    if (!write && !written) note(unwritten_shared, address + i, bytes, pc, -1);
    if (!plain && !write) continue;
    // Atomics race by design. A plain read beside them may be meant as well: a loop around atomicCAS begins with one.
    if (written && !(h.atomic && !plain) && !ordered(h, t))
      note(h.atomic && !write ? atomic_shared_race : shared_race, address + i, bytes, pc, h.writer, h.write_pc);
    if (!write) {
      note_read(h, t, pc);
      if (h.read_stamp < current->released) h.read_stamp = current->released;
      continue;
    }
    if (!readers_done(h, t)) {
      const bool own = h.reader == t;
      note(plain ? shared_race : atomic_shared_race, address + i, bytes, pc, own ? h.another : h.reader,
           own ? h.another_pc : h.read_pc);
    }
    h.atomic = !plain;
    h.write_epoch = epoch;
    h.write_warp_epoch = warp_epoch[t / 32];
    h.write_pc = uint32_t(pc - module_low);
    h.writer = uint16_t(t);
    h.write_rank = uint8_t(rank);
    h.write_stamp = current->released;
    h.read_epoch = h.read_stamp = 0;
  }
}

// Reads beside writes in global memory. Two writes alone are left: several threads that set one flag are an idiom, and
// where their values differ the results depend on the order.
void check_global(GlobalShadow* history, uint64_t bytes, bool write, int path, uint64_t pc, uint64_t address) {
  const unsigned t = thread_number();
  for (GlobalShadow* h = history; h < history + bytes; ++h) {
    if (path == atomic_path && !write) continue;
    const bool plain = path != atomic_path, written = h->write_epoch;
    if (!write) {
      if (written && h->write_epoch < block_epoch)
        note(h->atomic ? atomic_block_race : block_race, address, bytes, pc, h->writer, h->write_pc);
      else if (written && !ordered(h->write_epoch, h->write_warp_epoch, h->writer, t))
        note(h->atomic ? atomic_global_race : global_race, address, bytes, pc, h->writer, h->write_pc);
      note_read(*h, t, pc);
      if (!h->reader_block) {
        h->reader_block = block_epoch;
        h->reader_block_pc = h->read_pc;
        h->reader_block_thread = uint16_t(t);
      }
      continue;
    }
    if (h->reader_block && h->reader_block != block_epoch)
      note(plain ? block_race : atomic_block_race, address, bytes, pc, h->reader_block_thread, h->reader_block_pc);
    else if (!readers_done(*h, t)) {
      const bool own = h->reader == t;
      note(plain ? global_race : atomic_global_race, address, bytes, pc, own ? h->another : h->reader,
           own ? h->another_pc : h->read_pc);
    }
    h->write_epoch = epoch;
    h->write_warp_epoch = warp_epoch[t / 32];
    h->write_pc = uint32_t(pc - module_low);
    h->writer = uint16_t(t);
    h->atomic = !plain;
    h->read_epoch = h->reader_block = 0;
  }
}

Site* find_site(uint64_t pc, uint64_t bytes, Space space, Direction direction) {
  constexpr uint64_t last = sizeof site_table / sizeof *site_table - 1;
  for (uint64_t at = (pc * 0x9e3779b97f4a7c15ull >> 40) & last;; at = (at + 1) & last) {
    if (!site_table[at]) {
      if (outcome->sites == launch->max_sites) return nullptr;
      Site* s = launch->sites + outcome->sites;
      s->pc = pc;
      s->bytes = uint32_t(bytes);
      s->space = space;
      s->direction = direction;
      site_table[at] = uint16_t(++outcome->sites);
      return s;
    }
    Site* s = launch->sites + site_table[at] - 1;
    if (s->pc == pc && s->bytes == bytes && s->space == space && s->direction == direction) return s;
  }
}

void count_site(uint64_t pc, uint64_t bytes, Space space, bool write, int path) {
  if (path == atomic_path && write) return;  // an atomic is one instruction: its load was counted
  Site* s = find_site(pc - module_low, bytes, space, path == atomic_path ? atomic_access : write ? write_access : read_access);
  if (!s) {
    ++outcome->uncounted;
    return;
  }
  const uint64_t warp = thread_number() / 32, segment = (uint64_t(epoch) << 5 | warp) * max_cluster + rank;
  if (s->segment != segment || s->warp_segment != warp_epoch[warp]) {
    s->segment = segment;
    s->warp_segment = warp_epoch[warp];
    s->in_segment = s->run = 0;
  }
  if (s->run != run) {
    s->run = run;
    s->in_run = 0;
  }
  ++s->thread_accesses;
  if (++s->in_run <= s->in_segment) return;
  s->in_segment = s->in_run;
  ++s->warp_executions;
}

Region* find_region(uintptr_t address, uint64_t bytes) {
  if (last_region && address >= last_region->begin && address + bytes <= last_region->end) return last_region;
  for (uint32_t i = 0; i < launch->region_count; ++i) {
    Region* r = launch->regions + i;
    if (address >= r->begin && address + bytes <= r->end) return last_region = r;
  }
  return nullptr;
}

void count(Region* r, uint64_t address, uint64_t bytes, bool write, int path, uint64_t pc) {
  const int32_t index = int32_t(r - launch->regions);
  if (write && !r->writable) stop(write_to_read_only, address, bytes, pc, index);
  r->written |= write;
  r->read_only_loads |= path == read_only_path;
  if (r->written && r->read_only_loads) stop(read_only_load_of_written, address, bytes, pc, index);
  (write ? r->write_bytes : r->read_bytes) += bytes;
  ++(write ? r->writes : r->reads);
  count_site(pc, bytes, global_space, write, path);
  if (GlobalShadow* h = histories[index]) check_global(h + (address - r->begin), bytes, write, path, pc, address);
}

bool just_past_shared(uintptr_t address) {
  for (const Shared& s : shared)
    if (s.bytes && address + 4096 >= s.begin && address < s.begin + s.bytes + 4096) return true;
  return false;
}

void access(uintptr_t address, uint64_t bytes, bool write, bool aligned, int path, uint64_t pc) {
  if (!inside) return;  // the loader, which gives the file's variables their values
  if (address - stack_low < stack_bytes) return;
  if (++accesses > launch->max_accesses) stop(too_many_accesses, address, bytes, pc, 0);
  if (aligned && (address & (bytes - 1))) stop(misaligned, address, bytes, pc, 0);
  if (Region* r = find_region(address, bytes)) return count(r, address, bytes, write, path, pc);
  for (Shared& s : shared)
    if (address >= s.begin && address + bytes <= s.begin + s.bytes) {
      count_site(pc, bytes, shared_space, write, path);
      return check_shared(s, address, bytes, write, path, pc);
    }
  const uintptr_t args = reinterpret_cast<uintptr_t>(launch->args);
  if (!write && address >= args && address + bytes <= args + launch->args_bytes) return;
  const uintptr_t dynamic = reinterpret_cast<uintptr_t>(onepass_dynamic_shared);
  const bool past_shared = address - dynamic < sizeof onepass_dynamic_shared;
  const bool in_module = address >= module_low && address + bytes <= module_high;
  if (!write && !past_shared && in_module) return;  // __constant__ tables
  stop(out_of_bounds, address, bytes, pc, past_shared || just_past_shared(address) ? -2 : -1);
}

}  // namespace

Bytes16 onepass_load(const void* from, unsigned bytes, int path) {
  access(reinterpret_cast<uintptr_t>(from), bytes, false, true, path, reinterpret_cast<uint64_t>(__builtin_return_address(0)));
  Bytes16 value{};
  memcpy(&value, from, bytes);
  return value;
}

void onepass_store(void* to, Bytes16 value, unsigned bytes, int path) {
  access(reinterpret_cast<uintptr_t>(to), bytes, true, true, path, reinterpret_cast<uint64_t>(__builtin_return_address(0)));
  memcpy(to, &value, bytes);
}

void onepass_copy(void* to, Bytes16 value) {
  Fiber& f = *current;
  if (f.copy_count == f.copy_room) {
    f.copy_room = f.copy_room ? 2 * f.copy_room : 8;
    f.copies = static_cast<Copy*>(realloc(f.copies, f.copy_room * sizeof(Copy)));
  }
  f.copies[f.copy_count++] = Copy{to, value};
}

void onepass_copies_done() {
  const uint64_t pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
  for (uint32_t i = 0; i < current->copy_count; ++i) {
    const Copy& c = current->copies[i];
    access(reinterpret_cast<uintptr_t>(c.to), 16, true, true, plain_path, pc);
    memcpy(c.to, &c.value, 16);
  }
  current->copy_count = 0;
}

namespace {

// Where an address of this block's shared memory lies in another block's: the array it is in.
unsigned array_of(uintptr_t address, uint64_t bytes, uint64_t pc) {
  for (unsigned i = 0; i < 3; ++i)
    if (address >= shared[i].begin && address + bytes <= shared[i].begin + shared[i].bytes) return i;
  stop(out_of_bounds, address, bytes, pc, -2);
}

void check_store(Block& b, Shadow& h, uintptr_t address, uint64_t bytes, uint64_t pc) {
  const Fiber& f = *current;
  const unsigned t = thread_number();
  const bool own = h.write_rank == rank && h.writer == t;
  if (h.write_epoch >= b.block_epoch && !own && h.write_stamp >= f.acquired)
    note(shared_race, address, bytes, pc, h.writer, h.write_pc);
  if (h.read_epoch >= b.block_epoch && h.read_stamp >= f.acquired)
    note(shared_race, address, bytes, pc, h.reader, h.read_pc);
  h.atomic = false;
  h.write_epoch = b.epoch;
  h.write_pc = uint32_t(pc - module_low);
  h.writer = uint16_t(t);
  h.write_rank = uint8_t(rank);
  h.write_stamp = f.released;
  h.read_epoch = h.read_stamp = 0;
}

}  // namespace

void onepass_cluster_store(float* to, unsigned other, float value) {
  const uint64_t pc = reinterpret_cast<uint64_t>(__builtin_return_address(0));
  const uintptr_t address = reinterpret_cast<uintptr_t>(to);
  if (other >= launch->cluster) stop(absent_block, address, sizeof value, pc, -1);
  if (other == rank) {
    access(address, sizeof value, true, true, plain_path, pc);
    memcpy(to, &value, sizeof value);
    return;
  }
  count_step(pc);
  Block& b = blocks[other];
  if (!current->waits || !b.alive) stop(absent_block, address, sizeof value, pc, -1);
  const unsigned a = array_of(address, sizeof value, pc);
  const uintptr_t at = address - shared[a].begin;
  count_site(pc, sizeof value, shared_space, true, plain_path);
  for (unsigned i = 0; i < sizeof value; ++i) check_store(b, b.shadow[a][at + i], address, sizeof value, pc);
  memcpy(b.memory[a] + at, &value, sizeof value);
  if (b.stored_stamp > current->released) return;
  b.stored_stamp = 1 + current->released;
  b.stored_pc = pc;
  b.storing_block = onepass_block;
  b.storing_thread = onepass_thread;
}

// The compiler's thread-sanitizer instrumentation calls these before each access that may be seen by others.
extern "C" {
#define PC reinterpret_cast<uint64_t>(__builtin_return_address(0))
#define HOOK(name, bytes, write, aligned) \
  void name(void* p) { access(reinterpret_cast<uintptr_t>(p), bytes, write, aligned, plain_path, PC); }
HOOK(__tsan_read1, 1, false, true)
HOOK(__tsan_read2, 2, false, true)
HOOK(__tsan_read4, 4, false, true)
HOOK(__tsan_read8, 8, false, true)
HOOK(__tsan_read16, 16, false, true)
HOOK(__tsan_write1, 1, true, true)
HOOK(__tsan_write2, 2, true, true)
HOOK(__tsan_write4, 4, true, true)
HOOK(__tsan_write8, 8, true, true)
HOOK(__tsan_write16, 16, true, true)
HOOK(__tsan_unaligned_read2, 2, false, false)
HOOK(__tsan_unaligned_read4, 4, false, false)
HOOK(__tsan_unaligned_read8, 8, false, false)
HOOK(__tsan_unaligned_read16, 16, false, false)
HOOK(__tsan_unaligned_write2, 2, true, false)
HOOK(__tsan_unaligned_write4, 4, true, false)
HOOK(__tsan_unaligned_write8, 8, true, false)
HOOK(__tsan_unaligned_write16, 16, true, false)
HOOK(__tsan_volatile_read1, 1, false, true)
HOOK(__tsan_volatile_read2, 2, false, true)
HOOK(__tsan_volatile_read4, 4, false, true)
HOOK(__tsan_volatile_read8, 8, false, true)
HOOK(__tsan_volatile_write1, 1, true, true)
HOOK(__tsan_volatile_write2, 2, true, true)
HOOK(__tsan_volatile_write4, 4, true, true)
HOOK(__tsan_volatile_write8, 8, true, true)
void __tsan_read_range(void* p, uint64_t n) { access(reinterpret_cast<uintptr_t>(p), n, false, false, plain_path, PC); }
void __tsan_write_range(void* p, uint64_t n) { access(reinterpret_cast<uintptr_t>(p), n, true, false, plain_path, PC); }
// clang routes copies and fills through these.
void* __tsan_memcpy(void* to, const void* from, uint64_t n) {
  if (n) access(reinterpret_cast<uintptr_t>(from), n, false, false, plain_path, PC);
  if (n) access(reinterpret_cast<uintptr_t>(to), n, true, false, plain_path, PC);
  return memmove(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, uint64_t n) { return __tsan_memcpy(to, from, n); }
void* __tsan_memset(void* to, int byte, uint64_t n) {
  if (n) access(reinterpret_cast<uintptr_t>(to), n, true, false, plain_path, PC);
  return memset(to, byte, n);
}
// -fsanitize=bounds, which hand-written kernels are compiled with: an index past an array's declared length.
void __ubsan_handle_out_of_bounds(void*, uint64_t index) { stop(index_past_array, 0, 0, PC, int32_t(index)); }
// -fstack-protector: a function's local arrays were written past their end.
void onepass_smashed() __asm__("__stack_chk_fail") ONEPASS_RUNTIME;
void onepass_smashed() { stop(local_overrun, 0, 0, PC, 0); }
void __tsan_init() {}
void __tsan_func_entry(void* caller) {
  if (!inside) return;
  if (current->depth < 4) current->callers[current->depth] = reinterpret_cast<uint64_t>(caller);
  ++current->depth;
}
void __tsan_func_exit(void*) {
  if (inside) --current->depth;
}
#undef HOOK
#undef PC
}

// ---- running ----

namespace {

struct Bounds {
  uintptr_t inside, low, high, thread_local_begin, thread_local_bytes;
};

// Where this module lies, and its `__thread` variables of the thread that asks.
Bounds find_module() {
  thread_local_end = 0;
  Bounds bounds = {reinterpret_cast<uintptr_t>(&find_module), 0, 0, 0, 0};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        Bounds& b = *static_cast<Bounds*>(data);
        uintptr_t low = ~uintptr_t(0), high = 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& p = info->dlpi_phdr[i];
          if (p.p_type != PT_LOAD) continue;
          const uintptr_t start = info->dlpi_addr + p.p_vaddr;
          if (start < low) low = start;
          if (start + p.p_memsz > high) high = start + p.p_memsz;
        }
        if (b.inside < low || b.inside >= high) return 0;
        b.low = low;
        b.high = high;
        b.thread_local_begin = reinterpret_cast<uintptr_t>(info->dlpi_tls_data);
        b.thread_local_bytes = reinterpret_cast<uintptr_t>(&thread_local_end) - b.thread_local_begin;
        return 1;
      },
      &bounds);
  return bounds;
}

void set_shared(Shared& s, void* begin, uint64_t bytes) {
  free(s.shadow);
  s = Shared{reinterpret_cast<uintptr_t>(begin), bytes, static_cast<Shadow*>(calloc(bytes ? bytes : 1, sizeof(Shadow)))};
}

void poison(Shared& s) {
  memset(reinterpret_cast<void*>(s.begin), 0xff, s.bytes);  // NaN in every floating type
}

// The first thread that is not where `f` waits.
int missing_from(const Fiber& f) {
  const unsigned warp = unsigned(&f - fibers) / 32;
  for (unsigned i = 0; i < threads; ++i) {
    const bool asked = f.state == at_barrier || (i / 32 == warp && f.mask >> i % 32 & 1);
    if (asked && fibers[i].state != exited && (fibers[i].state != f.state || fibers[i].site != f.site)) return int(i);
  }
  return -1;
}

// Whether a thread of this block waits for others of it: then that is what is wrong.
bool report_deadlock() {
  // Nobody can go on. A lane that waits for lanes that sit at a barrier comes first: the barrier waits for it.
  unsigned first = threads;
  for (unsigned i = threads; i-- > 0;)
    if (fibers[i].state == at_barrier || fibers[i].state == at_warp)
      if (first == threads || fibers[i].state == at_warp || fibers[first].state == at_barrier) first = i;
  if (first == threads) return false;
  const Fiber& f = fibers[first];
  const int other = missing_from(f);
  onepass_thread = thread_index(first);
  record(f.state == at_barrier ? barrier_divergence : shuffle_missing_lane, 0, 0, f.pc,
         f.state == at_warp && other >= 0 ? other % 32 : other, other >= 0 ? fibers[other].pc - module_low : 0);
  return stopped = true;
}

// Runs every runnable lane of a warp until all of them wait or have exited; says whether any ran.
bool run_warp(unsigned warp, bool backwards) {
  bool ran = false;
  for (bool again = true; again;) {
    again = false;
    for (unsigned l = 0; l < 32; ++l) {
      const unsigned i = warp * 32 + (backwards ? 31 - l : l);
      if (i >= threads || fibers[i].state != running) continue;
      current = fibers + i;
      onepass_thread = thread_index(i);
      stack_low = reinterpret_cast<uintptr_t>(stack_of(i));
      ++run;
      inside = true;
      onepass_switch(&scheduler, current->stack_pointer);
      inside = false;
      if (*reinterpret_cast<uint64_t*>(stack_low) != stack_canary && !stopped) {
        record(stack_overflow, stack_low, stack_bytes, module_low, 0);
        stopped = true;
      }
      if (stopped) return false;
      again = ran = true;
    }
  }
  return ran;
}

// Puts the block that ran away, and brings another one of the cluster.
void switch_to(unsigned other) {
  if (other == rank) return;
  Block& before = blocks[rank];
  before.alive = alive;
  before.waiting_at_barrier = waiting_at_barrier;
  before.epoch = epoch;
  before.block_epoch = block_epoch;
  memcpy(before.warp_epoch, warp_epoch, sizeof warp_epoch);
  const Block& b = blocks[rank = other];
  for (unsigned i = 0; i < 3; ++i) {
    memcpy(before.memory[i], reinterpret_cast<void*>(shared[i].begin), shared[i].bytes);
    memcpy(reinterpret_cast<void*>(shared[i].begin), b.memory[i], shared[i].bytes);
    shared[i].shadow = b.shadow[i];
  }
  fibers = all_fibers + rank * threads;
  alive = b.alive;
  waiting_at_barrier = b.waiting_at_barrier;
  epoch = b.epoch;
  block_epoch = b.block_epoch;
  memcpy(warp_epoch, b.warp_epoch, sizeof warp_epoch);
  onepass_block = b.index;
}

void begin_block(uint32_t first_epoch, Index3 index) {
  blocks[rank].index = onepass_block = index;
  blocks[rank].stored_stamp = 0;
  block_epoch = epoch = first_epoch;
  blocks[rank].alive = alive = threads;
  waiting_at_barrier = 0;
  for (unsigned i = 0; i < threads; ++i) prepare_fiber(i);
  for (Shared& s : shared) poison(s);
}

// Runs the threads of the block until none can go on; says whether any ran.
bool run_threads(bool backwards) {
  const unsigned warps = (threads + 31) / 32;
  for (bool any = false;; any = true) {
    bool ran = false;
    for (unsigned w = 0; w < warps && !stopped; ++w)
      ran |= run_warp(backwards ? warps - 1 - w : w, backwards);
    if (stopped || !ran) return any;
  }
}

// The threads of the block that wait for another block's word look again.
void look_again() {
  for (unsigned i = 0; i < threads; ++i)
    if (fibers[i].state == at_grid) fibers[i].state = running;
}

// Blocks have waited for words round after round, and nothing else was done.
void report_waiting() {
  for (unsigned i = 0; i < launch->cluster * threads; ++i) {
    const Fiber& f = all_fibers[i];
    if (f.state != at_grid) continue;
    switch_to(i / threads);
    onepass_thread = thread_index(i % threads);
    record(never_written, 0, 0, f.pc, -1);
    stopped = true;
    return;
  }
}

// Nobody in the cluster can go on.
void report_stuck() {
  for (unsigned r = 0; r < launch->cluster; ++r) {
    switch_to(r);
    if (report_deadlock()) return;
  }
  for (unsigned i = 0; i < launch->cluster * threads; ++i) {
    const Fiber& f = all_fibers[i];
    if (f.state != at_cluster) continue;
    switch_to(i / threads);
    onepass_thread = thread_index(i % threads);
    record(barrier_divergence, 0, 0, f.pc, -1);
    stopped = true;
    return;
  }
}

// A block may have ended before another one's last store to its memory came.
void check_ends() {
  for (unsigned r = 0; r < launch->cluster; ++r) {
    const Block& b = blocks[r];
    uint32_t acquired = 0;
    for (unsigned i = 0; i < threads; ++i)
      acquired = all_fibers[r * threads + i].acquired > acquired ? all_fibers[r * threads + i].acquired : acquired;
    if (b.stored_stamp <= acquired) continue;
    onepass_block = b.storing_block;
    onepass_thread = b.storing_thread;
    record(absent_block, 0, 0, b.stored_pc, -1);
    stopped |= launch->max_faults == 1;
  }
}

Index3 block_index(uint64_t b) {
  const Index3& n = onepass_grid_size;
  return Index3{uint32_t(b % n.x), uint32_t(b / n.x % n.y), uint32_t(b / (uint64_t(n.x) * n.y))};
}

// Runs the blocks of a cluster, of which `first` is the first.
bool run_cluster(uint64_t first, bool backwards) {
  const unsigned n = unsigned(launch->cluster);
  uint32_t next_epoch = epoch + 1;
  cluster_phase = 0;
  cluster_live = cluster_pending = n * threads;
  for (unsigned r = 0; r < n; ++r) {
    switch_to(r);
    begin_block(next_epoch, block_index(first + r));
  }
  // More rounds of nothing but waiting than a thread waits for words one after the other.
  for (unsigned idle = 0; cluster_live;) {
    bool ran = false;
    const uint64_t runs = run - polls, written = words_written;
    for (unsigned r = 0; r < n && !stopped; ++r) {
      switch_to(backwards ? n - 1 - r : r);
      look_again();
      ran |= run_threads(backwards);
    }
    if (!stopped && !ran) report_stuck();
    idle = run - polls == runs && words_written == written ? idle + 1 : 0;
    if (!stopped && idle > max_cluster) report_waiting();
    if (stopped) return false;
  }
  if (n > 1) check_ends();
  blocks[rank].epoch = epoch;
  for (unsigned r = 0; r < n; ++r)
    if (blocks[r].epoch > epoch) epoch = blocks[r].epoch;
  return !stopped;
}

void grow_stacks(unsigned wanted) {
  if (wanted <= room) return;
  if (stacks) munmap(stacks, guard_bytes + room * stack_bytes);
  room = wanted;
  stacks = static_cast<char*>(mmap(nullptr, guard_bytes + room * stack_bytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  mprotect(stacks, guard_bytes, PROT_NONE);
}

// Memory and history of the blocks that do not run; the first one has what `shared` was set up with.
void make_blocks() {
  rank = 0;
  fibers = all_fibers;
  for (unsigned r = 0; r < launch->cluster; ++r)
    for (unsigned i = 0; i < 3; ++i) {
      blocks[r].memory[i] = static_cast<char*>(launch->cluster > 1 ? malloc(shared[i].bytes + 1) : nullptr);
      blocks[r].shadow[i] =
          r ? static_cast<Shadow*>(calloc(shared[i].bytes + 1, sizeof(Shadow))) : shared[i].shadow;
      blocks[r].block_epoch = 0;
    }
}

void drop_blocks() {
  switch_to(0);
  for (unsigned r = 0; r < launch->cluster; ++r)
    for (unsigned i = 0; i < 3; ++i) {
      free(blocks[r].memory[i]);
      if (r) free(blocks[r].shadow[i]);
    }
}

// Kept for a launch that goes on after faults, and for buffers of a size that a check uses.
void keep_histories() {
  histories = static_cast<GlobalShadow**>(calloc(launch->region_count + 1, sizeof(GlobalShadow*)));
  for (uint64_t i = 0; i < launch->region_count; ++i) {
    const Region& r = launch->regions[i];
    const bool wanted = launch->max_faults > 1 && launch->cluster == 1 && r.writable && r.end - r.begin <= max_history_bytes;
    if (wanted) histories[i] = static_cast<GlobalShadow*>(calloc(r.end - r.begin + 1, sizeof(GlobalShadow)));
  }
}

void drop_histories() {
  for (uint64_t i = 0; i < launch->region_count; ++i) free(histories[i]);
  free(histories);
}

// With a fence what one block reads of another's may be in order: an atomic says so, which is not followed here.
void drop_fenced() {
  uint64_t kept = 0;
  for (uint64_t i = 0; i < outcome->faults; ++i)
    if (launch->faults[i].kind != block_race && launch->faults[i].kind != atomic_block_race) launch->faults[kept++] = launch->faults[i];
  outcome->faults = kept;
}

// ---- what would end the process: a fault of the host, or a loop that never ends ----

constexpr int tick_signal = SIGXCPU;  // nothing else on a host uses it as a clock
constexpr int idle_ticks = 3;         // seconds of the processor's time with no access, barrier or shuffle
constexpr int caught[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, tick_signal};
constexpr int caught_count = sizeof caught / sizeof *caught;
struct sigaction before[caught_count];
pid_t launching;  // the thread that runs the kernel
uint64_t seen_accesses;
int idle;

pid_t this_thread() { return pid_t(syscall(SYS_gettid)); }

FaultKind of_signal(int signal, uint64_t address) {
  if (signal == tick_signal) return endless_loop;
  if (signal == SIGFPE) return division_by_zero;
  return address - reinterpret_cast<uintptr_t>(stacks) < guard_bytes ? stack_overflow : crash;
}

bool stuck() {
  idle = accesses == seen_accesses ? idle + 1 : 0;
  seen_accesses = accesses;
  return idle >= idle_ticks;
}

// Leaves the fiber for good: the scheduler goes on as if it had been switched to.
void on_signal(int signal, siginfo_t* info, void* context) {
  const bool ours = launching == this_thread() && inside;
  if (signal == tick_signal && !(ours && stuck())) return;
  if (!ours) {  // the host's own: as it would have been, when the instruction is tried again
    for (int i = 0; i < caught_count; ++i)
      if (caught[i] == signal) sigaction(signal, &before[i], nullptr);
    return;
  }
  auto& machine = static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  const uint64_t pc = uint64_t(machine.gregs[REG_RIP]);
  machine.gregs[REG_RSP] = int64_t(reinterpret_cast<uint64_t>(scheduler));
  machine.gregs[REG_RIP] = int64_t(reinterpret_cast<uint64_t>(&onepass_resume));
#else
  const uint64_t pc = machine.pc;
  machine.sp = reinterpret_cast<uint64_t>(scheduler);
  machine.pc = reinterpret_cast<uint64_t>(&onepass_resume);
#endif
  record(of_signal(signal, reinterpret_cast<uint64_t>(info->si_addr)), 0, 0, pc + 1, 0);
  stopped = true;
}

struct Watch {
  stack_t stack, old_stack;
  timer_t timer;
  bool ticking;
};

void begin_watch(Watch& w) {
  constexpr size_t bytes = 64 << 10;
  w.stack = stack_t{};
  w.stack.ss_sp = malloc(bytes);
  w.stack.ss_size = bytes;
  sigaltstack(&w.stack, &w.old_stack);
  launching = this_thread();
  idle = 0;
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  for (int i = 0; i < caught_count; ++i) sigaction(caught[i], &action, &before[i]);
  sigevent event = {};
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = tick_signal;
  event._sigev_un._tid = launching;
  const itimerspec each_second = {{1, 0}, {1, 0}};
  w.ticking = !timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &w.timer) && !timer_settime(w.timer, 0, &each_second, nullptr);
}

void end_watch(Watch& w) {
  if (w.ticking) timer_delete(w.timer);
  // The clock's handler stays: another thread's launch may still tick, and without one that ends the process.
  for (int i = 0; i < caught_count; ++i)
    if (caught[i] != tick_signal) sigaction(caught[i], &before[i], nullptr);
  sigaltstack(&w.old_stack, nullptr);
  free(w.stack.ss_sp);
}

uint64_t next_random(uint64_t& s) {
  s += 0x9e3779b97f4a7c15ull;
  uint64_t z = s;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void onepass_launch(const Launch* l, Outcome* out) {
  launch = l;
  outcome = out;
  *outcome = Outcome{};
  memset(site_table, 0, sizeof site_table);
  stopped = false;
  run = polls = words_written = 0;
  last_region = nullptr;
  accesses = 0;
  const Bounds module = find_module();
  module_low = module.low;
  module_high = module.high;
  outcome->thread_shared_bytes = module.thread_local_bytes;
  onepass_grid_size = l->grid;
  onepass_block_size = l->block;
  threads = l->block.x * l->block.y * l->block.z;
  grow_stacks(threads * unsigned(l->cluster));
  set_shared(shared[0], onepass_dynamic_shared, l->shared_bytes);
  set_shared(shared[1], l->static_shared, l->static_shared_bytes);
  set_shared(shared[2], reinterpret_cast<void*>(module.thread_local_begin), module.thread_local_bytes);
  epoch = 0;
  fenced = false;
  keep_histories();
  make_blocks();
  const uint64_t clusters = uint64_t(l->grid.x) * l->grid.y * l->grid.z / l->cluster;
  uint64_t* order = static_cast<uint64_t*>(malloc((clusters + 1) * sizeof(uint64_t)));
  uint64_t random = l->order_seed;
  for (uint64_t i = 0; i < clusters; ++i) order[i] = i;
  if (l->order_seed)
    for (uint64_t i = clusters; i > 1; --i) {
      const uint64_t j = next_random(random) % i, keep = order[i - 1];
      order[i - 1] = order[j];
      order[j] = keep;
    }
  Watch watch;
  begin_watch(watch);
  for (uint64_t i = 0; i < clusters; ++i) {
    const bool backwards = next_random(random) & 1;  // seed 1 runs every block's lanes backwards
    if (!run_cluster(order[i] * l->cluster, l->order_seed == 1 || (l->order_seed && backwards))) break;
  }
  end_watch(watch);
  free(order);
  drop_blocks();
  drop_histories();
  if (fenced) drop_fenced();
}
