// SPDX-License-Identifier: Apache-2.0
// What bfloat16.cuh needs of the hardware, for a CPU.
#include "mma_on_cpu.hpp"

static float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
static unsigned short rounded(float value) {  // to the nearest even
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return value != value ? 0x7FFF : (unsigned short)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
static unsigned pack(float low, float high) { return rounded(low) | (unsigned)rounded(high) << 16; }
static uint2 load_8_bytes(const bits16 *from) { return *(const uint2 *)from; }
static uint4 load_16_bytes(const bits16 *from) { return *(const uint4 *)from; }
static void multiply(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  multiply_registers(d, {a0, a1, a2, a3, b0, b1}, [](bits16 value) { return __uint_as_float((unsigned)value << 16); });
}
