// SPDX-License-Identifier: Apache-2.0
// Programs of CUDA C++ on a CPU: a thread of the CPU for each thread of a program, one program or cluster of programs
// after the other.
#pragma once
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "races_on_cpu.hpp"

#define __device__
#ifdef __SANITIZE_THREAD__
// g++ does not report what a call stores directly in memory, so the calls of kernels are inlined.
#define __forceinline__ inline __attribute__((always_inline))
#else
#define __forceinline__ inline
#endif
#define __global__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)

typedef unsigned Word __attribute__((may_alias));  // of bytes of any type
struct Index {
  unsigned x;
};
struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};

static thread_local Index threadIdx, blockIdx;
static Index blockDim, gridDim;
static unsigned memory_bytes;
static std::unique_ptr<std::barrier<>> cluster;

static void require(bool condition, const char *message) {
  if (!condition) {
    std::fprintf(stderr, "%s\n", message);
    std::abort();
  }
}

// Shared memory, NaN at first. Before and after it are pages without access, as far as addresses reach. It ends where the
// second ones begin; before it, less than a page is accessible.
class SharedMemory {
  static constexpr std::size_t PAGE = 4096, OUTSIDE = 1 << 24;
  std::size_t inside = (memory_bytes + PAGE - 1) / PAGE * PAGE;
  unsigned char *map = (unsigned char *)mmap(nullptr, size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

  std::size_t size() const { return OUTSIDE + inside + OUTSIDE; }

 public:
  SharedMemory() {
    require(map != MAP_FAILED && mprotect(map + OUTSIDE, inside, PROT_READ | PROT_WRITE) == 0, "no memory");
    std::memset(map + OUTSIDE, 0xFF, inside);
  }
  SharedMemory(const SharedMemory &) = delete;
  ~SharedMemory() { munmap(map, size()); }
  unsigned char *data() { return map + OUTSIDE + inside - (memory_bytes + 15) / 16 * 16; }
};

struct Program {  // what its threads share
  SharedMemory bytes;
  std::barrier<> all;
  std::vector<std::unique_ptr<std::barrier<>>> warpgroups, warps;
  std::vector<float> lanes;                         // a value of each thread, to exchange
  std::vector<std::array<unsigned, 6>> fragments;  // registers of each thread, to exchange

  explicit Program(int threads) : all(threads), lanes(threads), fragments(threads) {
    for (int i = 0; i < threads / 128; i++) warpgroups.push_back(std::make_unique<std::barrier<>>(128));
    for (int i = 0; i < threads / 32; i++) warps.push_back(std::make_unique<std::barrier<>>(32));
  }
};
static std::vector<std::unique_ptr<Program>> programs;  // of a cluster
static thread_local unsigned char *memory;
static thread_local std::unique_ptr<std::barrier<>> *warpgroups, *warps;
static thread_local std::barrier<> *program;
static thread_local float *lanes;  // of the thread's warp
static thread_local std::array<unsigned, 6> *fragments;

static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static float rsqrtf(float value) { return 1.f / std::sqrt(value); }
static void __syncthreads() { program->arrive_and_wait(); }
static void sync_program() { __syncthreads(); }
static void sync_warp() { warps[threadIdx.x / 32]->arrive_and_wait(); }
static float from_lane(float value, int lane) {
  const Internal exchange;  // of registers
  lanes[threadIdx.x % 32] = value;
  sync_warp();
  const float found = lanes[lane];
  sync_warp();
  return found;
}
static float shuffle_xor(float value, int mask) { return from_lane(value, (threadIdx.x % 32) ^ mask); }
static float sum_of_lanes(float value, int count) {  // of 2^n adjacent lanes
  for (int offset = count / 2; offset > 0; offset /= 2) value += shuffle_xor(value, offset);
  return value;
}

// What the previous launch uses until it ends. Its thread touches that while the programs may already run.
struct Used {
  volatile unsigned char *first;
  long long bytes;
  int is_written;
};
static std::vector<Used> used_before;
static std::atomic<bool> previous_has_ended;
static char end_of_previous;
extern "C" void set_previous_launch(int count, void **first, long long *bytes, int *is_written) {
  used_before.clear();
  for (int i = 0; i < count; i++)
    used_before.push_back({(volatile unsigned char *)first[i], bytes[i], is_written[i]});
}
static void run_previous_launch() {
  unsigned char last = 0;
  for (const Used &used : used_before)
    for (long long i = 0; i < used.bytes; i += 2) {  // elements have at least two bytes, but those of a cache
      last = used.first[i];
      if (used.is_written) used.first[i] = last;
    }
  publish(&end_of_previous);
  const Internal end;
  previous_has_ended = true;
}
static void start_next() {}
static void wait_for_previous() {
  {
    const Internal wait;
    while (!previous_has_ended) std::this_thread::yield();
  }
  observe(&end_of_previous);
}

template <class Kernel>
static void launch(int num_programs, int threads, int shared_bytes, Kernel kernel, int cluster_size = 1) {
  require(num_programs % cluster_size == 0, "the number of programs is no multiple of the cluster's");
  gridDim.x = num_programs;
  blockDim.x = threads;
  memory_bytes = shared_bytes;
  for (int first = 0; first < num_programs; first += cluster_size) {
    programs.clear();
    for (int rank = 0; rank < cluster_size; rank++) programs.push_back(std::make_unique<Program>(threads));
    cluster = std::make_unique<std::barrier<>>(threads * cluster_size);
    std::vector<std::thread> all;
    previous_has_ended = false;
    all.emplace_back(run_previous_launch);
    for (int i = 0; i < threads * cluster_size; i++)
      all.emplace_back([=] {
        Program &own = *programs[i / threads];
        memory = own.bytes.data();
        warpgroups = own.warpgroups.data();
        warps = own.warps.data();
        program = &own.all;
        lanes = own.lanes.data() + i % threads / 32 * 32;
        fragments = own.fragments.data() + i % threads / 32 * 32;
        threadIdx.x = i % threads;
        blockIdx.x = first + i / threads;
        kernel();
      });
    for (std::thread &thread : all) thread.join();
  }
  used_before.clear();
}
#define LAUNCH(NAME) LAUNCH_CLUSTERS(NAME, 1)
#define LAUNCH_CLUSTERS(NAME, SIZE)                                                                                   \
  extern "C" void launch_##NAME(int num_programs, int threads, int shared_bytes, void **p, int *n) {                  \
    launch(num_programs, threads, shared_bytes, [=] { call_##NAME(p, n); }, SIZE);                                    \
  }
