// SPDX-License-Identifier: Apache-2.0
// Linear layers of large batches for sm_90a in bfloat16, with the norm before a product and the gate or residual after
// it. The launcher, the contract and the choice of tiles are in wgmma_linear.py.
// tests/conformance/test_wgmma_linear_on_cpu.py runs this file on a CPU.
//
// A program computes BM rows × BN matrix rows. One warp copies stages of 64 columns of both operands to shared memory
// (bulk tensor copies, swizzled by 128 bytes); each warpgroup multiplies 64 rows of x (128 if BM is 256). The two programs of
// a cluster have the same matrix rows, and each copies half of them to both, because the L2 cache cannot deliver tiles of
// this size to every multiprocessor. The first stages of the matrix are copied before the previous launch has ended
// (launch_overlap.py); the next launch may start when this one has waited. Copies of x without rows that exist are left
// out, and copies are small, because one of which only a part exists takes longer than a whole one.

#include "warps.cuh"
#include "overlap.cuh"
#include "bfloat16.cuh"
#include "barriers.cuh"
#include "wgmma_bfloat16.cuh"

constexpr int CLUSTER = 2;            // programs
constexpr int BOX = 64;               // rows of a copy of x
constexpr int PART = 64;              // outputs whose squares are summed
constexpr int GATED = 1, ADD = 2;     // kinds of products; 0: neither

// Everything that needs the hardware; a test replaces it by functions for a CPU.
#ifdef ON_CPU
#include "wgmma_linear_on_cpu.hpp"
#else
// wait_barrier with branches in another order, which the machine code keeps.
__device__ __forceinline__ void barrier_wait(unsigned barrier, int parity) {
  asm volatile(
      "{ .reg .pred p;\n WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@p bra DONE;\n bra WAIT;\n DONE: }"
      ::"r"(barrier), "r"(parity) : "memory");
}
// copy_box to this address in all programs of the cluster.
__device__ __forceinline__ void copy_box_to_cluster(
    unsigned to, const TensorMap &map, int column, int row, unsigned barrier) {
  const unsigned short mask = (1 << CLUSTER) - 1;
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;"
      ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(mask) : "memory");
}
__device__ __forceinline__ uint4 load_values(const bits16 *from) {  // written by an earlier launch: not read-only
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
__device__ __forceinline__ float load_square(const float *from) {
  float v;
  asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  return v;
}
#endif

// residual + made of two columns; adds their squares.
__device__ __forceinline__ unsigned add_pair(unsigned residual, unsigned made, float &squares) {
  const unsigned total = pack(low(residual) + low(made), high(residual) + high(made));
  squares += low(total) * low(total);
  squares += high(total) * high(total);
  return total;
}
__device__ __forceinline__ unsigned gain_pair(unsigned total, unsigned gain) {
  return pack(low(total) * low(gain), high(total) * high(gain));
}

template <int BM, int BN, int STAGES, int KIND>
__device__ __forceinline__ void product(
    const TensorMap &x, const TensorMap &weight, const float *squares, const bits16 *add, const bits16 *gain,
    bits16 *out, bits16 *gained, float *out_squares, int rows, int inputs, int outputs, int parts, int squares_row,
    int add_row, float eps) {
  constexpr int BLOCKS = BM > 128 ? 2 : 1;   // of 64 rows of a warpgroup
  constexpr int WARPS = BM / 16 / BLOCKS;     // that multiply; the last warp copies
  constexpr int X_BYTES = BM * ROW_BYTES, BOX_BYTES = BOX * ROW_BYTES, STAGE = (BM + BN) * ROW_BYTES;
  constexpr int WIDTH = KIND == GATED ? BN / 2 : BN;  // outputs of a program
  constexpr int CHUNKS = WIDTH / 8, PITCH = WIDTH * 2 + 16, ITERATIONS = 16 * CHUNKS / 32;
  static_assert(KIND != ADD || BLOCKS == 1, "the residuals of one block are loaded before the products");
  static_assert(WARPS * 16 * PITCH <= STAGES * STAGE, "the results fit into the stages");
  SWIZZLED_MEMORY(memory);
  const unsigned stages = shared_address(memory), full = stages + STAGES * STAGE, empty = full + 8 * STAGES;
  const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  const int rank = blockIdx.x % CLUSTER, cluster = blockIdx.x / CLUSTER;
  const int clusters_m = (rows + BM * CLUSTER - 1) / (BM * CLUSTER);  // with the same matrix rows
  const int first_row = (cluster % clusters_m * CLUSTER + rank) * BM, first = cluster / clusters_m * WIDTH;
  const int steps = inputs / DEPTH;

  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; i++) {
      init_barrier(full + 8 * i, 1);
      init_barrier(empty + 8 * i, CLUSTER * WARPS);
    }
    fence_barriers();
  }
  if (threadIdx.x == WARPS * 32) {
    prefetch_map(x);
    prefetch_map(weight);
  }
  __syncwarp();
  sync_cluster_relaxed();

  if (warp >= WARPS) {
    if (BLOCKS > 1) give_registers();
    if (warp == WARPS && lane == 0) {
      constexpr int COPIED = WIDTH / CLUSTER;  // matrix rows of a copy
      const int left = (rows - first_row + BOX - 1) / BOX, boxes = left < 0 ? 0 : left < BM / BOX ? left : BM / BOX;
      auto copy_weight = [&](int step, int slot) {
        const unsigned to = stages + slot * STAGE + X_BYTES + rank * COPIED * ROW_BYTES;
        const int row = first + rank * COPIED;
        arrive_expecting(full + 8 * slot, STAGE - X_BYTES + boxes * BOX_BYTES);
        copy_box_to_cluster(to, weight, step * DEPTH, row, full + 8 * slot);
        if (KIND == GATED)
          copy_box_to_cluster(to + WIDTH * ROW_BYTES, weight, step * DEPTH, outputs + row, full + 8 * slot);
      };
      auto copy_x = [&](int step, int slot) {
        for (int i = 0; i < boxes; i++)
          copy_box(stages + slot * STAGE + i * BOX_BYTES, x, step * DEPTH, first_row + i * BOX, full + 8 * slot);
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
  uint4 factor;  // a lane has the same columns of all rows
  if (KIND == ADD) factor = *(const uint4 *)(gain + first + lane % CHUNKS * 8);
  wait_for_previous();
  if (threadIdx.x == 0) start_next();
  const int warp_row = first_row + warp / 4 * 64 * BLOCKS + warp % 4 * 16;  // the first; 64 more in the next block
  const auto residual_of = [&](int i) {
    const int index = i * 32 + lane, row = warp_row + index / CHUNKS;
    if (row >= rows) return make_uint4(0, 0, 0, 0);
    return load_values(add + (long long)row * add_row + first + index % CHUNKS * 8);
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
    sum += shuffle_xor(sum, 16);
    return NORMED && squares ? rsqrtf(sum / inputs + eps) : 1.f;
  };
  if (EARLY == 0)
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) scales[block] = scale_of(block);
  uint4 residuals[ITERATIONS];
  if (KIND == ADD)
#pragma unroll
    for (int i = 0; i < ITERATIONS; i++) residuals[i] = residual_of(i);

  int slot = 0, phase = 0, previous = 0;
  if (first_row >= rows) {  // the other program of the cluster copies to this one, and waits until that is read
    for (int step = 0; step < steps; step++) {
      barrier_wait(full + 8 * slot, phase);
      __syncwarp();  // a lane that still waits could miss the next phase, and wait forever
      if (lane < CLUSTER) arrive(release + 8 * slot);
      if (++slot == STAGES) slot = 0, phase ^= 1;
    }
    return;
  }

  float sums[BLOCKS][BN / 2];
#pragma unroll
  for (int i = 0; i < BLOCKS * BN / 2; i++) sums[i / (BN / 2)][i % (BN / 2)] = 0.f;
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
    if (step > 0 && lane < CLUSTER) arrive(release + 8 * previous);
    previous = slot;
    if (++slot == STAGES) slot = 0, phase ^= 1;
  }
  finish_products(sums[0]);
  if (BLOCKS > 1) finish_products(sums[BLOCKS - 1]);
  if (lane < CLUSTER) arrive(release + 8 * previous);

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
        const uint4 residual = residuals[i];
        float square = 0.f;
        made.x = add_pair(residual.x, made.x, square), made.y = add_pair(residual.y, made.y, square);
        made.z = add_pair(residual.z, made.z, square), made.w = add_pair(residual.w, made.w, square);
        for (int lanes = PART / 16; lanes > 0; lanes /= 2) square += shuffle_xor(square, lanes);
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
PRODUCT(64, 192, 6, 1)
PRODUCT(64, 128, 8, 1)
PRODUCT(128, 128, 6, 2)
PRODUCT(64, 128, 8, 2)
PRODUCT(64, 64, 13, 2)
PRODUCT(128, 64, 9, 2)
