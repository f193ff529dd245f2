// SPDX-License-Identifier: Apache-2.0
// float16 for a CPU.
#include "mma_on_cpu.hpp"

static float to_float(unsigned short bits) {
  _Float16 value;
  std::memcpy(&value, &bits, sizeof value);
  return (float)value;
}
static unsigned short rounded(float value) {
  const _Float16 made = (_Float16)value;
  unsigned short bits;
  std::memcpy(&bits, &made, sizeof bits);
  return bits;
}
static void multiply(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  multiply_registers(d, {a0, a1, a2, a3, b0, b1}, to_float);
}
