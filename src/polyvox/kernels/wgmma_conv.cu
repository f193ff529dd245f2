// SPDX-License-Identifier: Apache-2.0
// Causal convolutions of the codec for sm_90a, whose tensor cores read both operands from shared memory (wgmma). The
// launchers, the packing of weights and the contracts are in wgmma_conv.py. tests/conformance/test_wgmma_on_cpu.py runs
// these kernels on a CPU.
//
// A warpgroup (128 threads) computes a tile of 64 rows: it copies the columns that its taps read, the window, to shared
// memory once, and the operand of each tap is the window from another row on. This needs an operand layout in which a
// row can start anywhere: without swizzling, the 16 bytes of 8 channels of consecutive rows are consecutive, so a shift
// by a row is 16 bytes. Weights are copied by the bulk copy engine: all of them once, or in stages of 64 input channels
// for the warpgroups of two programs, a cluster. Copying stages for each program alone is bound by the L2 cache.
//
// The order of the output channels in packed weights gives a thread 8 consecutive channels of two rows: every access to
// memory in the epilogue has 16 bytes.

#include "wgmma.cuh"
#include "wgmma_copies.cuh"

// A product that overwrites its sums needs no zeros, but without them the compiler reserves their registers all along.
template <int COUNT>
__device__ __forceinline__ void clear(float (&sums)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; i++) sums[i] = 0.f;
}

// Divides numbers below 2^32 / divisor.
struct Divisor {
  int value;
  unsigned reciprocal;

  __device__ __forceinline__ explicit Divisor(int value) : value(value), reciprocal(0xFFFFFFFFu / value + 1) {}
  __device__ __forceinline__ int divide(int number) const {
    return value == 1 ? number : (int)__umulhi((unsigned)number, reciprocal);
  }
  __device__ __forceinline__ int remainder(int number) const { return number - divide(number) * value; }
};

struct Coefficients {  // of 8 channels
  float2 bias[4], rate[4], height[4];
};
__device__ __forceinline__ Coefficients load_coefficients(const float *from, int stride) {
  Coefficients c;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    c.bias[j] = *(const float2 *)(from + j * 2);
    c.rate[j] = *(const float2 *)(from + stride + j * 2);
    c.height[j] = *(const float2 *)(from + 2 * stride + j * 2);
  }
  return c;
}
// 8 channels of one row: sums (two of every four consecutive ones), bias, residual, Snake, stores.
__device__ __forceinline__ void store_channels(
    const float *sums, const Coefficients &c, uint4 residual, bool exists, half_bits *raw, half_bits *act) {
  const unsigned residuals[4] = {residual.x, residual.y, residual.z, residual.w};
  unsigned sum[4], next[4];
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const float2 more = unpack(residuals[j]);
    const float left = exists ? sums[j * 4] + c.bias[j].x + more.x : 0.f;
    const float right = exists ? sums[j * 4 + 1] + c.bias[j].y + more.y : 0.f;
    sum[j] = pack(left, right);
    next[j] = pack(snake(left, c.rate[j].x, c.height[j].x), snake(right, c.rate[j].y, c.height[j].y));
  }
  if (raw) *(uint4 *)raw = make_uint4(sum[0], sum[1], sum[2], sum[3]);
  *(uint4 *)act = make_uint4(next[0], next[1], next[2], next[3]);
}

constexpr int TAPS = 7;  // of a residual unit

template <int C, bool RESIDENT>
__device__ __forceinline__ void residual_unit(
    const half_bits *active, const half_bits *x, const half_bits *state, const long long *slots,
    const half_bits *weights, const float *coefficients, half_bits *raw, half_bits *act, const long long *absent,
    int num_tiles, int columns, int dilation, int num_stages) {
  constexpr int STAGE = 64 * C * 2, BYTES = (TAPS + 1) * C * C * 2;
  constexpr int HALF = 96;  // outputs of the second convolution at a time
  SHARED_MEMORY;
  const int warpgroups = blockDim.x / 128 - (RESIDENT ? 0 : 1), warpgroup = threadIdx.x / 128, lane = threadIdx.x % 32;
  const int programs = RESIDENT ? 1 : CLUSTER;  // that work on adjacent tiles
  const int history = (TAPS - 1) * dilation, window = TILE_ROWS + history, pitch = window | 1;
  const int num_items = (num_tiles + warpgroups * programs - 1) / (warpgroups * programs);
  const Divisor tiles_per_stream(columns / TILE_ROWS);
  const int first_item = (int)blockIdx.x / programs, stride = (int)gridDim.x / programs;
  float *values = (float *)(memory + BARRIER_BYTES);
  const unsigned barriers = shared_address(memory), first_stage = barriers + BARRIER_BYTES + 6 * C * 4;
  const unsigned rows = first_stage + (RESIDENT ? BYTES : num_stages * STAGE) + warpgroup * pitch * C * 2;

  Stages<STAGE> stages(barriers, first_stage, RESIDENT ? 0 : num_stages);
  for (int i = threadIdx.x; i < 6 * C; i += blockDim.x) values[i] = coefficients[i];
  if (RESIDENT) load_weights(first_stage, weights, BYTES, barriers);
  else sync_cluster();
  if (!RESIDENT) {
    if (warpgroup == warpgroups) {  // the extra warpgroup
      give_registers();
      if (threadIdx.x % 128 == 0) stages.fill(weights, TAPS * C / 64, 2 * C / 64, first_item, num_items, stride, 1);
      return;
    }
    take_registers();
  }
  const int rank = RESIDENT ? 0 : cluster_rank();
  auto load_window = [&](int item) {
    const int tile = min((item * programs + rank) * warpgroups + warpgroup, num_tiles - 1);
    const int start = history - tiles_per_stream.remainder(tile) * TILE_ROWS;  // row of the stream's column 0
    const half_bits *here = active + ((long long)tile * TILE_ROWS - history) * C + channel_offset<C>(), *past = here;
    if (start > 0)
      past = state + (slots[tiles_per_stream.divide(tile)] * history + history - start) * C + channel_offset<C>();
    copy_window<C>(rows, here, past, start, window, pitch, C);
  };
  load_window(first_item);
  if (RESIDENT) barrier_wait(barriers, 0);

#pragma unroll 1
  for (int item = first_item; item < num_items; item += stride) {
    const int tile = (item * programs + rank) * warpgroups + warpgroup;
    float sums[C / 2];
    clear(sums);
    finish_window(warpgroup);
    begin_products();
    const u64 shifted = operand(rows, pitch * 16);
    if (RESIDENT) {
      const u64 b = operand(first_stage, C * 16);
#pragma unroll 1
      for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int k = 0; k < C / 16; k++)
          multiply(sums, shifted + tap * dilation + k * 2 * pitch, b + (tap * (C / 16) + k) * 2 * C, tap + k > 0);
      commit_products();
    } else {
#pragma unroll 1
      for (int tap = 0; tap < TAPS; tap++)
#pragma unroll 1
        for (int part = 0; part < C / 64; part++) {
          const u64 b = operand(stages.acquire(), C * 16), a = shifted + tap * dilation + part * 8 * pitch;
#pragma unroll
          for (int k = 0; k < 4; k++) multiply(sums, a + k * 2 * pitch, b + k * 2 * C, tap + part + k > 0);
          commit_products();
          stages.advance();
        }
    }
    finish_products(sums);
    if (!RESIDENT) stages.release();
    sync_warpgroup(warpgroup);
    if (item + stride < num_items) load_window(item + stride);

    const int quad = lane % 4, row = (threadIdx.x % 128) / 32 * 16 + lane / 4;
    const int stored = min(tile, num_tiles - 1);
    const long long line = ((long long)stored * TILE_ROWS + row) * C + quad * 8;
    const int missing = absent ? (int)absent[tiles_per_stream.divide(stored)] : 0;
    const int column = tiles_per_stream.remainder(stored) * TILE_ROWS + row;
    // A thread's values between the convolutions are its part of the second one's left operand.
    unsigned inner[C / 4];
#pragma unroll
    for (int q = 0; q < C / 32; q++) {
      const Coefficients c = load_coefficients(values + q * 32 + quad * 8, C);
#pragma unroll
      for (int j = 0; j < 4; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int at = (q * 4 + j) * 4 + half * 2;
          inner[at / 2] = pack(snake(sums[at] + c.bias[j].x, c.rate[j].x, c.height[j].x),
                               snake(sums[at + 1] + c.bias[j].y, c.rate[j].y, c.height[j].y));
        }
    }
#pragma unroll 1
    for (int first = 0; first < C; first += HALF) {
      float outer[HALF / 2];
      clear(outer);
      uint4 residual[HALF / 32][2];
#pragma unroll
      for (int q = 0; q < HALF / 32; q++)
#pragma unroll
        for (int half = 0; half < 2; half++)
          residual[q][half] = load_once(x + line + first + q * 32 + half * 8 * C);
      begin_products();
      u64 b = operand(first_stage + TAPS * C * C * 2, HALF * 16);
#pragma unroll
      for (int k = 0; k < C / 16; k++) {
        if (!RESIDENT && k % 4 == 0) b = operand(stages.acquire(), HALF * 16);
        multiply(outer, inner + k * 4, b + (RESIDENT ? k : k % 4) * 2 * HALF, k > 0);
        if (!RESIDENT && k % 4 == 3) {
          commit_products();
          stages.advance();
        }
      }
      if (RESIDENT) commit_products();
      finish_products(outer);
      if (!RESIDENT) stages.release();
#pragma unroll
      for (int q = 0; q < HALF / 32; q++) {
        const Coefficients c = load_coefficients(values + 3 * C + first + q * 32 + quad * 8, C);
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const long long at = line + first + q * 32 + half * 8 * C;
          if (tile < num_tiles)
            store_channels(outer + q * 16 + half * 2, c, residual[q][half], column + half * 8 >= missing,
                           raw ? raw + at : nullptr, act + at);
        }
      }
    }
  }
}

// The first `width` of the packed columns N at a time; `upsampling` output columns of each input column are adjacent.
// A warpgroup copies windows of CHUNK input channels, and after those of a tile the residual, to a ring of `buffers`.
// Products still read the window of one part when those with the next begin: with more than two buffers, buffers - 2
// windows are copied meanwhile; with two, the next one is copied after the first products of a part.
template <int N>
__device__ __forceinline__ void convolution(
    const half_bits *x, const half_bits *state, const long long *slots, const half_bits *weights,
    const float *coefficients, const half_bits *add, half_bits *raw, half_bits *act, const long long *absent,
    int num_tiles, int columns, int inputs, int width, int taps, int dilation, int upsampling, int num_stages,
    int buffers) {
  constexpr int CHUNK = 64, STAGE = CHUNK * N * 2;
  SHARED_MEMORY;
  const int warpgroups = blockDim.x / 128 - 1, warpgroup = threadIdx.x / 128, lane = threadIdx.x % 32;
  const int history = (taps - 1) * dilation, pitch = (TILE_ROWS + history) | 1, window_bytes = pitch * CHUNK * 2;
  const int parts = inputs / CHUNK;
  const int num_items = (num_tiles + warpgroups * CLUSTER - 1) / (warpgroups * CLUSTER) * (width / N);
  const Divisor tiles_per_stream(columns / TILE_ROWS), across(width / N);
  const int first_item = (int)blockIdx.x / CLUSTER, stride = (int)gridDim.x / CLUSTER;
  const unsigned barriers = shared_address(memory), first_stage = barriers + BARRIER_BYTES;
  const unsigned windows = first_stage + num_stages * STAGE + warpgroup * buffers * window_bytes;

  Stages<STAGE> stages(barriers, first_stage, num_stages);
  sync_cluster();
  if (warpgroup == warpgroups) {  // the extra warpgroup
    give_registers();
    if (threadIdx.x % 128 == 0) stages.fill(weights, parts * taps, 0, first_item, num_items, stride, across.value);
    return;
  }
  take_registers();
  const int rank = cluster_rank(), num_windows = parts + (add ? N / CHUNK : 0);  // of an item
  int next_item = first_item, next_part = 0, next_buffer = 0, start = 0;
  const half_bits *here = x, *past = x, *added = add;
  auto load_window = [&] {
    if (next_item >= num_items) {
      commit_copies();  // none: each call commits once
      return;
    }
    if (next_part == 0) {
      const int tile = min((across.divide(next_item) * CLUSTER + rank) * warpgroups + warpgroup, num_tiles - 1);
      start = history - tiles_per_stream.remainder(tile) * TILE_ROWS;  // row of the stream's column 0
      here = past = x + ((long long)tile * TILE_ROWS - history) * inputs + channel_offset<CHUNK>();
      if (start > 0)
        past = state + (slots[tiles_per_stream.divide(tile)] * history + history - start) * inputs +
               channel_offset<CHUNK>();
      added = add + (long long)tile * TILE_ROWS * width + across.remainder(next_item) * N + channel_offset<CHUNK>();
    }
    const unsigned to = windows + next_buffer * window_bytes;
    if (next_part < parts) {
      copy_window<CHUNK>(to, here, past, start, TILE_ROWS + history, pitch, inputs);
      here += CHUNK;
      past += CHUNK;
    } else {
      copy_window<CHUNK>(to, added, added, 0, TILE_ROWS, pitch, width);
      added += CHUNK;
    }
    if (++next_part == num_windows) {
      next_part = 0;
      next_item += stride;
    }
    if (++next_buffer == buffers) next_buffer = 0;
  };
  const bool few_buffers = buffers == 2;
  for (int i = 0; i < (few_buffers ? 1 : buffers - 2); i++) load_window();
  unsigned window = windows;
  auto begin_window = [&] {
    if (few_buffers) {
      finish_window<0>(warpgroup);
    } else {
      finish_window<2>(warpgroup);
      load_window();
    }
  };
  auto end_window = [&] {
    window += window_bytes;
    if (window == windows + buffers * window_bytes) window = windows;
  };
#pragma unroll 1
  for (int item = first_item; item < num_items; item += stride) {
    const int first_column = across.remainder(item) * N;
    const int tile = (across.divide(item) * CLUSTER + rank) * warpgroups + warpgroup, stored = min(tile, num_tiles - 1);
    const int quad = lane % 4, row = (threadIdx.x % 128) / 32 * 16 + lane / 4;
    float sums[N / 2];
    clear(sums);
#pragma unroll 1
    for (int part = 0; part < parts; part++) {
      begin_window();
      begin_products();
      u64 a = operand(window, pitch * 16);
#pragma unroll 1
      for (int tap = 0; tap < taps; tap++, a += dilation) {
        const u64 b = operand(stages.acquire(), N * 16);
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++) multiply(sums, a + k * 2 * pitch, b + k * 2 * N, part + tap + k > 0);
        commit_products();
        stages.advance();
        if (few_buffers && tap == 0) {
          sync_warpgroup(warpgroup);
          load_window();
        }
      }
      end_window();
    }
    finish_products(sums);
    stages.release();
    const int missing = absent ? (int)absent[tiles_per_stream.divide(stored)] : 0;
    const int column = tiles_per_stream.remainder(stored) * TILE_ROWS + row;
    const long long line = ((long long)tile * TILE_ROWS + row) * width + first_column + quad * 8;
#pragma unroll
    for (int q = 0; q < N / 32; q++) {
      if (add && q % 2 == 0) begin_window();
      const Coefficients c = load_coefficients(coefficients + first_column + q * 32 + quad * 8, width);
      if (tile < num_tiles) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const long long at = line + q * 32 + half * 8 * width;
          uint4 more = make_uint4(0, 0, 0, 0);
          if (add) more = load_16_bytes(window + ((q % 2 * 4 + quad) * pitch + row + half * 8) * 16);
          store_channels(sums + q * 16 + half * 2, c, more, (column + half * 8) * upsampling >= missing,
                         raw ? raw + at : nullptr, act + at);
        }
      }
      if (add && q % 2 == 1) end_window();
    }
  }
}

// A transposed convolution of two taps from INPUTS to N channels. A program computes one of every `rate` output columns,
// whose weights stay in shared memory; programs with the same tiles are adjacent, so that x comes from the cache. The
// warpgroups do not wait for each other: one stores while another multiplies.
template <int INPUTS, int N>
__device__ __forceinline__ void upsampling(
    const half_bits *x, const half_bits *state, const long long *slots, const half_bits *weights,
    const float *coefficients, half_bits *raw, half_bits *act, const long long *absent, int num_tiles, int columns,
    int rate) {
  constexpr int BYTES = 2 * INPUTS * N * 2, WINDOW = TILE_ROWS + 1, PITCH = WINDOW | 1;
  SHARED_MEMORY;
  const int warpgroups = blockDim.x / 128, warpgroup = threadIdx.x / 128, lane = threadIdx.x % 32;
  const int phase = (int)blockIdx.x % rate, group = (int)blockIdx.x / rate, groups = (int)gridDim.x / rate;
  const int num_items = (num_tiles + warpgroups - 1) / warpgroups;
  const Divisor tiles_per_stream(columns / TILE_ROWS);
  const int turns = (num_items - group + groups - 1) / groups, width = rate * N;
  float *values = (float *)(memory + BARRIER_BYTES);
  const unsigned barriers = shared_address(memory), matrix = barriers + BARRIER_BYTES + 3 * N * 4;
  const unsigned windows = matrix + BYTES + warpgroup * PITCH * INPUTS * 4;  // two of each warpgroup

  for (int i = threadIdx.x; i < 3 * N; i += blockDim.x) values[i] = coefficients[i / N * width + phase * N + i % N];
  load_weights(matrix, weights + phase * (BYTES / 2), BYTES, barriers);
  auto load_window = [&](int tile, int buffer) {
    tile = min(tile, num_tiles - 1);
    const int start = tiles_per_stream.remainder(tile) == 0;  // row of the stream's column 0, or 0
    const half_bits *here = x + ((long long)tile * TILE_ROWS - 1) * INPUTS + channel_offset<INPUTS>(), *past = here;
    if (start) past = state + slots[tiles_per_stream.divide(tile)] * INPUTS + channel_offset<INPUTS>();
    copy_window<INPUTS>(windows + buffer * PITCH * INPUTS * 2, here, past, start, WINDOW, PITCH, INPUTS);
  };
  load_window(group * warpgroups + warpgroup, 0);
  barrier_wait(barriers, 0);

#pragma unroll 1
  for (int turn = 0; turn < turns; turn++) {
    const int tile = (group + turn * groups) * warpgroups + warpgroup, buffer = turn & 1;
    float sums[N / 2];
    finish_window(warpgroup);
    if (turn + 1 < turns) load_window(tile + groups * warpgroups, buffer ^ 1);
    begin_products();
    const u64 a = operand(windows + buffer * PITCH * INPUTS * 2, PITCH * 16), b = operand(matrix, N * 16);
#pragma unroll
    for (int tap = 0; tap < 2; tap++)
#pragma unroll
      for (int k = 0; k < INPUTS / 16; k++)
        multiply(sums, a + tap + k * 2 * PITCH, b + (tap * (INPUTS / 16) + k) * 2 * N, tap + k > 0);
    commit_products();
    finish_products(sums);
    if (tile >= num_tiles) continue;

    const int quad = lane % 4, row = (threadIdx.x % 128) / 32 * 16 + lane / 4;
    const int missing = absent ? (int)absent[tiles_per_stream.divide(tile)] : 0;
    const int column = tiles_per_stream.remainder(tile) * TILE_ROWS + row;
    const long long line = ((long long)tile * TILE_ROWS + row) * width + phase * N + quad * 8;
#pragma unroll
    for (int q = 0; q < N / 32; q++) {
      const Coefficients c = load_coefficients(values + q * 32 + quad * 8, N);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const long long at = line + q * 32 + half * 8 * width;
        store_channels(sums + q * 16 + half * 2, c, make_uint4(0, 0, 0, 0), (column + half * 8) * rate >= missing,
                       raw ? raw + at : nullptr, act + at);
      }
    }
  }
}

constexpr int MAX_THREADS = MAX_WARPGROUPS * 128, EXTRA_THREADS = 128;

extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1) residual_unit_96(
    const half_bits *active, const half_bits *x, const half_bits *state, const long long *slots,
    const half_bits *weights, const float *coefficients, half_bits *raw, half_bits *act, const long long *absent,
    int num_tiles, int columns, int dilation, int num_stages) {
  residual_unit<96, true>(active, x, state, slots, weights, coefficients, raw, act, absent, num_tiles, columns, dilation,
                          num_stages);
}

// A program of a cluster ends after the others have used its barriers and it has received all copies.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(MAX_THREADS + EXTRA_THREADS, 1)
    residual_unit_192(
        const half_bits *active, const half_bits *x, const half_bits *state, const long long *slots,
        const half_bits *weights, const float *coefficients, half_bits *raw, half_bits *act, const long long *absent,
        int num_tiles, int columns, int dilation, int num_stages) {
  residual_unit<192, false>(active, x, state, slots, weights, coefficients, raw, act, absent, num_tiles, columns,
                            dilation, num_stages);
  __syncwarp();
  sync_cluster();
}

extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(MAX_THREADS + EXTRA_THREADS, 1)
    convolution_192(
        const half_bits *x, const half_bits *state, const long long *slots, const half_bits *weights,
        const float *coefficients, const half_bits *add, half_bits *raw, half_bits *act, const long long *absent,
        int num_tiles, int columns, int inputs, int width, int taps, int dilation, int upsampling, int num_stages,
        int buffers) {
  convolution<192>(x, state, slots, weights, coefficients, add, raw, act, absent, num_tiles, columns, inputs, width,
                   taps, dilation, upsampling, num_stages, buffers);
  __syncwarp();
  sync_cluster();
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1) upsampling_192_96(
    const half_bits *x, const half_bits *state, const long long *slots, const half_bits *weights,
    const float *coefficients, half_bits *raw, half_bits *act, const long long *absent, int num_tiles, int columns,
    int rate) {
  upsampling<192, 96>(x, state, slots, weights, coefficients, raw, act, absent, num_tiles, columns, rate);
}
