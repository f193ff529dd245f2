// SPDX-License-Identifier: Apache-2.0
// Linear layers of 2 to 8 rows in bfloat16: the matrix is in shared memory before the previous launch has ended. The
// launcher, the contract and the shapes are in prefetch_linear.py.
// tests/conformance/test_prefetch_linear_on_cpu.py runs this file on a CPU.
//
// The two programs of a cluster have the same matrix rows, and each of them half of the columns, so that a program
// reads half of x only. A program adds up the partial sums of its warps, and sends those of outputs that the other one
// owns to it: few stores, because those to another program are slow.
// Tensor cores multiply 16 matrix rows with 8 rows of x over 16 columns. Which columns these are does not matter as
// long as both operands agree: a thread has 8 consecutive columns of a row, 16 bytes, for two products.

#include "warps.cuh"
#include "overlap.cuh"
#include "bfloat16.cuh"
#include "barriers.cuh"

constexpr int CLUSTER = 2, WARPS = 8, THREADS = 32 * WARPS;
constexpr int ROWS = 8;      // of x
constexpr int GROUP = 8;     // matrix rows that one program of a cluster owns together
constexpr int PADDING = 32;  // columns after each row in shared memory, which avoid bank conflicts
constexpr int GATED = 1, ADD = 2;  // kinds of products; 0: neither

// For a whole warp.
__device__ __forceinline__ void wait_for(unsigned barrier) {
  wait_for_cluster(barrier);
  sync_warp();
}
// Two elements of x times their gains; adds the squares of x.
__device__ __forceinline__ unsigned times(unsigned x, unsigned gain, float &square) {
  square += low(x) * low(x) + high(x) * high(x);
  return pack(low(gain) * low(x), high(gain) * high(x));
}

struct Arguments {
  const bits16 *x;        // [rows, inputs]
  const bits16 *weight;   // [matrix rows, inputs]
  const bits16 *gain;     // [inputs]: of the norm of x; null: x is not normed; null for ADD
  const bits16 *add;      // [rows, outputs], and below: ADD
  const bits16 *out_gain; // [outputs]: of the next norm
  bits16 *out, *gained;   // [rows, outputs]
  float *squares;         // [rows, outputs / GROUP]
  int rows, x_row, add_row, outputs;
  float eps;
};

// How the warps of a program divide its part of a matrix: `MATRIX_GROUPS` groups of warps with `TILES` tiles of 16
// matrix rows each, and `PARTS` parts of the columns, each of `PAIRS` times 32. A program owns `OWNED` of the groups of
// eight matrix rows of its cluster; of gate and up, half of them from each.
template <int KIND, int MATRIX_GROUPS, int TILES, int PARTS, int PAIRS> struct LinearProgram {
  static constexpr int HEIGHT = 16 * MATRIX_GROUPS * TILES, COLUMNS = PARTS * PAIRS * 32;
  static constexpr int OWNED = HEIGHT / 8 / CLUSTER, OUTPUT_GROUPS = KIND == GATED ? OWNED / 2 : OWNED;
  static constexpr int LINE = COLUMNS + PADDING, INPUTS = COLUMNS * CLUSTER;
  static constexpr int PART = HEIGHT / 8 * 64, SENT = OWNED * 64;  // sums: of a part; exchanged
  static_assert(MATRIX_GROUPS * PARTS == WARPS, "all warps");
  static_assert(PARTS * PART * 4 <= HEIGHT * LINE * 2, "partial sums may replace the matrix");
  // Shared memory, in bytes: prefetch_linear.py computes the same sum.
  static constexpr int AT_X = HEIGHT * LINE * 2, AT_RECEIVED = AT_X + (KIND == ADD ? 0 : ROWS * LINE * 2);
  static constexpr int AT_SQUARES = AT_RECEIVED + SENT * 4;
  static constexpr int AT_BARRIERS = AT_SQUARES + CLUSTER * ROWS * 4;

  const Arguments &given;
  unsigned char *memory;
  int thread, warp, lane, rank, cluster;

  __device__ LinearProgram(const Arguments &given, unsigned char *memory) : given(given), memory(memory) {
    thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
    rank = blockIdx.x % CLUSTER, cluster = blockIdx.x / CLUSTER;
  }
  __device__ bits16 *matrix() { return (bits16 *)memory; }
  __device__ bits16 *x_rows() { return (bits16 *)(memory + AT_X); }
  // [part][owner][its group][64]. They replace the matrix, so that more launches fit into a multiprocessor.
  __device__ float *partials() { return (float *)memory; }
  __device__ float *received() { return (float *)(memory + AT_RECEIVED); }  // [group][64]
  __device__ float *squares() { return (float *)(memory + AT_SQUARES); }
  __device__ unsigned weights_ready() { return shared_address(memory + AT_BARRIERS); }
  __device__ unsigned partials_ready() { return shared_address(memory + AT_BARRIERS) + 8; }

  static __device__ __forceinline__ int owner(int group) {
    return KIND == GATED ? group % (OUTPUT_GROUPS * CLUSTER) / OUTPUT_GROUPS : group / OWNED;
  }
  static __device__ __forceinline__ int index(int group) {  // among the groups of its owner
    return KIND == GATED ? group / (OUTPUT_GROUPS * CLUSTER) * OUTPUT_GROUPS + group % OUTPUT_GROUPS : group % OWNED;
  }

  // The program's part of the matrix, line by line. A gated cluster has as many lines of each half.
  __device__ __forceinline__ void start() {
    if (thread == 0) {
      init_barrier(weights_ready(), 1), init_barrier(partials_ready(), 1);
      fence_barriers();
      arrive_expecting(weights_ready(), HEIGHT * COLUMNS * 2);
      arrive_expecting(partials_ready(), SENT * 4 + (given.gain ? given.rows * 4 : 0));
    }
    sync_program();
    if (warp == 0) {
      for (int line = lane; line < HEIGHT; line += 32) {
        int row = cluster * HEIGHT + line;
        if (KIND == GATED) {
          constexpr int HALF = HEIGHT / 2;
          row = (line < HALF ? 0 : given.outputs) + cluster * HALF + line % HALF;
        }
        copy(shared_address(matrix() + line * LINE), given.weight + (long long)row * INPUTS + rank * COLUMNS,
             COLUMNS * 2, weights_ready());
      }
    }
    sync_warp();     // all threads of a warp arrive together
    sync_cluster();  // no program writes to another one that has not started
  }

  // x · gain of this program's columns to shared memory, and the squares of x to both programs of the cluster. A warp
  // has a row.
  static constexpr int LOADS = COLUMNS / 256;  // of a thread and row
  __device__ __forceinline__ void load_x(const uint4 (&gain)[LOADS]) {
    if (warp < given.rows) {
      uint4 loaded[LOADS];
      const bits16 *from = given.x + rank * COLUMNS + lane * 8 + (long long)warp * given.x_row;
#pragma unroll
      for (int i = 0; i < LOADS; i++) loaded[i] = load_16_bytes(from + i * 256);
      float square = 0.f;
#pragma unroll
      for (int i = 0; i < LOADS; i++) {
        uint4 x = loaded[i];
        if (given.gain) {
          const uint4 factor = gain[i];
          x = make_uint4(times(x.x, factor.x, square), times(x.y, factor.y, square), times(x.z, factor.z, square),
                         times(x.w, factor.w, square));
        }
        *(uint4 *)(x_rows() + warp * LINE + i * 256 + lane * 8) = x;
      }
      if (given.gain) {
        square = sum_of_lanes(square, 32);
        float *own = squares() + rank * ROWS + warp;
        if (lane == 0) *own = square;
        if (lane == 1)
          send(remote_address(shared_address(own), 1 - rank), square, remote_address(partials_ready(), 1 - rank));
      }
    }
    sync_program();
  }

  // The sums of this warp, as the tensor cores have them. `x_of` returns 8 columns of a row for a pair of products.
  template <class XOf> __device__ __forceinline__ void multiply_part(float (&sums)[TILES][4], XOf x_of) {
    float others[TILES][4];  // of every other product: shorter chains
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) sums[i][j] = others[i][j] = 0.f;
    const int first_line = warp % MATRIX_GROUPS * TILES * 16 + lane / 4;
    const bits16 *lines = matrix() + first_line * LINE + first_column() + lane % 4 * 8;
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++) {
      const uint4 values = x_of(pair);
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        const uint4 upper = *(const uint4 *)(lines + tile * 16 * LINE + pair * 32);
        const uint4 lower = *(const uint4 *)(lines + (tile * 16 + 8) * LINE + pair * 32);
        multiply(sums[tile], upper.x, lower.x, upper.y, lower.y, values.x, values.y);
        multiply(others[tile], upper.z, lower.z, upper.w, lower.w, values.z, values.w);
      }
    }
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int j = 0; j < 4; j++) sums[i][j] += others[i][j];
  }
  __device__ __forceinline__ int first_column() { return warp / MATRIX_GROUPS * PAIRS * 32; }

  // Add up the parts, and send those sums to the other program that it owns.
  __device__ __forceinline__ void exchange(float (&sums)[TILES][4]) {
    sync_program();  // all warps have read the matrix
    const int part = warp / MATRIX_GROUPS, first_tile = warp % MATRIX_GROUPS * TILES;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int group = 2 * (first_tile + i) + half;
        float *to = partials() + part * PART + (owner(group) * OWNED + index(group)) * 64 + 2 * lane;
        *(float2 *)to = make_float2(sums[i][2 * half], sums[i][2 * half + 1]);
      }
    sync_program();
    const int other = 1 - rank;
    const unsigned to = remote_address(shared_address(received()), other);
    const unsigned ready = remote_address(partials_ready(), other);
#pragma unroll
    for (int i = 0; i < (SENT / 4 + THREADS - 1) / THREADS; i++) {
      const int at = 4 * (thread + i * THREADS);
      if (at >= SENT) break;
      float4 sum = *(const float4 *)(partials() + other * SENT + at);
#pragma unroll
      for (int j = 1; j < PARTS; j++) {
        const float4 more = *(const float4 *)(partials() + j * PART + other * SENT + at);
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
      }
      send(to + 4 * at, sum, ready);
    }
  }

  // The sum of an output over this program's columns, in an order that does not depend on the number of rows. element:
  // the index of the output among the 64 of its group, matrix row by matrix row.
  __device__ __forceinline__ float own_sum(int group, int element) {
    const float *from = partials() + rank * SENT + group * 64 + element;
    float sum = *from;
#pragma unroll
    for (int i = 1; i < PARTS; i++) sum += from[i * PART];
    return sum;
  }
  // Over those of the other program; after partials_ready.
  __device__ __forceinline__ float other_sum(int group, int element) { return received()[group * 64 + element]; }
  __device__ __forceinline__ float norm_scale(int row) {
    return given.gain ? rsqrtf((squares()[row] + squares()[ROWS + row]) / INPUTS + given.eps) : 1.f;
  }

  // Eight adjacent threads have the outputs of a group and a row.
  struct Output {
    int group, row, element, column;
  };
  __device__ __forceinline__ Output output(int i) {
    Output made;
    made.group = i / 64, made.row = i / 8 % 8, made.element = i % 8 * 8 + i / 8 % 8;
    made.column = ((cluster * CLUSTER + rank) * OUTPUT_GROUPS + made.group) * GROUP + i % 8;
    return made;
  }
  static constexpr int OUTPUTS = OUTPUT_GROUPS * 64, OWN = (OUTPUTS + THREADS - 1) / THREADS;

  __device__ __forceinline__ void run_normed() {
    uint4 gain[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++)
      if (given.gain) gain[i] = *(const uint4 *)(given.gain + rank * COLUMNS + i * 256 + lane * 8);
    wait_for_previous();
    load_x(gain);
    wait_for(weights_ready());
    float sums[TILES][4];
    const bits16 *from = x_rows() + lane / 4 * LINE + first_column() + lane % 4 * 8;
    multiply_part(sums, [&](int pair) { return *(const uint4 *)(from + pair * 32); });
    exchange(sums);
    float own[OWN], own_up[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      if (thread + i * THREADS >= OUTPUTS) break;
      const Output at = output(thread + i * THREADS);
      own[i] = own_sum(at.group, at.element);
      if (KIND == GATED) own_up[i] = own_sum(OUTPUT_GROUPS + at.group, at.element);
    }
    wait_for(partials_ready());
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      if (thread + i * THREADS >= OUTPUTS) break;
      const Output at = output(thread + i * THREADS);
      if (at.row >= given.rows) continue;
      const float scale = norm_scale(at.row);
      float made = (own[i] + other_sum(at.group, at.element)) * scale;
      if (KIND == GATED) {
        const float gate = rounded_float(made);
        const float up_sum = own_up[i] + other_sum(OUTPUT_GROUPS + at.group, at.element);
        const float up = rounded_float(up_sum * scale);
        made = rounded_float(gate / (1.f + expf(-gate))) * up;
      }
      given.out[(long long)at.row * given.outputs + at.column] = rounded(made);
    }
  }

  // A warp reads its own columns of x only, straight into registers.
  __device__ __forceinline__ void run_add() {
    float factors[OWN], residual[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      const bool exists = thread + i * THREADS < OUTPUTS;
      factors[i] = exists ? to_float(given.out_gain[output(thread + i * THREADS).column]) : 0.f;
    }
    wait_for_previous();
    uint4 loaded[PAIRS];
    const bits16 *from = given.x + (long long)(lane / 4) * given.x_row + rank * COLUMNS + first_column() + lane % 4 * 8;
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++)
      loaded[pair] = lane / 4 < given.rows ? load_16_bytes(from + pair * 32) : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      const Output at = output(thread + i * THREADS);
      residual[i] = thread + i * THREADS < OUTPUTS && at.row < given.rows
                        ? to_float(given.add[(long long)at.row * given.add_row + at.column])
                        : 0.f;
    }
    wait_for(weights_ready());
    float sums[TILES][4];
    multiply_part(sums, [&](int pair) { return loaded[pair]; });
    exchange(sums);
    float own[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      if (thread + i * THREADS >= OUTPUTS) break;
      const Output at = output(thread + i * THREADS);
      own[i] = own_sum(at.group, at.element);
    }
    wait_for(partials_ready());
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      if (thread + i * THREADS >= OUTPUTS) break;
      const Output at = output(thread + i * THREADS);
      const bool exists = at.row < given.rows;
      const float product = own[i] + other_sum(at.group, at.element);
      const float made = exists ? rounded_float(residual[i] + rounded_float(product)) : 0.f;
      const float square = sum_of_lanes(made * made, GROUP);
      if (!exists) continue;
      const long long to = (long long)at.row * given.outputs + at.column;
      given.out[to] = rounded(made);
      given.gained[to] = rounded(factors[i] * made);
      const int groups = given.outputs / GROUP;
      if (at.column % GROUP == 0) given.squares[(long long)at.row * groups + at.column / GROUP] = square;
    }
  }
};

#define PRODUCT(KIND, MATRIX_GROUPS, TILES, PARTS, PAIRS)                                                              \
  extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 2)                             \
      product_##KIND##_##MATRIX_GROUPS##_##TILES##_##PARTS##_##PAIRS(                                                  \
          const bits16 *x, const bits16 *weight, const bits16 *gain, const bits16 *add, const bits16 *out_gain,        \
          bits16 *out, bits16 *gained, float *squares, int rows, int x_row, int add_row, int outputs, float eps) {     \
    SHARED_MEMORY(memory);                                                                                             \
    const Arguments given{x, weight, gain, add, out_gain, out, gained, squares, rows, x_row, add_row, outputs, eps};   \
    LinearProgram<KIND, MATRIX_GROUPS, TILES, PARTS, PAIRS> program(given, memory);                                    \
    start_next();                                                                                                      \
    program.start();                                                                                                   \
    if (KIND == ADD)                                                                                                   \
      program.run_add();                                                                                               \
    else                                                                                                               \
      program.run_normed();                                                                                            \
  }
// prefetch_linear.py lists the same. Of the predictor: q, k and v, o, gate and up, down, head, and the talker's hidden
// states to its width.
PRODUCT(0, 4, 1, 2, 8) PRODUCT(2, 1, 1, 8, 4) PRODUCT(1, 2, 3, 4, 4) PRODUCT(2, 1, 1, 8, 6) PRODUCT(0, 2, 1, 4, 4)
PRODUCT(0, 1, 1, 8, 4)
// Of the talker: q, k and v, o, down, head.
PRODUCT(0, 4, 1, 2, 16) PRODUCT(2, 1, 2, 8, 4) PRODUCT(2, 1, 2, 8, 12) PRODUCT(0, 1, 3, 8, 4)
