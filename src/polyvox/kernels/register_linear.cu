// SPDX-License-Identifier: Apache-2.0
// Linear layers of the codec's transformer for few rows, in float16: the matrix is in registers before the previous
// launch has ended. The launcher, the contract and the choice of the programs are in register_linear.py.
// tests/conformance/test_register_linear_on_cpu.py runs this file on a CPU.
//
// A program has 8 · TILES matrix rows, and its warps divide the columns. The tensor cores multiply 16 rows of x with 8
// rows of the matrix over 16 columns; which columns these are does not matter as long as both operands agree. So a
// thread loads 16 bytes, 8 consecutive columns of one row, straight into the registers of two products: neither operand
// goes through shared memory. The warps' sums are added in shared memory, in the order of the warps.

typedef unsigned short bits16;

constexpr int WARPS = 8, THREADS = 32 * WARPS;
constexpr int TILE_ROWS = 8;     // rows of x in half of a product
constexpr int COLUMNS = 32;      // of a warp and iteration

// Everything that needs the hardware; a test replaces it by functions for a CPU.
#ifdef ON_CPU
#include "register_linear_on_cpu.hpp"
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
// Weights: read once per launch. Not by the read-only path (.nc), whose loads the assembler moves behind the wait.
__device__ __forceinline__ uint4 load_weights(const bits16 *from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
  return v;
}
// Rows of x: written by the previous launch, so not through the read-only cache.
__device__ __forceinline__ uint4 load_row(const bits16 *from) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
  return v;
}
__device__ __forceinline__ void multiply(
    float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ float to_float(bits16 value) {
  float made;
  asm("cvt.f32.f16 %0, %1;" : "=f"(made) : "h"(value));
  return made;
}
__device__ __forceinline__ bits16 rounded(float value) {
  bits16 made;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(made) : "f"(value));
  return made;
}
__device__ __forceinline__ float sum_of_lanes(float value, int lanes) {  // of 2^n adjacent lanes
  for (int offset = lanes / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xFFFFFFFF, value, offset);
  return value;
}
#define SHARED_MEMORY(NAME) extern __shared__ float NAME[]
#endif

__device__ __forceinline__ float rounded_float(float value) { return to_float(rounded(value)); }

// ITERATIONS · WARPS · COLUMNS columns. Pointers that are null: squares (no norm before the product), add (no residual,
// and then gained and out_squares are not written), factor (no layer scale). A gated program has TILES / 2 tiles from
// each half of the matrix. Up to ROW_TILES · TILE_ROWS rows.
template <int TILES, int ITERATIONS, int ROW_TILES>
__device__ __forceinline__ void product(
    const bits16 *x, const bits16 *weight, const float *squares, const bits16 *add, const bits16 *factor,
    const bits16 *gain, bits16 *out, bits16 *gained, float *out_squares, int rows, int x_row, int parts,
    int squares_row, int add_row, int outputs, int gated, float eps) {
  constexpr int INPUTS = ITERATIONS * WARPS * COLUMNS, HEIGHT = 8 * TILES;
  constexpr int GROUPS = ROW_TILES / 2;  // products with 16 rows of x
  constexpr int MAX_ROWS = ROW_TILES * TILE_ROWS;
  static_assert(ROW_TILES % 2 == 0, "a product has two row tiles");
  SHARED_MEMORY(sums);  // of each warp: MAX_ROWS · HEIGHT
  float *scales = sums + WARPS * MAX_ROWS * HEIGHT;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4;
  const int width = gated ? HEIGHT / 2 : HEIGHT, first = blockIdx.x * width;  // outputs of this program
  const int column = warp * ITERATIONS * COLUMNS + lane % 4 * 8;

  start_next();
  const bits16 *lines[TILES];
#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    const int line = gated && tile >= TILES / 2 ? outputs + first + (tile - TILES / 2) * 8 : first + tile * 8;
    lines[tile] = weight + (long long)(line + row) * INPUTS + column;
  }
  uint4 matrix[ITERATIONS][TILES];
#pragma unroll
  for (int i = 0; i < ITERATIONS; i++)
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) matrix[i][tile] = load_weights(lines[tile] + i * COLUMNS);
  // A product with a residual has at most one output for each thread.
  const int own_row = threadIdx.x / width, own = first + threadIdx.x % width;
  const bool has_own = add && own_row < rows;
  const float own_gain = has_own ? to_float(gain[own]) : 0.f;
  const float own_factor = has_own && factor ? to_float(factor[own]) : 1.f;
  wait_for_previous();

  const bits16 *begin = x + (long long)row * x_row + column;
  uint4 values[ITERATIONS][ROW_TILES];
#pragma unroll
  for (int i = 0; i < ITERATIONS; i++)
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; tile++) {
      const bits16 *from = begin + (long long)TILE_ROWS * tile * x_row + i * COLUMNS;
      values[i][tile] = row + TILE_ROWS * tile < rows ? load_row(from) : make_uint4(0, 0, 0, 0);
    }
  const float residual = has_own ? to_float(add[(long long)own_row * add_row + own]) : 0.f;
  float norms[MAX_ROWS / WARPS];  // sums of squares of this warp's rows
#pragma unroll
  for (int i = 0; i < MAX_ROWS / WARPS; i++) {
    const int normed = warp * (MAX_ROWS / WARPS) + i;
    norms[i] = 0.f;
    if (squares && normed < rows) {
#pragma unroll 4
      for (int part = lane; part < parts; part += 32) norms[i] += squares[(long long)normed * squares_row + part];
    }
  }
  float d[GROUPS][TILES][4];
#pragma unroll
  for (int group = 0; group < GROUPS; group++)
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++) d[group][tile][i] = 0.f;
#pragma unroll
  for (int i = 0; i < ITERATIONS; i++)
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
      for (int group = 0; group < GROUPS; group++) {
        const uint4 w = matrix[i][tile], a = values[i][2 * group], b = values[i][2 * group + 1];
        multiply(d[group][tile], a.x, b.x, a.y, b.y, w.x, w.y);
        multiply(d[group][tile], a.z, b.z, a.w, b.w, w.z, w.w);
      }
#pragma unroll
  for (int group = 0; group < GROUPS; group++)
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
      float *to = sums + (warp * MAX_ROWS + group * 2 * TILE_ROWS + row) * HEIGHT + tile * 8 + lane % 4 * 2;
      to[0] = d[group][tile][0], to[1] = d[group][tile][1];
      to[TILE_ROWS * HEIGHT] = d[group][tile][2], to[TILE_ROWS * HEIGHT + 1] = d[group][tile][3];
    }
#pragma unroll
  for (int i = 0; i < MAX_ROWS / WARPS; i++) {
    const float total = sum_of_lanes(norms[i], 32);
    if (lane == 0) scales[warp * (MAX_ROWS / WARPS) + i] = squares ? rsqrtf(total / INPUTS + eps) : 1.f;
  }
  __syncthreads();

  auto total = [&](int of_row, int line) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) sum += sums[(i * MAX_ROWS + of_row) * HEIGHT + line];
    return sum * scales[of_row];
  };
  for (int index = threadIdx.x; index < MAX_ROWS * width; index += THREADS) {
    const int of_row = index / width, line = index % width;
    const long long at = (long long)of_row * outputs + first + line;
    const bool exists = of_row < rows;
    float made = rounded_float(total(of_row, line));
    if (gated) {
      const float up = rounded_float(total(of_row, width + line));
      made = rounded_float(rounded_float(made / (1.f + expf(-made))) * up);
    }
    if (add) {  // width is 8 or 16, so a warp has whole rows
      if (factor) made = rounded_float(own_factor * made);
      made = rounded_float(residual + made);
      const float square = sum_of_lanes(exists ? made * made : 0.f, width);
      if (exists) {
        gained[at] = rounded(own_gain * made);
        if (line == 0) out_squares[(long long)of_row * gridDim.x + blockIdx.x] = square;
      }
    }
    if (exists) out[at] = rounded(made);
  }
}

#define PRODUCT(TILES, ITERATIONS, ROW_TILES)                                                                         \
  extern "C" __global__ void __launch_bounds__(THREADS, 1) product_##TILES##_##ITERATIONS##_##ROW_TILES(              \
      const bits16 *x, const bits16 *weight, const float *squares, const bits16 *add, const bits16 *factor,           \
      const bits16 *gain, bits16 *out, bits16 *gained, float *out_squares, int rows, int x_row, int parts,            \
      int squares_row, int add_row, int outputs, int gated, float eps) {                                              \
    product<TILES, ITERATIONS, ROW_TILES>(x, weight, squares, add, factor, gain, out, gained, out_squares, rows,      \
                                          x_row, parts, squares_row, add_row, outputs, gated, eps);                   \
  }
// register_linear.py lists the same: 8 · TILES matrix rows of 256 · ITERATIONS columns, 8 · ROW_TILES rows of x.
PRODUCT(1, 4, 2) PRODUCT(2, 2, 2) PRODUCT(3, 2, 2) PRODUCT(1, 4, 4) PRODUCT(2, 2, 4) PRODUCT(3, 2, 4)
