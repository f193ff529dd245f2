// SPDX-License-Identifier: Apache-2.0
// A program of a linear layer of one row in bfloat16, whose part of the matrix is in shared memory before the previous
// launch has ended: prefetch_vector.cu and attention_output.cu.
//
// A program owns whole matrix rows ("lines"). Its warps divide the columns, so that x is read once per program, and add
// up their partial sums through shared memory. Tensor cores multiply 16 lines with 8 columns, of which x is one: the
// sums over columns then need no shuffles, and weights are not converted. Which columns a product of 16 has does not
// matter as long as both operands agree: a thread has 8 consecutive columns of a line, 16 bytes, for two products.

#include "warps.cuh"
#include "overlap.cuh"
#include "bfloat16.cuh"
#include "barriers.cuh"

constexpr int WARPS = 8;
constexpr int GROUP = 8;           // outputs whose squares are summed
constexpr int TILE = 16;           // lines of a product
constexpr int PADDING = 64;        // bytes after every other line in shared memory, which avoid bank conflicts
constexpr int GATED = 1, ADD = 2;  // kinds of products; 0: neither

struct Arguments {
  const bits16 *weight;    // [matrix rows, inputs]
  const bits16 *add;       // [outputs], and below: ADD
  const bits16 *out_gain;  // [outputs]: of the next norm
  bits16 *out, *gained;    // [outputs]
  float *squares;          // [outputs / GROUP]
  int outputs;
  float eps;  // of the norm of x
};

// HEIGHT lines of INPUTS columns.
template <int KIND, int HEIGHT, int INPUTS> struct VectorProgram {
  static constexpr int TILES = (HEIGHT + TILE - 1) / TILE, OUTPUTS = KIND == GATED ? HEIGHT / 2 : HEIGHT;
  static constexpr int OWN_COLUMNS = INPUTS / WARPS, PAIRS = OWN_COLUMNS / 32;  // of a warp
  static constexpr int LINE_PAIR = 4 * INPUTS + PADDING, X_LINE = INPUTS + PADDING / 2;
  static_assert(HEIGHT % (KIND == GATED ? TILE : GROUP) == 0 && INPUTS % 1024 == 0, "whole tiles");

  const Arguments &given;
  unsigned char *memory;
  int thread, warp, lane;
  __device__ VectorProgram(const Arguments &given, unsigned char *memory) : given(given), memory(memory) {
    thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  }
  // Shared memory: prefetch_vector.py computes the same sum.
  __device__ __forceinline__ bits16 *lines() { return (bits16 *)memory; }
  __device__ __forceinline__ float *partials() { return (float *)(memory + HEIGHT / 2 * LINE_PAIR); }  // [WARPS][HEIGHT]
  __device__ __forceinline__ float *squares() { return partials() + WARPS * HEIGHT; }                  // [WARPS]
  __device__ __forceinline__ unsigned copied() { return shared_address(squares() + WARPS); }
  // Columns of x. A warp writes and reads only its own. Attention exchanges rows of its heads there, on two lines.
  __device__ __forceinline__ bits16 *own_x(int line = 0) {
    return (bits16 *)(squares() + WARPS + 4) + line * X_LINE + warp * OWN_COLUMNS;
  }

  // In elements. Lines next to each other begin at different halves of the 128 bytes of all banks.
  static __device__ __forceinline__ int line_at(int line) {
    return line / 2 * (LINE_PAIR / 2) + line % 2 * (INPUTS + PADDING / 2);
  }
  // A gated tile has eight lines of each half of the matrix.
  __device__ __forceinline__ const bits16 *line_of(int line) {
    int row = blockIdx.x * HEIGHT + line;
    if (KIND == GATED)
      row = (line / 8 % 2 ? given.outputs : 0) + blockIdx.x * OUTPUTS + line / TILE * 8 + line % 8;
    return given.weight + (long long)row * INPUTS;
  }

  __device__ __forceinline__ void init_barrier_of_copies() {
    if (thread == 0) {
      init_barrier(copied(), 1);
      fence_barriers();
      arrive_expecting(copied(), HEIGHT * INPUTS * 2);
    }
    sync_program();
  }
  __device__ __forceinline__ void copy_lines() {
    if (thread < HEIGHT) copy(shared_address(lines() + line_at(thread)), line_of(thread), INPUTS * 2, copied());
  }

  template <bool WHOLE>
  static __device__ __forceinline__ void multiply_pair(float (&sums)[2][4], const bits16 *at, const uint4 &x) {
    const uint4 upper = *(const uint4 *)at;
    const uint4 lower = WHOLE ? *(const uint4 *)(at + line_at(8)) : make_uint4(0, 0, 0, 0);
    multiply(sums[0], upper.x, lower.x, upper.y, lower.y, x.x, x.y);
    multiply(sums[1], upper.z, lower.z, upper.w, lower.w, x.z, x.w);
  }
  __device__ __forceinline__ void multiply_lines() {
    const bits16 *at = lines() + line_at(lane / 4) + warp * OWN_COLUMNS + lane % 4 * 8;
    float sums[TILES][2][4];
#pragma unroll
    for (int i = 0; i < TILES * 8; i++) sums[i / 8][i / 4 % 2][i % 4] = 0.f;
    wait_barrier(copied(), 0);
    sync_warp();
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++) {
      // x is the first of 8 columns; four threads have it.
      const uint4 x = lane < 4 ? *(const uint4 *)(own_x() + pair * 32 + lane * 8) : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (int tile = 0; tile < TILES; tile++) {
        const bits16 *from = at + line_at(tile * TILE) + pair * 32;
        if (tile * TILE + 8 < HEIGHT)
          multiply_pair<true>(sums[tile], from, x);
        else
          multiply_pair<false>(sums[tile], from, x);
      }
    }
    if (lane % 4) return;  // every fourth thread has the sums of two lines of a tile
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      float *to = partials() + warp * HEIGHT + tile * TILE + lane / 4;
      to[0] = sums[tile][0][0] + sums[tile][1][0];
      if (tile * TILE + 8 < HEIGHT) to[8] = sums[tile][0][2] + sums[tile][1][2];
    }
  }

  // The sum of a line over all columns.
  __device__ __forceinline__ float total(int line) {
    float sum = 0.f;
#pragma unroll
    for (int from = 0; from < WARPS; from++) sum += partials()[from * HEIGHT + line];
    return sum;
  }
  __device__ __forceinline__ float norm_scale() {
    float sum = 0.f;
#pragma unroll
    for (int from = 0; from < WARPS; from++) sum += squares()[from];
    return rsqrtf(sum / INPUTS + given.eps);
  }

  // `row` writes x: prefetch() is called before the wait for the previous launch, take() after it. is_normed: take()
  // also writes squares().
  template <class Row> __device__ __forceinline__ void run(Row row, bool is_normed) {
    init_barrier_of_copies();
    const int column = blockIdx.x * OUTPUTS + thread;
    const bool exists = thread < OUTPUTS;
    float factor = 0.f, residual = 0.f;
    if (KIND == ADD && exists) factor = to_float(given.out_gain[column]);
    row.prefetch();
    copy_lines();
    wait_for_previous();
    if (KIND == ADD && exists) residual = to_float(given.add[column]);
    row.take();
    sync_warp();
    multiply_lines();
    sync_program();
    if (warp * 32 >= OUTPUTS) return;
    if (KIND == ADD) {
      float made = 0.f;
      if (exists) made = rounded_float(residual + rounded_float(total(thread)));
      const float square = sum_of_lanes(made * made, GROUP);
      if (!exists) return;
      given.out[column] = rounded(made), given.gained[column] = rounded(factor * made);
      if (thread % GROUP == 0) given.squares[column / GROUP] = square;
    } else if (exists) {
      const float scale = is_normed ? norm_scale() : 1.f;
      if (KIND == GATED) {
        const int line = thread / 8 * TILE + thread % 8;
        const float gate = rounded_float(total(line) * scale), up = rounded_float(total(line + 8) * scale);
        given.out[column] = rounded(rounded_float(gate / (1.f + expf(-gate))) * up);
      } else {
        given.out[column] = rounded(total(thread) * scale);
      }
    }
  }
};
