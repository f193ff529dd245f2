// SPDX-License-Identifier: Apache-2.0
// What several files of decode attention need, besides bfloat16.cuh and warps.cuh.

#ifdef ON_CPU
#include "attention_on_cpu.hpp"
#else
__device__ __forceinline__ float power_of_2(float value) {
  float made;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(made) : "f"(value));
  return made;
}
#endif

struct Dimensions {  // of a head, in a thread
  float value[4];
};
__device__ __forceinline__ Dimensions unpack(uint2 row) {
  return {{low(row.x), high(row.x), low(row.y), high(row.y)}};
}
