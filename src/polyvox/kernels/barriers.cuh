// SPDX-License-Identifier: Apache-2.0
// Barriers in shared memory, bulk copies that they count, and clusters of programs: sm_90 and later.

#ifdef ON_CPU
#include "cluster_on_cpu.hpp"
#define SHARED_MEMORY(NAME) static_assert(true)
#else
__device__ __forceinline__ unsigned shared_address(const void *at) { return (unsigned)__cvta_generic_to_shared(at); }
// An address of this program in another one of the cluster.
__device__ __forceinline__ unsigned remote_address(unsigned at, int program) {
  unsigned made;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(made) : "r"(at), "r"(program));
  return made;
}
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
// The same, but writes before it need not be visible after it.
__device__ __forceinline__ void sync_cluster_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

__device__ __forceinline__ void init_barrier(unsigned at, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory");
}
__device__ __forceinline__ void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive_expecting(unsigned at, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive(unsigned remote) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}
__device__ __forceinline__ void wait_barrier(unsigned at, int parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(at), "r"(parity) : "memory");
}
// The first phase of a barrier, for what other programs of the cluster wrote.
__device__ __forceinline__ void wait_for_cluster(unsigned at) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra again;\n}" ::"r"(at) : "memory");
}

// Weights: the L2 cache keeps other rows rather than these.
__device__ __forceinline__ void copy(unsigned to, const void *from, unsigned bytes, unsigned barrier) {
  asm volatile(
      "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], policy;\n}" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
struct __align__(64) TensorMap {  // CUtensorMap
  char bytes[128];
};
// Copies a box of the map from this row and column on.
__device__ __forceinline__ void copy_box(unsigned to, const TensorMap &map, int column, int row, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
      ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
// Stores to a program of the cluster; its barrier counts their bytes.
__device__ __forceinline__ void send(unsigned at, float4 v, unsigned barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   at), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void send(unsigned at, float a, unsigned barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(at), "f"(a),
               "r"(barrier)
               : "memory");
}
#define SHARED_MEMORY(NAME) extern __shared__ __align__(128) unsigned char NAME[]
#endif
