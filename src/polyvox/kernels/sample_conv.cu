// SPDX-License-Identifier: Apache-2.0
// The codec's last convolution, 96 channels and 7 taps to one sample. The launcher, the packing of weights and the
// contract are in sample_conv.py. tests/conformance/test_sample_conv_on_cpu.py runs this file on a CPU.
//
// A program loads the columns of its samples and the 6 before them once, straight into the registers of the tensor
// cores' operands, and multiplies each column with the weights of all taps: 16 columns with 8 taps, the last of which is
// zero, over 16 channels. Which channels these are does not matter as long as both operands agree, so a thread loads 8
// consecutive ones, 16 bytes, for two products. The products go to shared memory, where a sample is the sum of those of
// 7 columns, each with another tap.

typedef unsigned short half_bits;

constexpr int CHANNELS = 96, TAPS = 7, HISTORY = TAPS - 1;
constexpr int WARPS = 8, THREADS = 32 * WARPS, TILES = 2;  // tiles of 16 columns per warp
constexpr int WINDOW = WARPS * TILES * 16, LEAD = 16;      // columns of a program, of which the first have no sample
constexpr int SAMPLES = WINDOW - LEAD;
constexpr int BLOCKS = CHANNELS / 32;
constexpr int PITCH = WINDOW + 4;  // products of a tap in shared memory: the stores of a warp use all banks

// Everything that needs the hardware; a test replaces it by functions for a CPU.
#ifdef ON_CPU
#include "sample_conv_on_cpu.hpp"
#else
__device__ __forceinline__ uint4 load_16_bytes(const half_bits *from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
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
#define SHARED_PRODUCTS __shared__ float products[8 * PITCH]
#endif

// x [B,columns,96] and state [S,6,96] float16, weights [3,8,32] (blocks of channels, taps, channels), y [B,columns].
// Program i has the samples from i % tiles · SAMPLES on of stream i / tiles. The first program of a stream alone reads
// its history, and then replaces it.
extern "C" __global__ void __launch_bounds__(THREADS) sample_conv_96(
    const half_bits *x, half_bits *state, const long long *slots, const half_bits *weights, const float *bias, float *y,
    const long long *absent, int columns, int tiles) {
  SHARED_PRODUCTS;
  const int stream = (int)blockIdx.x / tiles, first = (int)blockIdx.x % tiles * SAMPLES;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
  const half_bits *here = x + (long long)stream * columns * CHANNELS;

  uint4 column[TILES][2][BLOCKS], matrix[BLOCKS];
#pragma unroll
  for (int tile = 0; tile < TILES; tile++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int at = first - LEAD + (warp * TILES + tile) * 16 + half * 8 + group;
      const bool exists = at >= first - HISTORY && at < columns;
      const half_bits *from = here + (long long)at * CHANNELS + quad * 8;
      if (exists && at < 0)  // the slot is loaded here only: no other load waits for it
        from = state + (slots[stream] * HISTORY + HISTORY + at) * CHANNELS + quad * 8;
#pragma unroll
      for (int block = 0; block < BLOCKS; block++)
        column[tile][half][block] = exists ? load_16_bytes(from + block * 32) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
  for (int block = 0; block < BLOCKS; block++) matrix[block] = load_16_bytes(weights + (block * 8 + group) * 32 + quad * 8);

#pragma unroll
  for (int tile = 0; tile < TILES; tile++) {
    float sums[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
      const uint4 upper = column[tile][0][block], lower = column[tile][1][block], b = matrix[block];
      multiply(sums, upper.x, lower.x, upper.y, lower.y, b.x, b.y);
      multiply(sums, upper.z, lower.z, upper.w, lower.w, b.z, b.w);
    }
    float *to = products + quad * 2 * PITCH + (warp * TILES + tile) * 16 + group;
    to[0] = sums[0];
    to[PITCH] = sums[1];
    to[8] = sums[2];
    to[PITCH + 8] = sums[3];
  }
  __syncthreads();

  const int at = first + (int)threadIdx.x;
  if (threadIdx.x < SAMPLES && at < columns) {
    float sum = bias[0];
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) sum += products[tap * PITCH + LEAD - HISTORY + tap + threadIdx.x];
    if (absent && at < absent[stream]) sum = 0.f;
    y[(long long)stream * columns + at] = sum < -1.f ? -1.f : sum > 1.f ? 1.f : sum;  // NaN stays
  }
  if (first == 0 && threadIdx.x < HISTORY * CHANNELS / 8)  // all reads of the history precede the barrier
    ((uint4 *)(state + slots[stream] * HISTORY * CHANNELS))[threadIdx.x] =
        load_16_bytes(here + (long long)(columns - HISTORY) * CHANNELS + threadIdx.x * 8);
}
