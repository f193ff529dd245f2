// SPDX-License-Identifier: Apache-2.0
// A tensor core product for a CPU: the 32 threads of a warp exchange their registers.
#include "cuda_on_cpu.hpp"

// m16n8k16: by the layout of the operands, a lane has rows lane / 4 and 8 more of the left operand, row lane / 4 of the
// right one, and two of its columns, and two from 8 on, in each register.
template <class ToFloat>
static void multiply_registers(float (&d)[4], const std::array<unsigned, 6> &registers, ToFloat to_float) {
  const Internal exchange;  // of registers
  const int lane = threadIdx.x % 32;
  fragments[lane] = registers;
  sync_warp();
  const auto element = [&](int row, int k, int first) {  // first: the register of columns below 8
    return to_float((unsigned short)(fragments[row % 8 * 4 + k % 8 / 2][first] >> (k % 2 * 16)));
  };
  for (int i = 0; i < 4; i++) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; k++) d[i] += element(row, k, row / 8 + k / 8 * 2) * element(column, k, 4 + k / 8);
  }
  sync_warp();
}
