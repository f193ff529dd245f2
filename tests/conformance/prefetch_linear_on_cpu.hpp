// SPDX-License-Identifier: Apache-2.0
// What prefetch_linear.cu needs of the hardware, for a CPU.
#include "cluster_on_cpu.hpp"

#define SHARED_MEMORY(NAME) static_assert(true)

static unsigned all_fragments[CLUSTER][WARPS][32][6];
static float all_shuffled[CLUSTER][WARPS][32];

static void start_next() {}
static void wait_for_previous() {}
static void sync_program() { __syncthreads(); }
static void sync_warp() { warps[threadIdx.x / 32]->arrive_and_wait(); }
static float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
static float rsqrtf(float value) { return 1.f / std::sqrt(value); }
static bits16 rounded(float value) {  // to bfloat16, to the nearest even
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return value != value ? 0x7FFF : (bits16)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
static uint4 load_row(const bits16 *from) { return *(const uint4 *)from; }
static void send(unsigned at, float a, unsigned barrier) { copy(at, &a, sizeof a, barrier); }
static void send(unsigned at, float a, float b, unsigned barrier) {
  const float both[2] = {a, b};
  copy(at, both, sizeof both, barrier);
}
static float sum_of_lanes(float value, int lanes) {
  float (&all)[32] = all_shuffled[cluster_rank()][threadIdx.x / 32];
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
// m16n8k16, as in mma_on_cpu.hpp, in bfloat16.
static void multiply(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  unsigned (&all)[32][6] = all_fragments[cluster_rank()][threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  const unsigned own[6] = {a0, a1, a2, a3, b0, b1};
  std::memcpy(all[lane], own, sizeof own);
  sync_warp();
  const auto element = [&](int row, int k, int first) {  // first: the register of columns below 8
    return __uint_as_float(all[row % 8 * 4 + k % 8 / 2][first] >> (k % 2 * 16) << 16);
  };
  for (int i = 0; i < 4; i++) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; k++) d[i] += element(row, k, row / 8 + k / 8 * 2) * element(column, k, 4 + k / 8);
  }
  sync_warp();
}
