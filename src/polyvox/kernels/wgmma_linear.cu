// SPDX-License-Identifier: Apache-2.0
// Linear layers of large batches for sm_90a in bfloat16, with the norm before a product and the gate or residual after
// it. The launcher, the contract and the choice of tiles are in wgmma_linear.py.
// tests/conformance/test_wgmma_linear_on_cpu.py runs this file on a CPU.
//
// A program computes BM rows × BN matrix rows. One warp copies stages of 64 columns of both operands to shared memory
// (bulk tensor copies, swizzled by 128 bytes); each warpgroup multiplies 64 rows of x. The two programs of a cluster
// have the same matrix rows, and each copies half of them to both, because the L2 cache cannot deliver tiles of this
// size to every multiprocessor. The first stages of the matrix are copied before the previous launch has ended
// (launch_overlap.py); the next launch may start when this one has waited.

typedef unsigned long long u64;
typedef unsigned short bits16;

constexpr int DEPTH = 64;             // columns of a stage
constexpr int ROW_BYTES = DEPTH * 2;  // of a stage
constexpr int CLUSTER = 2;            // programs
constexpr int PART = 64;              // outputs whose squares are summed
constexpr int GATED = 1, ADD = 2;     // kinds of products; 0: neither

// Everything that needs the hardware; a test replaces it by functions for a CPU.
#ifdef ON_CPU
#include "wgmma_linear_on_cpu.hpp"
#else
struct __align__(64) TensorMap {  // CUtensorMap
  char bytes[128];
};

#define VALUES_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define VALUES_16(d, i) VALUES_4(d, i), VALUES_4(d, i + 4), VALUES_4(d, i + 8), VALUES_4(d, i + 12)
__device__ __forceinline__ void multiply(float (&d)[32], u64 a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
      : VALUES_16(d, 0), VALUES_16(d, 16)
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

__device__ __forceinline__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
// An operand of rows of 128 bytes, swizzled; 8 rows are 1,024 bytes. In a cluster the upper bits of an address are the
// program's rank; here they become bits of the leading offset, which this layout does not use.
__device__ __forceinline__ u64 operand(unsigned address) {
  return (u64)(address >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}
__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_expect(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// The address of a barrier in a program of the cluster.
__device__ __forceinline__ unsigned remote_address(unsigned barrier, int program) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(barrier), "r"(program));
  return there;
}
__device__ __forceinline__ void barrier_arrive(unsigned remote) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}
__device__ __forceinline__ void barrier_wait(unsigned barrier, int parity) {
  asm volatile(
      "{ .reg .pred p;\n WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE;\n bra WAIT;\n DONE: }"
      ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
}
// The value of the first lane, of which the compiler knows that all lanes have it.
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xFFFFFFFF, value, 0); }
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void prefetch_map(const TensorMap &map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// Copies a box of the map from this row and column on.
__device__ __forceinline__ void copy_box(unsigned to, const TensorMap &map, int column, int row, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
      ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
// The same to this address in all programs of the cluster.
__device__ __forceinline__ void copy_box_to_cluster(
    unsigned to, const TensorMap &map, int column, int row, unsigned barrier) {
  const unsigned short mask = (1 << CLUSTER) - 1;
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;"
      ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(mask) : "memory");
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
__device__ __forceinline__ void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void start_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

__device__ __forceinline__ unsigned pack(float low, float high) {
  unsigned packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ float low_half(unsigned packed) { return __uint_as_float(packed << 16); }
__device__ __forceinline__ float high_half(unsigned packed) { return __uint_as_float(packed & 0xFFFF0000); }
__device__ __forceinline__ uint4 load_16_bytes(const bits16 *from) {  // written by an earlier launch: not read-only
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
  return v;
}
// A program with 192 sums per thread needs more registers than an even division has.
__device__ __forceinline__ void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); }
__device__ __forceinline__ void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 240;"); }
template <int THREADS>
__device__ __forceinline__ void sync_warpgroups() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }
__device__ __forceinline__ float from_lane(float value, int lane) { return __shfl_sync(0xFFFFFFFF, value, lane); }
__device__ __forceinline__ float from_other_lane(float value, int difference) {
  return __shfl_xor_sync(0xFFFFFFFF, value, difference);
}
__device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.f + __expf(-x)); }
__device__ __forceinline__ float load_square(const float *from) {
  float v;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  return v;
}
#define SHARED_MEMORY extern __shared__ __align__(1024) unsigned char memory[]
#endif

// silu(gate) · up of two columns, with the roundings of silu_mul.py.
__device__ __forceinline__ unsigned gate_pair(unsigned gates, unsigned ups) {
  const unsigned open = pack(silu(low_half(gates)), silu(high_half(gates)));
  return pack(low_half(open) * low_half(ups), high_half(open) * high_half(ups));
}
// residual + made of two columns; adds their squares.
__device__ __forceinline__ unsigned add_pair(unsigned residual, unsigned made, float &squares) {
  const unsigned total = pack(low_half(residual) + low_half(made), high_half(residual) + high_half(made));
  squares += low_half(total) * low_half(total);
  squares += high_half(total) * high_half(total);
  return total;
}
__device__ __forceinline__ unsigned gain_pair(unsigned total, unsigned gain) {
  return pack(low_half(total) * low_half(gain), high_half(total) * high_half(gain));
}

template <int BM, int BN, int STAGES, int KIND>
__device__ __forceinline__ void product(
    const TensorMap &x, const TensorMap &weight, const float *squares, const bits16 *add, const bits16 *gain,
    bits16 *out, bits16 *gained, float *out_squares, int rows, int inputs, int outputs, int parts, int squares_row,
    int add_row, float eps) {
  constexpr int BLOCKS = BM > 128 ? 2 : 1;   // of 64 rows of a warpgroup
  constexpr int WARPS = BM / 16 / BLOCKS;     // that multiply; the last warp copies
  constexpr int X_BYTES = BM * ROW_BYTES, STAGE = (BM + BN) * ROW_BYTES;
  constexpr int WIDTH = KIND == GATED ? BN / 2 : BN;  // outputs of a program
  constexpr int CHUNKS = WIDTH / 8, PITCH = WIDTH * 2 + 16, ITERATIONS = 16 * CHUNKS / 32;
  static_assert(KIND != ADD || BLOCKS == 1, "the residuals of one block are loaded before the products");
  static_assert(WARPS * 16 * PITCH <= STAGES * STAGE, "the results fit into the stages");
  SHARED_MEMORY;
  const unsigned stages = shared_address(memory), full = stages + STAGES * STAGE, empty = full + 8 * STAGES;
  const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  const int rank = blockIdx.x % CLUSTER, cluster = blockIdx.x / CLUSTER;
  const int clusters_m = (rows + BM * CLUSTER - 1) / (BM * CLUSTER);  // with the same matrix rows
  const int first_row = (cluster % clusters_m * CLUSTER + rank) * BM, first = cluster / clusters_m * WIDTH;
  const int steps = inputs / DEPTH;

  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      barrier_init(full + 8 * i, 1);
      barrier_init(empty + 8 * i, CLUSTER * WARPS);
    }
    publish_barriers();
  }
  __syncwarp();
  sync_cluster();

  if (warp >= WARPS) {
    if (BLOCKS > 1) give_registers();
    if (warp == WARPS && lane == 0) {
      constexpr int COPIED = WIDTH / CLUSTER;  // matrix rows of a copy
      prefetch_map(x);
      prefetch_map(weight);
      auto copy_weight = [&](int step, int slot) {
        const unsigned to = stages + slot * STAGE + X_BYTES + rank * COPIED * ROW_BYTES;
        const int row = first + rank * COPIED;
        barrier_expect(full + 8 * slot, STAGE);
        copy_box_to_cluster(to, weight, step * DEPTH, row, full + 8 * slot);
        if (KIND == GATED)
          copy_box_to_cluster(to + WIDTH * ROW_BYTES, weight, step * DEPTH, outputs + row, full + 8 * slot);
      };
      auto copy_x = [&](int step, int slot) {
        copy_box(stages + slot * STAGE, x, step * DEPTH, first_row, full + 8 * slot);
      };
      for (int i = 0; i < STAGES; i++) copy_weight(i, i);
      wait_for_previous();
      for (int i = 0; i < STAGES; i++) copy_x(i, i);
      int slot = 0, phase = 0;
      for (int step = STAGES; step < steps; step++) {
        barrier_wait(empty + 8 * slot, phase);
        copy_weight(step, slot);
        copy_x(step, slot);
        if (++slot == STAGES) slot = 0, phase ^= 1;
      }
      // Others signal these barriers until they have read what this program copied.
      for (int i = 0; i < STAGES; i++) {
        barrier_wait(empty + 8 * slot, phase);
        if (++slot == STAGES) slot = 0, phase ^= 1;
      }
    }
    return;
  }

  if (BLOCKS > 1) take_registers();
  // The barriers that this lane signals: the first lane those of this program, the second those of the other one.
  const int other = lane - 1, target = lane < 1 ? rank + CLUSTER * lane : other + (other >= rank);
  const unsigned release = remote_address(empty, lane < CLUSTER ? target : rank);
  wait_for_previous();
  if (threadIdx.x == 0) start_next();
  const int warp_row = first_row + warp / 4 * 64 * BLOCKS + warp % 4 * 16;  // the first; 64 more in the next block
  const auto residual_of = [&](int i) {
    const int index = i * 32 + lane, row = warp_row + index / CHUNKS;
    if (row >= rows) return make_uint4(0, 0, 0, 0);
    return load_16_bytes(add + (long long)row * add_row + first + index % CHUNKS * 8);
  };
  // 1 / root mean square of row lane % 16 of this warp: two threads sum every second part. With one block, the first
  // parts are loaded before the products and summed after them, so that the products do not wait for them.
  constexpr bool NORMED = KIND != ADD;
  constexpr int EARLY = NORMED && BLOCKS == 1 ? 16 : 0;
  const auto square_of = [&](int block, int part) {
    const int row = warp_row + block * 64 + lane % 16;
    return squares && row < rows && part < parts ? load_square(squares + (long long)row * squares_row + part) : 0.f;
  };
  float early[EARLY > 0 ? EARLY : 1], scales[BLOCKS];
#pragma unroll
  for (int i = 0; i < EARLY; i++) early[i] = square_of(0, lane / 16 + 2 * i);
  const auto scale_of = [&](int block) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < EARLY; i++) sum += early[i];
    if (NORMED)
#pragma unroll 8
      for (int part = lane / 16 + 2 * EARLY; part < parts; part += 2) sum += square_of(block, part);
    sum += from_other_lane(sum, 16);
    return NORMED && squares ? rsqrtf(sum / inputs + eps) : 1.f;
  };
  if (EARLY == 0)
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) scales[block] = scale_of(block);
  uint4 residuals[ITERATIONS];
  if (KIND == ADD)
#pragma unroll
    for (int i = 0; i < ITERATIONS; i++) residuals[i] = residual_of(i);

  float sums[BLOCKS][BN / 2];
#pragma unroll
  for (int i = 0; i < BLOCKS * BN / 2; i++) sums[i / (BN / 2)][i % (BN / 2)] = 0.f;
  int slot = 0, phase = 0, previous = 0;
  for (int step = 0; step < steps; step++) {
    barrier_wait(full + 8 * slot, phase);
    const u64 a = operand(stages + slot * STAGE + warp / 4 * 64 * BLOCKS * ROW_BYTES);
    const u64 b = operand(stages + slot * STAGE + X_BYTES);
    begin_products();
#pragma unroll
    for (int i = 0; i < DEPTH / 16; i++)
#pragma unroll
      for (int block = 0; block < BLOCKS; block++)
        multiply(sums[block], a + block * (64 * ROW_BYTES >> 4) + 2 * i, b + 2 * i);
    commit_products();
    wait_for_products<1>();
    if (step > 0 && lane < CLUSTER) barrier_arrive(release + 8 * previous);
    previous = slot;
    if (++slot == STAGES) slot = 0, phase ^= 1;
  }
  finish_products(sums[0]);
  if (BLOCKS > 1) finish_products(sums[BLOCKS - 1]);
  if (lane < CLUSTER) barrier_arrive(release + 8 * previous);

  if (EARLY > 0) {
    use_from_here(early);
    scales[0] = scale_of(0);
  }

  // The results, rounded, go to rows in shared memory, so that accesses to memory have 16 bytes.
  sync_warpgroups<WARPS * 32>();  // all products have read their operands
  unsigned char *tile = memory + warp * 16 * PITCH;
#pragma unroll
  for (int block = 0; block < BLOCKS; block++) {
    if (block > 0) __syncwarp();
    const float(&sum)[BN / 2] = sums[block];
    const float low = from_lane(scales[block], lane / 4), high = from_lane(scales[block], lane / 4 + 8);
#pragma unroll
    for (int j = 0; j < CHUNKS; j++) {
      unsigned top = pack(sum[4 * j] * low, sum[4 * j + 1] * low);
      unsigned bottom = pack(sum[4 * j + 2] * high, sum[4 * j + 3] * high);
      if (KIND == GATED) {
        constexpr int UP = BN / 4;
        top = gate_pair(top, pack(sum[UP + 4 * j] * low, sum[UP + 4 * j + 1] * low));
        bottom = gate_pair(bottom, pack(sum[UP + 4 * j + 2] * high, sum[UP + 4 * j + 3] * high));
      }
      *(unsigned *)(tile + lane / 4 * PITCH + j * 16 + lane % 4 * 4) = top;
      *(unsigned *)(tile + (lane / 4 + 8) * PITCH + j * 16 + lane % 4 * 4) = bottom;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ITERATIONS; i++) {
      const int index = i * 32 + lane, chunk = index % CHUNKS, row = warp_row + block * 64 + index / CHUNKS;
      const bool exists = row < rows;
      const long long at = (long long)row * outputs + first + chunk * 8;
      uint4 made = *(const uint4 *)(tile + index / CHUNKS * PITCH + chunk * 16);
      if (KIND == ADD) {
        const uint4 residual = residuals[i], factor = *(const uint4 *)(gain + first + chunk * 8);
        float square = 0.f;
        made.x = add_pair(residual.x, made.x, square), made.y = add_pair(residual.y, made.y, square);
        made.z = add_pair(residual.z, made.z, square), made.w = add_pair(residual.w, made.w, square);
        for (int lanes = PART / 16; lanes > 0; lanes /= 2) square += from_other_lane(square, lanes);
        if (exists) {
          *(uint4 *)(gained + at) = make_uint4(gain_pair(made.x, factor.x), gain_pair(made.y, factor.y),
                                               gain_pair(made.z, factor.z), gain_pair(made.w, factor.w));
          if (chunk % 8 == 0) out_squares[at / PART] = square;
        }
      }
      if (exists) *(uint4 *)(out + at) = made;
    }
  }
}

#define PRODUCT(BM, BN, STAGES, KIND)                                                                                 \
  extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1)                                                          \
      __launch_bounds__(BM > 128 ? BM + 128 : BM * 2 + 32, 1) product_##BM##_##BN##_##STAGES##_##KIND(                \
          const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weight, const float *squares,        \
          const bits16 *add, const bits16 *gain, bits16 *out, bits16 *gained, float *out_squares, int rows,           \
          int inputs, int outputs, int parts, int squares_row, int add_row, float eps) {                              \
    product<BM, BN, STAGES, KIND>(x, weight, squares, add, gain, out, gained, out_squares, rows, inputs, outputs,     \
                                  parts, squares_row, add_row, eps);                                                  \
  }
// wgmma_linear.py lists the same tiles.
PRODUCT(256, 128, 4, 0)
PRODUCT(128, 128, 6, 0)
PRODUCT(64, 128, 8, 0)
PRODUCT(256, 192, 4, 1)
PRODUCT(128, 192, 5, 1)
PRODUCT(64, 128, 8, 2)
PRODUCT(64, 64, 13, 2)
PRODUCT(128, 64, 9, 2)
