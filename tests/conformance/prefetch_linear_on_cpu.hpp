// SPDX-License-Identifier: Apache-2.0
// What prefetch_linear.cu needs of the hardware, for a CPU.
#include "cluster_on_cpu.hpp"
#include "bfloat16_on_cpu.hpp"

static inline float to_float(bits16 value);
#include "mma_on_cpu.hpp"

struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
static float2 make_float2(float x, float y) { return {x, y}; }

#define SHARED_MEMORY(NAME) static_assert(true)

static void start_next() {}
static void wait_for_previous() {}
static void sync_program() { __syncthreads(); }
static float rsqrtf(float value) { return 1.f / std::sqrt(value); }
static uint4 load_row(const bits16 *from) { return *(const uint4 *)from; }
static void send(unsigned at, float a, unsigned barrier) { copy(at, &a, sizeof a, barrier); }
static void send(unsigned at, float4 values, unsigned barrier) { copy(at, &values, sizeof values, barrier); }
