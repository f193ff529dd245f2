// SPDX-License-Identifier: Apache-2.0
// Copies of 16 bytes to shared memory in groups, for which the thread that began them waits.

#ifdef ON_CPU
#include "async_copies_on_cpu.hpp"
#else
__device__ __forceinline__ void copy_16_bytes(unsigned to, const void *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
// The same, or zeros.
__device__ __forceinline__ void copy_or_clear(unsigned to, const void *from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int MAX_PENDING> __device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(MAX_PENDING) : "memory");
}
#endif
