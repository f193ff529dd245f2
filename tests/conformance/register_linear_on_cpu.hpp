// SPDX-License-Identifier: Apache-2.0
// What register_linear.cu needs of the hardware, for a CPU.
#include "mma_on_cpu.hpp"

#define SHARED_MEMORY(NAME) float *const NAME = (float *)memory

static float shuffled[WARPS][32];

static void start_next() {}
static void wait_for_previous() {}
static uint4 load_weights(const bits16 *from) { return *(const uint4 *)from; }
static uint4 load_row(const bits16 *from) { return *(const uint4 *)from; }
static float rsqrtf(float value) { return 1.f / std::sqrt(value); }
static float sum_of_lanes(float value, int lanes) {
  float (&all)[32] = shuffled[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    all[lane] = value;
    sync_warp();
    const float other = all[lane ^ offset];
    sync_warp();
    value += other;
  }
  return value;
}
static bits16 rounded(float value) {
  const _Float16 made = (_Float16)value;
  bits16 bits;
  std::memcpy(&bits, &made, sizeof bits);
  return bits;
}
