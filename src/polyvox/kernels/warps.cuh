// SPDX-License-Identifier: Apache-2.0
// Threads that wait for each other, and values of other threads of a warp.

#ifdef ON_CPU
#include "cuda_on_cpu.hpp"
#else
__device__ __forceinline__ void sync_program() { __syncthreads(); }
__device__ __forceinline__ void sync_warp() { __syncwarp(); }
__device__ __forceinline__ float from_lane(float value, int lane) { return __shfl_sync(0xFFFFFFFF, value, lane); }
__device__ __forceinline__ float shuffle_xor(float value, int mask) { return __shfl_xor_sync(0xFFFFFFFF, value, mask); }
__device__ __forceinline__ float sum_of_lanes(float value, int lanes) {  // of 2^n adjacent lanes
  for (int offset = lanes / 2; offset > 0; offset /= 2) value += shuffle_xor(value, offset);
  return value;
}
#endif
