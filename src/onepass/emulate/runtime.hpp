// What an emulated kernel, the runtime below it and the Python launcher agree on.
#pragma once
#include <stddef.h>
#include <stdint.h>

struct Index3 {
  uint32_t x, y, z;
};

// A buffer the kernel may touch, with what the launch did to it.
struct Region {
  uint64_t begin, end;
  uint64_t read_bytes, write_bytes, reads, writes;
  uint8_t writable, written, read_only_loads, padding[5];
};

// Launcher and runtime share these numbers: `KINDS` in faults.py is in this order.
enum FaultKind : uint32_t {
  no_fault,
  out_of_bounds,
  misaligned,
  write_to_read_only,
  read_only_load_of_written,
  unwritten_shared,
  shared_race,
  barrier_divergence,
  shuffle_missing_lane,
  warp_divergence,
  stack_overflow,
  too_many_accesses,
  trap,
  undefined_lane,
  index_past_array,
  global_race,
  block_race,
  barrier_elsewhere,
  atomic_shared_race,
  atomic_global_race,
  atomic_block_race,
  local_overrun,
  division_by_zero,
  endless_loop,
  crash,
  absent_block,
  never_written,
};

struct Fault {
  FaultKind kind;
  int32_t other;  // the second thread, lane or buffer in play
  Index3 block, thread;
  uint64_t address, bytes, pc;
  uint64_t other_pc;  // of the second thread's access or barrier; 0 where unknown
};

enum Space : uint8_t { global_space, shared_space };
enum Direction : uint8_t { read_access, write_access, atomic_access };

// One place in the machine code that accesses memory, with one width in one space.
// A warp's lanes run one after another, so its executions are inferred: between two collectives (barrier, shuffle, vote)
// a warp executes a place as often as the lane that comes there most often.
struct Site {
  uint64_t pc;
  uint32_t bytes;
  uint8_t space, direction, padding[2];
  uint64_t warp_executions, thread_accesses;
  uint64_t segment, warp_segment, run;  // where the counts below belong
  uint64_t in_segment, in_run;
};

struct Launch {
  void (*entry)(const void* args);
  const void* args;
  uint64_t args_bytes;
  Index3 grid, block;
  void* static_shared;
  uint64_t static_shared_bytes, shared_bytes;
  Region* regions;
  uint64_t region_count;
  uint64_t order_seed;  // 0 runs blocks and lanes in ascending order
  uint64_t max_accesses;
  uint64_t garbage;  // what a shuffle gives that reads a lane outside its mask, where that goes on
  Fault* faults;
  uint64_t max_faults;  // the launch ends with this one, or with one that it can't go on after
  Site* sites;
  uint64_t max_sites;  // at most 2^14
  uint64_t cluster;    // blocks that run side by side: of a cluster, or the grid where all wait for each other; else 1
};

struct Outcome {
  uint64_t faults, barriers, exchanges;  // barriers over all blocks, exchanges (warp collectives) over all warps
  uint64_t sites, uncounted;             // places seen; accesses at places past `max_sites`
  uint64_t thread_shared_bytes;          // of `__thread` variables, which is what hand-written kernels' `__shared__` becomes
};

enum Exchange : int {
  exchange_sync, exchange_shuffle, exchange_ballot, exchange_match,
  exchange_add, exchange_min, exchange_max, exchange_umin, exchange_umax, exchange_and, exchange_or, exchange_xor,
};

#define ONEPASS_RUNTIME __attribute__((visibility("hidden"), noinline))
ONEPASS_RUNTIME uint64_t onepass_exchange(uint32_t mask, int operation, uint64_t value, int source, uint64_t site);
ONEPASS_RUNTIME void onepass_barrier(uint64_t site);
ONEPASS_RUNTIME uint64_t onepass_barrier_count(uint64_t site, bool vote);  // threads that voted true
ONEPASS_RUNTIME unsigned onepass_cluster_rank();
ONEPASS_RUNTIME void onepass_cluster_arrive(bool relaxed);
ONEPASS_RUNTIME void onepass_cluster_wait(uint64_t site);
ONEPASS_RUNTIME void onepass_cluster_store(float* to, unsigned rank, float value);  // where `to` lies in another block
ONEPASS_RUNTIME void onepass_grid_wrote();  // a word that another block may wait for
ONEPASS_RUNTIME void onepass_grid_reads(const void* word);  // perhaps in a loop that waits for it
ONEPASS_RUNTIME void onepass_trap();
ONEPASS_RUNTIME void onepass_fence();

// Up to 16 bytes by value: an address handed out would have the compiler instrument the registers too.
struct Bytes16 {
  uint64_t low, high;
};
ONEPASS_RUNTIME void onepass_copy(void* to, Bytes16 value);  // is there after `onepass_copies_done`
ONEPASS_RUNTIME void onepass_copies_done();
enum LoadPath : int { plain_path, read_only_path, atomic_path };
ONEPASS_RUNTIME Bytes16 onepass_load(const void* from, unsigned bytes, int path);
ONEPASS_RUNTIME void onepass_store(void* to, Bytes16 value, unsigned bytes, int path);
