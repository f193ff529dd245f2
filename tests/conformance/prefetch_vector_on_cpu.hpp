// SPDX-License-Identifier: Apache-2.0
// What prefetch_vector.cu needs of the hardware, for a CPU.
#include "cluster_on_cpu.hpp"
#include "bfloat16_on_cpu.hpp"

static inline float to_float(bits16 value);
#include "mma_on_cpu.hpp"

#define SHARED_MEMORY(NAME) static_assert(true)

struct uint2 {
  unsigned x, y;
};
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static void start_next() {}
static void wait_for_previous() {}
static void sync_program() { __syncthreads(); }
static float rsqrtf(float value) { return 1.f / std::sqrt(value); }
static unsigned pack(float low, float high) { return rounded(low) | (unsigned)rounded(high) << 16; }
static uint2 load_row(const bits16 *from) { return *(const uint2 *)from; }
