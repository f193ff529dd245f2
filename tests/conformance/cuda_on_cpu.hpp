// SPDX-License-Identifier: Apache-2.0
// Programs of CUDA C++ on a CPU: a thread of the CPU for each thread of a program, one program after the other.
#include <barrier>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)

struct Index {
  unsigned x;
};
struct uint4 {
  unsigned x, y, z, w;
};

static thread_local Index threadIdx, blockIdx;
static Index blockDim, gridDim;
static unsigned char *memory;
static unsigned memory_bytes;
static std::vector<std::unique_ptr<std::barrier<>>> warpgroups, warps;
static std::unique_ptr<std::barrier<>> program;

static void require(bool condition, const char *message) {
  if (!condition) {
    std::fprintf(stderr, "%s\n", message);
    std::abort();
  }
}

static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static void __syncthreads() { program->arrive_and_wait(); }

template <class Kernel>
static void launch(int num_programs, int threads, int shared_bytes, Kernel kernel) {
  gridDim.x = num_programs;
  blockDim.x = threads;
  memory_bytes = shared_bytes;
  for (int index = 0; index < num_programs; index++) {
    std::vector<uint4> bytes(shared_bytes / sizeof(uint4) + 1, uint4{~0u, ~0u, ~0u, ~0u});  // NaN
    memory = (unsigned char *)bytes.data();
    program = std::make_unique<std::barrier<>>(threads);
    warpgroups.clear();
    warps.clear();
    for (int i = 0; i < threads / 128; i++) warpgroups.push_back(std::make_unique<std::barrier<>>(128));
    for (int i = 0; i < threads / 32; i++) warps.push_back(std::make_unique<std::barrier<>>(32));
    std::vector<std::thread> all;
    for (int thread = 0; thread < threads; thread++)
      all.emplace_back([=] {
        threadIdx.x = thread;
        blockIdx.x = index;
        kernel();
      });
    for (std::thread &thread : all) thread.join();
  }
}
#define LAUNCH(NAME)                                                                                                  \
  extern "C" void launch_##NAME(int num_programs, int threads, int shared_bytes, void **p, int *n) {                  \
    launch(num_programs, threads, shared_bytes, [=] { call_##NAME(p, n); });                                          \
  }
