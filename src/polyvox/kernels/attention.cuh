// SPDX-License-Identifier: Apache-2.0
// What decode attention in CUDA C++ needs: launches that overlap, bfloat16, and values of other threads of a warp.

typedef unsigned short bits16;

#ifdef ON_CPU
#include "attention_on_cpu.hpp"
#else
__device__ __forceinline__ void start_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void sync_warp() { __syncwarp(); }
__device__ __forceinline__ bits16 rounded(float value) {
  bits16 made;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(made) : "f"(value));
  return made;
}
__device__ __forceinline__ float shuffle(float value, int lane) { return __shfl_sync(0xFFFFFFFF, value, lane); }
__device__ __forceinline__ float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xFFFFFFFF, value, mask); }
__device__ __forceinline__ float power_of_2(float value) {
  float made;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(made) : "f"(value));
  return made;
}
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
#endif

__device__ __forceinline__ float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000u); }
__device__ __forceinline__ float rounded_float(float value) { return __uint_as_float((unsigned)rounded(value) << 16); }
__device__ __forceinline__ unsigned pack(float a, float b) { return rounded(a) | (unsigned)rounded(b) << 16; }
