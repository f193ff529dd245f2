// SPDX-License-Identifier: Apache-2.0
// A tensor core product of float16 for a CPU (cuda_on_cpu.hpp), for files that define WARPS. The 32 threads of a warp
// exchange their registers by arrays.
#include "cuda_on_cpu.hpp"

static unsigned fragments[WARPS][32][6];

static void sync_warp() { warps[threadIdx.x / 32]->arrive_and_wait(); }
static float to_float(unsigned short bits) {
  _Float16 value;
  std::memcpy(&value, &bits, sizeof value);
  return (float)value;
}
// m16n8k16: by the layout of the operands, a lane has rows lane / 4 and 8 more of the left operand, row lane / 4 of the
// right one, and two of its columns, and two from 8 on, in each register.
static void multiply(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  unsigned (&all)[32][6] = fragments[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  const unsigned own[6] = {a0, a1, a2, a3, b0, b1};
  std::memcpy(all[lane], own, sizeof own);
  sync_warp();
  const auto element = [&](int row, int k, int first) {  // first: the register of columns below 8
    return to_float((unsigned short)(all[row % 8 * 4 + k % 8 / 2][first] >> (k % 2 * 16)));
  };
  for (int i = 0; i < 4; i++) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; k++) d[i] += element(row, k, row / 8 + k / 8 * 2) * element(column, k, 4 + k / 8);
  }
  sync_warp();
}
