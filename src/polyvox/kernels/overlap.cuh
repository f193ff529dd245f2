// SPDX-License-Identifier: Apache-2.0
// Launches that overlap (launch_overlap.py).

#ifdef ON_CPU
#include "cuda_on_cpu.hpp"
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
#endif
