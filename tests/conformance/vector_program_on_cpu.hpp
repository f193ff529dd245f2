// SPDX-License-Identifier: Apache-2.0
// What vector_program.cuh needs of the hardware, for a CPU.
#include "cluster_on_cpu.hpp"
#include "bfloat16_on_cpu.hpp"

static inline float to_float(bits16 value);
#include "mma_on_cpu.hpp"

#define SHARED_MEMORY(NAME) static_assert(true)

struct uint2 {
  unsigned x, y;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static void start_next() {}
static void wait_for_previous() {}
static void sync_program() { __syncthreads(); }
static float rsqrtf(float value) { return 1.f / std::sqrt(value); }
static unsigned pack(float low, float high) { return rounded(low) | (unsigned)rounded(high) << 16; }
static uint2 load_row(const bits16 *from) { return *(const uint2 *)from; }
static uint4 load_16_bytes(const bits16 *from) { return *(const uint4 *)from; }
static float shuffle_xor(float value, int mask) { return from_lane(value, (threadIdx.x % 32) ^ mask); }
static float power_of_2(float value) { return std::exp2(value); }
