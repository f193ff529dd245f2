// SPDX-License-Identifier: Apache-2.0
// What attention.cuh needs of the hardware, for a CPU.
#include <algorithm>

#include "cluster_on_cpu.hpp"
#include "bfloat16_on_cpu.hpp"

struct uint2 {
  unsigned x, y;
};
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
using std::min;

static void start_next() {}
static void wait_for_previous() {}
static float shuffle(float value, int lane) { return from_lane(value, lane); }
static float shuffle_xor(float value, int mask) { return from_lane(value, (threadIdx.x % 32) ^ mask); }
static float power_of_2(float value) { return std::exp2(value); }
static float rsqrtf(float value) { return 1.f / std::sqrt(value); }
static uint2 load_8_bytes(const bits16 *from) { return *(const uint2 *)from; }
static uint4 load_16_bytes(const bits16 *from) { return *(const uint4 *)from; }
