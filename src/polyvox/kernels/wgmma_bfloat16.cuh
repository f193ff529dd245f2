// SPDX-License-Identifier: Apache-2.0
// What linear layers for sm_90a in bfloat16 share (wgmma_linear.cu, mid_batch_linear.cu): products of boxes of 64
// columns in shared memory, whose rows are swizzled by 128 bytes, and gates.

typedef unsigned long long u64;

constexpr int DEPTH = 64;             // columns of a box
constexpr int ROW_BYTES = DEPTH * 2;  // of a box

#ifdef ON_CPU
#include "wgmma_bfloat16_on_cpu.hpp"
#else
#define VALUES_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define VALUES_16(d, i) VALUES_4(d, i), VALUES_4(d, i + 4), VALUES_4(d, i + 8), VALUES_4(d, i + 12)
__device__ __forceinline__ void multiply(float (&d)[16], u64 a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"
      : VALUES_16(d, 0)
      : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply(float (&d)[32], u64 a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
      : VALUES_16(d, 0), VALUES_16(d, 16)
      : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply(float (&d)[48], u64 a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, %48, %49, 1, 1, 1, 0, 0;"
      : VALUES_16(d, 0), VALUES_16(d, 16), VALUES_16(d, 32)
      : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply(float (&d)[64], u64 a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, 1, 1, 1, 0, 0;"
      : VALUES_16(d, 0), VALUES_16(d, 16), VALUES_16(d, 32), VALUES_16(d, 48)
      : "l"(a), "l"(b));
}
__device__ __forceinline__ void multiply(float (&d)[96], u64 a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, %96, %97, 1, 1, 1, 0, 0;"
      : VALUES_16(d, 0), VALUES_16(d, 16), VALUES_16(d, 32), VALUES_16(d, 48), VALUES_16(d, 64), VALUES_16(d, 80)
      : "l"(a), "l"(b));
}

// An operand of rows of 128 bytes, swizzled; 8 rows are 1,024 bytes. In a cluster the upper bits of an address are the
// program's rank; here they become bits of the leading offset, which this layout does not use.
__device__ __forceinline__ u64 operand(unsigned address) {
  return (u64)(address >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int MAX_PENDING>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(MAX_PENDING) : "memory");
}
// No use of these values before this line.
template <int COUNT>
__device__ __forceinline__ void use_from_here(float (&values)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(values[i])::"memory");
}
template <int COUNT>
__device__ __forceinline__ void finish_products(float (&sums)[COUNT]) {
  wait_for_products<0>();
  use_from_here(sums);
}
__device__ __forceinline__ void prefetch_map(const TensorMap &map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// The value of the first lane, of which the compiler knows that all lanes have it.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xFFFFFFFF, value, 0); }
__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.f + __expf(-x)); }
#define SWIZZLED_MEMORY(NAME) extern __shared__ __align__(1024) unsigned char NAME[]
#endif

// silu(gate) · up of two columns, with the roundings of silu_mul.py.
__device__ __forceinline__ unsigned gate_pair(unsigned gates, unsigned ups) {
  const unsigned open = pack(silu(low(gates)), silu(high(gates)));
  return pack(low(open) * low(ups), high(open) * high(ups));
}
