// SPDX-License-Identifier: Apache-2.0
// bfloat16: loads, conversions, and a product of the tensor cores. In a pair the first value has the lower bits.

typedef unsigned short bits16;

#ifdef ON_CPU
#include "bfloat16_on_cpu.hpp"
#else
// Rows that earlier launches wrote: not through the L1 cache.
__device__ __forceinline__ uint2 load_8_bytes(const bits16 *from) {
  uint2 v;
  asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_16_bytes(const bits16 *from) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ bits16 rounded(float value) {
  bits16 made;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(made) : "f"(value));
  return made;
}
__device__ __forceinline__ unsigned pack(float low, float high) {
  unsigned made;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(made) : "f"(high), "f"(low));
  return made;
}
__device__ __forceinline__ void multiply(
    float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
#endif

__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000u); }
__device__ __forceinline__ float to_float(bits16 value) { return __uint_as_float((unsigned)value << 16); }
__device__ __forceinline__ float rounded_float(float value) { return to_float(rounded(value)); }
