// SPDX-License-Identifier: Apache-2.0
// Types of the KV cache, and conversions of the rows of one byte per element (quantized_rows.py).

constexpr int BF16 = 0, INT8 = 1, FP8 = 2;

#ifdef ON_CPU
#include "quantized_rows_on_cpu.hpp"
#else
__device__ __forceinline__ unsigned select_bytes(unsigned a, unsigned b, unsigned selector) {
  return __byte_perm(a, b, selector);
}
__device__ __forceinline__ unsigned float8_to_halves(unsigned pair) {  // of the lower 16 bits
  unsigned made;
  asm("{ .reg .b16 low; cvt.u16.u32 low, %1; cvt.rn.f16x2.e4m3x2 %0, low; }" : "=r"(made) : "r"(pair));
  return made;
}
__device__ __forceinline__ unsigned to_float8(float low, float high) {
  unsigned made;
  asm("{ .reg .b16 pair; cvt.rn.satfinite.e4m3x2.f32 pair, %2, %1; cvt.u32.u16 %0, pair; }"
      : "=r"(made) : "f"(low), "f"(high));
  return made;
}
__device__ __forceinline__ float divide(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float add(float a, float b) { return __fadd_rn(a, b); }
#endif

// The factor of a row's elements before they are rounded, and the row's scale.
template <int TYPE> __device__ __forceinline__ float factor_of_row(float largest, float &scale) {
  constexpr float LARGEST = TYPE == INT8 ? 127.f : 448.f;
  largest = fmaxf(largest, 1e-30f);
  const float factor = divide(LARGEST, largest);
  scale = divide(largest, LARGEST);
  return factor;
}
// Four elements as bytes.
template <int TYPE> __device__ __forceinline__ unsigned to_bytes(const float *x, float factor) {
  if (TYPE == FP8)
    return to_float8(x[0] * factor, x[1] * factor) | to_float8(x[2] * factor, x[3] * factor) << 16;
  unsigned made = 0;
#pragma unroll
  for (int i = 0; i < 4; i++)  // 1.5 · 2^23: rounds to an integer, ties to even; its lower byte is that of the sum
    made |= (__float_as_uint(add(x[i] * factor, 12582912.f)) & 0xFF) << (8 * i);
  return made;
}
