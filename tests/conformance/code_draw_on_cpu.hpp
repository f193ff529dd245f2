// SPDX-License-Identifier: Apache-2.0
// What code_draw.cu needs of the hardware, for a CPU.
#include <bit>

#define SHARED static  // one program at a time

static unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
template <class Combine>
static unsigned reduce_warp(unsigned value, Combine combine) {
  const Internal exchange;  // of registers
  fragments[threadIdx.x % 32][0] = value;
  sync_warp();
  unsigned made = fragments[0][0];
  for (int i = 1; i < 32; i++) made = combine(made, fragments[i][0]);
  sync_warp();
  return made;
}
static unsigned warp_sum(unsigned value) {
  return reduce_warp(value, [](unsigned a, unsigned b) { return a + b; });
}
static unsigned warp_max(unsigned value) {
  return reduce_warp(value, [](unsigned a, unsigned b) { return a > b ? a : b; });
}
static unsigned warp_min(unsigned value) {
  return reduce_warp(value, [](unsigned a, unsigned b) { return a < b ? a : b; });
}
static int __ffs(unsigned value) { return std::countr_zero(value) + 1; }  // of values that are not zero
static float divide(float a, float b) { return a / b; }
static float fused(float a, float b, float c) { return std::fma(a, b, c); }
// The GPU's inverse differs from the exact one by up to two units in the last place.
static int inverse_error;
static float approximate_reciprocal(float value) { return __uint_as_float(__float_as_uint(1 / value) + inverse_error); }
static float multiply_rounded(float a, float b) { return a * b; }
static float add_rounded(float a, float b) { return a + b; }
static bool many_rows;
static bool has_many_rows() { return many_rows; }
static float load_value(const bits16 *from) { return to_float(*from); }
static float power_of_2(float value) { return std::exp2(value); }
