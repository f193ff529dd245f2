// SPDX-License-Identifier: Apache-2.0
// Linear layers of 9 to 64 rows for sm_90a in bfloat16: the matrix is in shared memory before the previous launch has
// ended. The launcher, the contract and the shapes are in mid_batch_linear.py.
// tests/conformance/test_mid_batch_linear_on_cpu.py runs this file on a CPU.
//
// The programs of a cluster have the same matrix rows, and each of them a part of the columns. One warp copies boxes of
// 64 columns (bulk tensor copies, swizzled by 128 bytes) to a ring of stages: the first ones of the matrix, or all of
// it, before it waits for the previous launch, those of x after that. One warpgroup multiplies 64 rows of x, which need
// not all exist, with all matrix rows of the cluster. Then the programs exchange their partial sums, where columns of
// the matrix were that have been read.
// Without a residual, a program owns some outputs of all rows. With a residual, it owns 16 rows of all outputs of the
// cluster, so that it can add up their squares.

#include "warps.cuh"
#include "overlap.cuh"
#include "bfloat16.cuh"
#include "barriers.cuh"
#include "wgmma_bfloat16.cuh"

constexpr int ROWS = 64;              // of x
constexpr int WARPS = 4;              // that multiply; the last warp copies
constexpr int THREADS = 32 * WARPS;   // that multiply
constexpr int STAGE = ROWS * ROW_BYTES;
constexpr int TILE = 512;             // bytes of the sums of a warp and 8 matrix rows
constexpr int GATED = 1, ADD = 2;     // kinds of products; 0: neither

// Everything that needs the hardware; a test replaces it by functions for a CPU.
#ifdef ON_CPU
#include "mid_batch_linear_on_cpu.hpp"
#else
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void sync_multiplying() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }
// Weights: the L2 cache keeps other rows rather than these.
__device__ __forceinline__ void copy_weights(unsigned to, const TensorMap &map, int column, int row, unsigned barrier) {
  asm volatile(
      "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy;\n"
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], policy;\n}"
      ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
// Written by an earlier launch: not through the L1 cache.
__device__ __forceinline__ unsigned load_pair(const bits16 *from) {
  unsigned v;
  asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ float load_square(const float *from) {
  float v;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ float4 load_squares(const float *from) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from) : "memory");
  return v;
}
#endif

__device__ __forceinline__ float4 four(const float *values) {
  return make_float4(values[0], values[1], values[2], values[3]);
}

struct Arguments {
  const TensorMap &x;       // [rows, inputs], of the norm: times its gain; boxes of all rows
  const TensorMap &weight;  // [matrix rows, inputs], boxes of BOX
  const float *squares;     // [rows, parts]: sums of squares of x before the norm; null: x is not normed
  const bits16 *add;        // [rows, outputs], and below: ADD
  const bits16 *gain;       // [outputs]: of the next norm
  bits16 *out, *gained;     // [rows, outputs]
  float *out_squares;       // [rows, clusters]
  int rows, inputs, outputs, parts, squares_row, add_row;
  float eps;
};

// A cluster has HEIGHT matrix rows, and a program CHUNKS times 64 columns of them. Its shared memory has WEIGHT_STAGES
// chunks of the matrix and X_STAGES of x. Rows of a stage that are not copied have any values: they change no other row.
template <int KIND, int HEIGHT, int CHUNKS, int WEIGHT_STAGES, int X_STAGES> struct LinearProgram {
  static constexpr int CLUSTER = KIND == ADD ? 4 : 2, GROUPS = HEIGHT / 8, CHUNK = HEIGHT * ROW_BYTES;
  static constexpr int OWN = GROUPS / CLUSTER;                           // groups of 8 matrix rows; not ADD
  static constexpr int OUTPUT_GROUPS = KIND == GATED ? OWN / 2 : OWN;    // of a program; not ADD
  static constexpr int BOXES = KIND == GATED ? 4 : KIND == ADD ? 1 : 2;  // of a chunk of the matrix
  static constexpr int BOX = HEIGHT / BOXES;
  static constexpr int PARTIALS = KIND == ADD ? CLUSTER * GROUPS * TILE : OWN * WARPS * TILE;  // bytes received
  static constexpr int FREED = (PARTIALS + CHUNK - 1) / CHUNK;                // stages that they replace
  static constexpr int LAST_READ = CHUNKS - WEIGHT_STAGES + FREED;            // when that was read, this chunk is next
  static constexpr int BARRIERS = WEIGHT_STAGES < X_STAGES ? WEIGHT_STAGES : X_STAGES;  // for chunks that were read
  static_assert(FREED < WEIGHT_STAGES && CHUNKS % WEIGHT_STAGES == 0 && X_STAGES <= CHUNKS, "rings");
  static_assert(GROUPS % (KIND == ADD ? WARPS : CLUSTER) == 0 && BOX % 8 == 0, "groups");
  // Shared memory, in bytes: mid_batch_linear.py computes the same sum.
  static constexpr int AT_MATRIX = X_STAGES * STAGE, AT_BARRIERS = AT_MATRIX + WEIGHT_STAGES * CHUNK;
  static constexpr int AT_SQUARES = AT_BARRIERS + 8 * (WEIGHT_STAGES + X_STAGES + BARRIERS + 2);  // [WARPS][16] float

  const Arguments &given;
  unsigned char *memory;
  unsigned base;
  int warp, lane, rank, cluster;

  __device__ LinearProgram(const Arguments &given, unsigned char *memory) : given(given), memory(memory) {
    base = shared_address(memory);
    warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
    rank = blockIdx.x % CLUSTER, cluster = blockIdx.x / CLUSTER;
  }
  __device__ __forceinline__ unsigned weights_ready(int stage) { return base + AT_BARRIERS + 8 * stage; }
  __device__ __forceinline__ unsigned x_ready(int stage) { return weights_ready(WEIGHT_STAGES + stage); }
  __device__ __forceinline__ unsigned chunk_read(int i) { return x_ready(X_STAGES + i); }
  __device__ __forceinline__ unsigned may_send() { return chunk_read(BARRIERS); }
  __device__ __forceinline__ unsigned partials_ready() { return chunk_read(BARRIERS + 1); }
  __device__ __forceinline__ unsigned char *partials() { return memory + AT_MATRIX; }
  __device__ __forceinline__ int column_of(int chunk) { return (rank * CHUNKS + chunk) * DEPTH; }

  // The last warp: barriers, and the first chunks of the matrix.
  __device__ __forceinline__ void start() {
    if (lane == 0) {
      for (int i = 0; i < WEIGHT_STAGES; i++) init_barrier(weights_ready(i), 1);
      for (int i = 0; i < X_STAGES; i++) init_barrier(x_ready(i), 1);
      for (int i = 0; i < BARRIERS; i++) init_barrier(chunk_read(i), WARPS);
      init_barrier(may_send(), CLUSTER * WARPS), init_barrier(partials_ready(), 1);
      publish_barriers();
      for (int i = 0; i < WEIGHT_STAGES; i++) arrive_expecting(weights_ready(i), CHUNK);
      arrive_expecting(partials_ready(), expected());
      prefetch_map(given.x);
    }
    sync_warp();
    for (int i = lane; i < WEIGHT_STAGES * BOXES; i += 32) copy_matrix_box(i / BOXES, i % BOXES);
    sync_warp();
  }
  // Of a product without residual, the lines of the outputs that this program owns are first; of gate and up, half of
  // them from each.
  __device__ __forceinline__ void copy_matrix_box(int chunk, int box) {
    int row = cluster * HEIGHT;
    if (KIND != ADD) {
      const int owner = box < BOXES / 2 ? rank : 1 - rank;
      row = (cluster * CLUSTER + owner) * BOX + (KIND == GATED && box % 2 ? given.outputs : 0);
    }
    const int stage = chunk % WEIGHT_STAGES;
    copy_weights(base + AT_MATRIX + stage * CHUNK + box * BOX * ROW_BYTES, given.weight, column_of(chunk), row,
                 weights_ready(stage));
  }
  __device__ __forceinline__ void copy_x(int chunk) {
    const int stage = chunk % X_STAGES;
    arrive_expecting(x_ready(stage), given.rows * ROW_BYTES);
    copy_box(base + stage * STAGE, given.x, column_of(chunk), 0, x_ready(stage));
  }
  // One thread: x, and what is left of the matrix, when stages have been read.
  __device__ __forceinline__ void copy_rest() {
    wait_for_previous();
    for (int i = 0; i < X_STAGES; i++) copy_x(i);
    for (int i = 0; i + BARRIERS < CHUNKS; i++) {
      wait_barrier(chunk_read(i % BARRIERS), i / BARRIERS % 2);
      if (i + WEIGHT_STAGES < CHUNKS) {
        arrive_expecting(weights_ready(i % WEIGHT_STAGES), CHUNK);
        for (int box = 0; box < BOXES; box++) copy_matrix_box(i + WEIGHT_STAGES, box);
      }
      if (i + X_STAGES < CHUNKS) copy_x(i + X_STAGES);
    }
  }
  // Bytes that the others send to this program: warps without rows send nothing.
  __device__ __forceinline__ int expected() {
    if (KIND == ADD) return rank * 16 < given.rows ? PARTIALS : 0;
    return OWN * TILE * ((given.rows + 15) / 16);
  }

  // The sums of this program's columns. The other programs may send theirs when the stages they replace have been read.
  __device__ __forceinline__ void multiply_columns(float (&sums)[HEIGHT / 2]) {
#pragma unroll
    for (int i = 0; i < HEIGHT / 2; i++) sums[i] = 0.f;
    const unsigned others = remote_address(may_send(), lane < CLUSTER ? lane : rank);
    const auto step = [&](int i) {
      wait_barrier(weights_ready(i % WEIGHT_STAGES), i / WEIGHT_STAGES % 2);
      wait_barrier(x_ready(i % X_STAGES), i / X_STAGES % 2);
      const u64 a = operand(base + i % X_STAGES * STAGE), b = operand(base + AT_MATRIX + i % WEIGHT_STAGES * CHUNK);
      begin_products();
#pragma unroll
      for (int j = 0; j < DEPTH / 16; j++) multiply(sums, a + 2 * j, b + 2 * j);
      commit_products();
      const bool reused = i > 0 && i - 1 + BARRIERS < CHUNKS;  // a stage of the chunk before
      if (i == LAST_READ || reused) wait_for_products<1>();
      if (i == LAST_READ && lane < CLUSTER) arrive(others);
      if (reused && lane == 0) arrive(chunk_read((i - 1) % BARRIERS));
    };
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) step(i);
    finish_products(sums);
    wait_barrier(may_send(), 0);
  }

  // 1 / root mean square of row lane % 16 of this warp.
  __device__ __forceinline__ float norm_scale() {
    const int row = warp * 16 + lane % 16;
    float sum = 0.f;
    if (given.squares && row < given.rows) {
      const float *from = given.squares + (long long)row * given.squares_row;
      if (given.parts % 8 == 0) {
#pragma unroll 4
        for (int i = lane / 16 * 4; i < given.parts; i += 8) {
          const float4 four = load_squares(from + i);
          sum += (four.x + four.y) + (four.z + four.w);
        }
      } else {
        for (int i = lane / 16; i < given.parts; i += 2) sum += load_square(from + i);
      }
    }
    sum += shuffle_xor(sum, 16);
    return given.squares ? rsqrtf(sum / given.inputs + given.eps) : 1.f;
  }

  // Two rows of two adjacent outputs: own sums + those of the other program, scaled and rounded.
  struct Rounded {
    unsigned row[2];
  };
  static __device__ __forceinline__ Rounded rounded_sums(
      float a, float b, float c, float d, const float4 &other, float low, float high) {
    return {{pack((a + other.x) * low, (b + other.y) * low), pack((c + other.z) * high, (d + other.w) * high)}};
  }
  __device__ __forceinline__ void store(int group, const Rounded &made, const Rounded &up) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = warp * 16 + half * 8 + lane / 4;
      const int column = ((cluster * CLUSTER + rank) * OUTPUT_GROUPS + group) * 8 + lane % 4 * 2;
      if (row < given.rows)
        *(unsigned *)(given.out + (long long)row * given.outputs + column) =
            KIND == GATED ? gate_pair(made.row[half], up.row[half]) : made.row[half];
    }
  }

  __device__ __forceinline__ void run_normed() {
    wait_for_previous();
    const float scale = norm_scale();
    float sums[HEIGHT / 2];
    multiply_columns(sums);
    const bool has_rows = warp * 16 < given.rows;
    const int thread = warp * 32 + lane;
    constexpr int STRIDE = WARPS * TILE;  // bytes from group to group
    if (has_rows) {
      const unsigned to = remote_address(base + AT_MATRIX + thread * 16, 1 - rank);
      const unsigned ready = remote_address(partials_ready(), 1 - rank);
#pragma unroll
      for (int i = 0; i < OWN; i++) send(to + i * STRIDE, four(sums + 4 * (OWN + i)), ready);
    }
    const float low = from_lane(scale, lane / 4), high = from_lane(scale, lane / 4 + 8);
    wait_for_cluster(partials_ready());
    if (!has_rows) return;
    const auto made = [&](int group) {
      const float4 other = *(const float4 *)(partials() + group * STRIDE + thread * 16);
      const float *sum = sums + 4 * group;
      return rounded_sums(sum[0], sum[1], sum[2], sum[3], other, low, high);
    };
#pragma unroll
    for (int i = 0; i < OUTPUT_GROUPS; i++) store(i, made(i), made(KIND == GATED ? OUTPUT_GROUPS + i : i));
  }

  // Warp i of each program sends its 16 rows to program i, whose warps have PER_WARP groups of 8 outputs each.
  __device__ __forceinline__ void run_add() {
    constexpr int PER_WARP = GROUPS / WARPS;
    const int column = cluster * HEIGHT + warp * PER_WARP * 8 + lane % 4 * 2, first = rank * 16 + lane / 4;
    unsigned factor[PER_WARP], residual[PER_WARP][2];
#pragma unroll
    for (int i = 0; i < PER_WARP; i++) factor[i] = *(const unsigned *)(given.gain + column + i * 8);
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < PER_WARP; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const bits16 *from = given.add + (long long)(first + half * 8) * given.add_row + column + i * 8;
        residual[i][half] = first + half * 8 < given.rows ? load_pair(from) : 0;
      }
    float sums[HEIGHT / 2];
    multiply_columns(sums);
    if (warp * 16 < given.rows) {
      const unsigned to = remote_address(base + AT_MATRIX + rank * GROUPS * TILE + lane * 16, warp);
      const unsigned ready = remote_address(partials_ready(), warp);
#pragma unroll
      for (int i = 0; i < GROUPS; i++) send(to + i * TILE, four(sums + 4 * i), ready);
    }
    if (rank * 16 >= given.rows) return;
    wait_for_cluster(partials_ready());
    float square[2] = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < PER_WARP; i++) {
      float total[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
      for (int from = 0; from < CLUSTER; from++) {
        const int at = (from * GROUPS + warp * PER_WARP + i) * TILE + lane * 16;
        const float4 part = *(const float4 *)(partials() + at);
        total[0] += part.x, total[1] += part.y, total[2] += part.z, total[3] += part.w;
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const unsigned product = pack(total[2 * half], total[2 * half + 1]), before = residual[i][half];
        const unsigned made = pack(low(before) + low(product), high(before) + high(product));
        square[half] += low(made) * low(made) + high(made) * high(made);
        if (first + half * 8 >= given.rows) continue;
        const long long at = (long long)(first + half * 8) * given.outputs + column + i * 8;
        *(unsigned *)(given.out + at) = made;
        *(unsigned *)(given.gained + at) =
            pack(low(factor[i]) * low(made), high(factor[i]) * high(made));
      }
    }
    float *squares = (float *)(memory + AT_SQUARES);
#pragma unroll
    for (int half = 0; half < 2; half++) {
      square[half] += shuffle_xor(square[half], 1);
      square[half] += shuffle_xor(square[half], 2);
      if (lane % 4 == 0) squares[warp * 16 + half * 8 + lane / 4] = square[half];
    }
    sync_multiplying();
    const int row = rank * 16 + lane;
    if (warp > 0 || lane >= 16 || row >= given.rows) return;
    given.out_squares[(long long)row * (given.outputs / HEIGHT) + cluster] =
        (squares[lane] + squares[16 + lane]) + (squares[32 + lane] + squares[48 + lane]);
  }
};

#define PRODUCT(KIND, HEIGHT, CHUNKS, WEIGHT_STAGES, X_STAGES)                                                         \
  extern "C" __global__ void __cluster_dims__(KIND == ADD ? 4 : 2, 1, 1) __launch_bounds__(THREADS + 32, 2)            \
      mid_product_##KIND##_##HEIGHT##_##CHUNKS##_##WEIGHT_STAGES##_##X_STAGES(                                         \
          const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap weight, const float *squares,         \
          const bits16 *add, const bits16 *gain, bits16 *out, bits16 *gained, float *out_squares, int rows,            \
          int inputs, int outputs, int parts, int squares_row, int add_row, float eps) {                               \
    SWIZZLED_MEMORY(memory);                                                                                           \
    const Arguments given{x,    weight, squares, add,   gain,        out,     gained, out_squares,                     \
                          rows, inputs, outputs, parts, squares_row, add_row, eps};                                    \
    LinearProgram<KIND, HEIGHT, CHUNKS, WEIGHT_STAGES, X_STAGES> program(given, memory);                               \
    start_next();                                                                                                      \
    if (program.warp == WARPS) program.start();                                                                        \
    sync_cluster_relaxed(); /* barriers exist in all programs */                                                       \
    if (program.warp == WARPS) {                                                                                       \
      if (program.lane == 0) program.copy_rest();                                                                      \
    } else if (KIND == ADD) {                                                                                          \
      program.run_add();                                                                                               \
    } else {                                                                                                           \
      program.run_normed();                                                                                            \
    }                                                                                                                  \
  }
// mid_batch_linear.py lists the same. Of the predictor: q, k and v, o, gate and up, down, head.
PRODUCT(0, 64, 8, 8, 8) PRODUCT(2, 32, 8, 8, 8) PRODUCT(1, 96, 8, 8, 4) PRODUCT(2, 32, 12, 12, 6) PRODUCT(0, 32, 8, 8, 8)
// Of the talker: q, k and v, o, gate and up, down, and its hidden states to the predictor's width.
PRODUCT(0, 64, 16, 8, 4) PRODUCT(2, 64, 8, 8, 4) PRODUCT(1, 192, 16, 4, 4) PRODUCT(2, 64, 24, 8, 4)
PRODUCT(0, 32, 16, 16, 4)
