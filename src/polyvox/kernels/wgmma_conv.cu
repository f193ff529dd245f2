// SPDX-License-Identifier: Apache-2.0
// Causal convolutions of the codec for sm_90a, whose tensor cores read both operands from shared memory (wgmma). The
// launchers, the packing of weights and the contracts are in wgmma_conv.py. tests/conformance/test_wgmma_on_cpu.py runs
// these kernels on a CPU.
//
// A warpgroup (128 threads) computes a tile of 64 rows: it copies the columns that its taps read, the window, to shared
// memory once, and the operand of each tap is the window from another row on. This needs an operand layout in which a
// row can start anywhere: without swizzling, the 16 bytes of 8 channels of consecutive rows are consecutive, so a shift
// by a row is 16 bytes. Weights are copied by the bulk copy engine in stages of 32 input channels, shared by the
// warpgroups of a program.
//
// The order of the output channels in packed weights gives a thread 8 consecutive channels of two rows: every access to
// memory in the epilogue has 16 bytes.

typedef unsigned long long u64;
typedef unsigned short half_bits;

constexpr int TILE_ROWS = 64;
constexpr int MAX_WARPGROUPS = 3;
constexpr int BARRIER_BYTES = 512;  // at the start of shared memory

// Everything that needs the hardware; a test replaces it by functions for a CPU.
#ifdef ON_CPU
#include "wgmma_on_cpu.hpp"
#else
__device__ __forceinline__ void multiply(float (&d)[48], u64 a, u64 b, int accumulate) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %50, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, %48, %49, p, 1, 1, 0, 0; }\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
      : "l"(a), "l"(b), "r"(accumulate));
}
__device__ __forceinline__ void multiply(float (&d)[96], u64 a, u64 b, int accumulate) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %98, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, %96, %97, p, 1, 1, 0, 0; }\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
        "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
        "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
        "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
        "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
      : "l"(a), "l"(b), "r"(accumulate));
}

__device__ __forceinline__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

// An operand in shared memory: `lead` bytes between groups of 8 channels, 16 bytes between rows.
__device__ __forceinline__ u64 operand(unsigned address, unsigned lead) {
  return (u64)(address >> 4) | (u64)(lead >> 4) << 16 | (u64)(128 >> 4) << 32;
}

__device__ __forceinline__ void barrier_init(unsigned barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(unsigned barrier, int parity) {
  asm volatile(
      "{ .reg .pred p;\n WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @p bra DONE;\n bra WAIT;\n DONE: }"
      ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void copy_stage(unsigned to, const void *from, int bytes, unsigned barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
__device__ __forceinline__ void sync_warpgroup(int warpgroup) {
  asm volatile("bar.sync %0, 128;" ::"r"(warpgroup + 1) : "memory");
}
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int MAX_PENDING>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(MAX_PENDING) : "memory");
}
template <int COUNT>
__device__ __forceinline__ void finish_products(float (&sums)[COUNT]) {
  wait_for_products<0>();
#pragma unroll
  for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(sums[i])::"memory");  // no use before this line
}
// Makes this thread's writes to shared memory visible to the tensor cores.
__device__ __forceinline__ void publish_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ unsigned pack(float low, float high) {  // saturates: an infinity would persist in the state
  unsigned packed;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ float2 unpack(unsigned packed) {
  float2 values;
  asm("{ .reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
      : "=f"(values.x), "=f"(values.y) : "r"(packed));
  return values;
}
// snake.py with the hardware's sine, whose error of 1e-6 to 1e-5 is below the rounding of the result.
__device__ __forceinline__ float snake(float x, float rate, float height) {
  float sine;
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(sine) : "f"(x * rate));
  return fmaf(sine * height, sine, x);
}

__device__ __forceinline__ uint4 load_once(const half_bits *from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}
__device__ __forceinline__ void copy_16_bytes(unsigned to, const half_bits *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ __forceinline__ void store_16_bytes(unsigned to, const unsigned (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
               ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}
__device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
#define SHARED_MEMORY extern __shared__ __align__(128) unsigned char memory[]
#endif

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

// Copies columns first..first+count of a stream, CHANNELS of them from pointers to the stream's columns and to its
// history (both to column 0), in groups of 8 channels with `pitch` rows each.
template <int CHANNELS>
__device__ __forceinline__ void copy_window(
    unsigned to, const half_bits *here, const half_bits *past, int first, int count, int pitch, int stride) {
  constexpr int GROUPS = CHANNELS / 8, STEP = 128 / GROUPS;  // channel groups; rows at once
  const int member = threadIdx.x % 128, group = member % GROUPS;
  if (member < STEP * GROUPS) {
    int row = member / GROUPS;
    to += (group * pitch + row) * 16;
#pragma unroll 1
    for (; row < count; row += STEP, to += STEP * 16) {
      const int column = first + row;
      const half_bits *from = (column >= 0 ? here : past) + (long long)column * stride + group * 8;
      copy_16_bytes(to, from);
    }
  }
}
__device__ __forceinline__ void finish_window(int warpgroup) {
  wait_for_copies();
  publish_to_tensor_cores();
  sync_warpgroup(warpgroup);
}

// Stages of weights in shared memory: a ring of SLOTS that thread 0 fills and all warpgroups read. `turns` times, this
// program reads `per_turn` stages, in turn i those from first_stage(i) on.
template <int SLOTS, int BYTES>
struct Stages {
  unsigned full, empty, memory;
  const char *weights;
  int per_turn, total, across, stride, item, index, loaded = 0, count = 0, slot = 0, phase = 0, released = 0;

  __device__ __forceinline__ Stages(
      const half_bits *weights, unsigned barriers, unsigned memory, int per_turn, int turns, int across)
      : full(barriers), empty(barriers + 8 * SLOTS), memory(memory), weights((const char *)weights), per_turn(per_turn),
        total(per_turn * turns), across(across), stride(gridDim.x), item(blockIdx.x), index(0) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < SLOTS; i++) {
        barrier_init(full + 8 * i, 1);
        barrier_init(empty + 8 * i, blockDim.x / 32);
      }
      publish_barriers();
      publish_to_tensor_cores();
      for (int i = 0; i < SLOTS && loaded < total; i++) load(i);
    }
  }
  __device__ __forceinline__ void load(int to) {
    const char *from = weights + ((long long)(item % across) * per_turn + index) * BYTES;
    copy_stage(memory + to * BYTES, from, BYTES, full + 8 * to);
    loaded++;
    if (++index == per_turn) {
      index = 0;
      item += stride;
    }
  }
  // The address of the next stage. Thread 0 refills the slot of two stages ago, which all warpgroups had time to read.
  __device__ __forceinline__ unsigned acquire() {
    if (threadIdx.x == 0 && count >= 2 && loaded < total) {
      const int refilled = (count - 2) % SLOTS;
      barrier_wait(empty + 8 * refilled, ((count - 2) / SLOTS) & 1);
      load(refilled);
    }
    __syncwarp();
    barrier_wait(full + 8 * slot, phase);
    return memory + slot * BYTES;
  }
  // After products with the acquired stage were committed; the previous one is released when its products have ended.
  __device__ __forceinline__ void advance() {
    wait_for_products<1>();
    if (count > released) release();
    count++;
    if (++slot == SLOTS) {
      slot = 0;
      phase ^= 1;
    }
  }
  __device__ __forceinline__ void release() {
    if (threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * (released % SLOTS));
    released++;
  }
};

constexpr int TAPS = 7;        // of a residual unit
constexpr int INNER_ROWS = 66; // rows in memory of the values between the convolutions: no bank conflicts
constexpr int PREFETCHED = 3;  // groups of 32 residual channels that are loaded before they are used

template <int C, bool RESIDENT>
__device__ __forceinline__ void residual_unit(
    const half_bits *active, const half_bits *x, const half_bits *state, const long long *slots,
    const half_bits *weights, const float *coefficients, half_bits *raw, half_bits *act, const long long *absent,
    int num_tiles, int columns, int dilation) {
  constexpr int PARTS = C / 32, STAGE = 32 * C * 2, NUM_STAGES = (TAPS + 1) * PARTS, QUARTERS = C / 32;
  constexpr int SLOTS = RESIDENT ? NUM_STAGES : 7;
  SHARED_MEMORY;
  const int warpgroups = blockDim.x / 128, warpgroup = threadIdx.x / 128, lane = threadIdx.x % 32;
  const int history = (TAPS - 1) * dilation, window = TILE_ROWS + history, pitch = window | 1;
  const int tiles_per_stream = columns / TILE_ROWS, num_items = (num_tiles + warpgroups - 1) / warpgroups;
  const int turns = (num_items - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
  float *values = (float *)(memory + BARRIER_BYTES);
  const unsigned barriers = shared_address(memory), first_stage = barriers + BARRIER_BYTES + 6 * C * 4;
  const unsigned rows = first_stage + SLOTS * STAGE + warpgroup * pitch * C * 2;

  Stages<SLOTS, STAGE> stages(weights, barriers, first_stage, NUM_STAGES, RESIDENT ? 1 : turns, 1);
  for (int i = threadIdx.x; i < 6 * C; i += blockDim.x) values[i] = coefficients[i];
  __syncthreads();
  auto load_window = [&](int tile) {
    tile = min(tile, num_tiles - 1);
    const int stream = tile / tiles_per_stream;
    copy_window<C>(rows, active + (long long)stream * columns * C, state + (slots[stream] * history + history) * C,
                   (tile % tiles_per_stream) * TILE_ROWS - history, window, pitch, C);
  };
  load_window((int)blockIdx.x * warpgroups + warpgroup);
  if (RESIDENT)
    for (int i = 0; i < SLOTS; i++) barrier_wait(stages.full + 8 * i, 0);

#pragma unroll 1
  for (int turn = 0; turn < turns; turn++) {
    const int tile = ((int)blockIdx.x + turn * (int)gridDim.x) * warpgroups + warpgroup;
    float sums[C / 2];
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
        for (int part = 0; part < PARTS; part++) {
          const u64 b = operand(stages.acquire(), C * 16), a = shifted + tap * dilation + part * 4 * pitch;
          multiply(sums, a, b, tap + part > 0);
          multiply(sums, a + 2 * pitch, b + 2 * C, 1);
          commit_products();
          stages.advance();
        }
    }
    finish_products(sums);
    if (!RESIDENT) stages.release();
    sync_warpgroup(warpgroup);

    const int quad = lane % 4, row = (threadIdx.x % 128) / 32 * 16 + lane / 4;
    const int stored = min(tile, num_tiles - 1), stream = stored / tiles_per_stream;
    const long long line = ((long long)stored * TILE_ROWS + row) * C + quad * 8;
    uint4 residual[PREFETCHED][2];
#pragma unroll
    for (int q = 0; q < PREFETCHED; q++)
#pragma unroll
      for (int half = 0; half < 2; half++) residual[q][half] = load_once(x + line + q * 32 + half * 8 * C);

    // The values between the convolutions replace the window.
#pragma unroll
    for (int q = 0; q < QUARTERS; q++) {
      const Coefficients c = load_coefficients(values + q * 32 + quad * 8, C);
      const unsigned to = rows + ((q * 4 + quad) * INNER_ROWS + row) * 16;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        unsigned inner[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const int at = (q * 4 + j) * 4 + half * 2;
          inner[j] = pack(snake(sums[at] + c.bias[j].x, c.rate[j].x, c.height[j].x),
                          snake(sums[at + 1] + c.bias[j].y, c.rate[j].y, c.height[j].y));
        }
        store_16_bytes(to + half * 8 * 16, inner);
      }
    }
    publish_to_tensor_cores();
    sync_warpgroup(warpgroup);
    begin_products();
    const u64 between = operand(rows, INNER_ROWS * 16);
    if (RESIDENT) {
      const u64 b = operand(first_stage + TAPS * PARTS * STAGE, C * 16);
#pragma unroll
      for (int k = 0; k < C / 16; k++) multiply(sums, between + k * 2 * INNER_ROWS, b + k * 2 * C, k > 0);
      commit_products();
    } else {
#pragma unroll 1
      for (int part = 0; part < PARTS; part++) {
        const u64 b = operand(stages.acquire(), C * 16), a = between + part * 4 * INNER_ROWS;
        multiply(sums, a, b, part > 0);
        multiply(sums, a + 2 * INNER_ROWS, b + 2 * C, 1);
        commit_products();
        stages.advance();
      }
    }
    finish_products(sums);
    if (!RESIDENT) stages.release();
    sync_warpgroup(warpgroup);
    if (turn + 1 < turns) load_window(tile + (int)gridDim.x * warpgroups);

    if (tile >= num_tiles) continue;
    const int missing = absent ? (int)absent[stream] : 0, column = (tile % tiles_per_stream) * TILE_ROWS + row;
#pragma unroll
    for (int q = 0; q < QUARTERS; q++) {
      const Coefficients c = load_coefficients(values + 3 * C + q * 32 + quad * 8, C);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const uint4 added = residual[q % PREFETCHED][half];
        const long long at = line + q * 32 + half * 8 * C;
        if (q + PREFETCHED < QUARTERS) residual[q % PREFETCHED][half] = load_once(x + at + PREFETCHED * 32);
        store_channels(sums + q * 16 + half * 2, c, added, column + half * 8 >= missing,
                       raw ? raw + at : nullptr, act + at);
      }
    }
  }
}

// The first `width` of the packed columns N at a time; `upsampling` output columns of each input column are adjacent.
template <int N>
__device__ __forceinline__ void convolution(
    const half_bits *x, const half_bits *state, const long long *slots, const half_bits *weights,
    const float *coefficients, const half_bits *add, half_bits *raw, half_bits *act, const long long *absent,
    int num_tiles, int columns, int inputs, int width, int taps, int dilation, int upsampling) {
  constexpr int STAGE = 32 * N * 2, SLOTS = 8, CHUNK = 64, QUARTERS = N / 32;
  SHARED_MEMORY;
  const int warpgroups = blockDim.x / 128, warpgroup = threadIdx.x / 128, lane = threadIdx.x % 32;
  const int history = (taps - 1) * dilation, window = TILE_ROWS + history, pitch = window | 1;
  const int tiles_per_stream = columns / TILE_ROWS, across = width / N, parts = inputs / CHUNK;
  const int num_items = (num_tiles + warpgroups - 1) / warpgroups * across;
  const int turns = (num_items - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
  const unsigned barriers = shared_address(memory), first_stage = barriers + BARRIER_BYTES;
  const unsigned windows = first_stage + SLOTS * STAGE + warpgroup * pitch * CHUNK * 4;  // two of each warpgroup

  Stages<SLOTS, STAGE> stages(weights, barriers, first_stage, parts * taps * 2, turns, across);
  __syncthreads();
  auto load_window = [&](int item, int part, int buffer) {
    const int tile = min(item / across * warpgroups + warpgroup, num_tiles - 1), stream = tile / tiles_per_stream;
    const half_bits *past = history ? state + (slots[stream] * history + history) * inputs : x;
    copy_window<CHUNK>(windows + buffer * pitch * CHUNK * 2, x + (long long)stream * columns * inputs + part * CHUNK,
                       past + part * CHUNK, (tile % tiles_per_stream) * TILE_ROWS - history, window, pitch, inputs);
  };
  load_window((int)blockIdx.x, 0, 0);
  int buffer = 0;
#pragma unroll 1
  for (int turn = 0; turn < turns; turn++) {
    const int item = (int)blockIdx.x + turn * (int)gridDim.x, first_column = item % across * N;
    const int tile = item / across * warpgroups + warpgroup, stored = min(tile, num_tiles - 1);
    const int quad = lane % 4, row = (threadIdx.x % 128) / 32 * 16 + lane / 4;
    const long long line = ((long long)stored * TILE_ROWS + row) * width + first_column + quad * 8;
    float sums[N / 2];
#pragma unroll 1
    for (int part = 0; part < parts; part++) {
      finish_window(warpgroup);
      if (part + 1 < parts) load_window(item, part + 1, buffer ^ 1);
      else if (turn + 1 < turns) load_window(item + (int)gridDim.x, 0, buffer ^ 1);
      begin_products();
      const u64 shifted = operand(windows + buffer * pitch * CHUNK * 2, pitch * 16);
#pragma unroll 1
      for (int step = 0; step < 2 * taps; step++) {
        const u64 b = operand(stages.acquire(), N * 16), a = shifted + (step >> 1) * dilation + (step & 1) * 4 * pitch;
        multiply(sums, a, b, part + step > 0);
        multiply(sums, a + 2 * pitch, b + 2 * N, 1);
        commit_products();
        stages.advance();
      }
      wait_for_products<0>();
      stages.release();
      buffer ^= 1;
    }
    uint4 residual[PREFETCHED][2];
#pragma unroll
    for (int q = 0; q < PREFETCHED; q++)
#pragma unroll
      for (int half = 0; half < 2; half++)
        residual[q][half] = add ? load_once(add + line + q * 32 + half * 8 * width) : make_uint4(0, 0, 0, 0);
    finish_products(sums);
    if (tile >= num_tiles) continue;
    const int missing = absent ? (int)absent[stored / tiles_per_stream] : 0;
    const int column = (tile % tiles_per_stream) * TILE_ROWS + row;
#pragma unroll
    for (int q = 0; q < QUARTERS; q++) {
      const Coefficients c = load_coefficients(coefficients + first_column + q * 32 + quad * 8, width);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const uint4 added = residual[q % PREFETCHED][half];
        const long long at = line + q * 32 + half * 8 * width;
        if (q + PREFETCHED < QUARTERS && add) residual[q % PREFETCHED][half] = load_once(add + at + PREFETCHED * 32);
        store_channels(sums + q * 16 + half * 2, c, added, (column + half * 8) * upsampling >= missing,
                       raw ? raw + at : nullptr, act + at);
      }
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
  constexpr int STAGE = 32 * N * 2, NUM_STAGES = 2 * INPUTS / 32, WINDOW = TILE_ROWS + 1, PITCH = WINDOW | 1;
  SHARED_MEMORY;
  const int warpgroups = blockDim.x / 128, warpgroup = threadIdx.x / 128, lane = threadIdx.x % 32;
  const int phase = (int)blockIdx.x % rate, group = (int)blockIdx.x / rate, groups = (int)gridDim.x / rate;
  const int tiles_per_stream = columns / TILE_ROWS, num_items = (num_tiles + warpgroups - 1) / warpgroups;
  const int turns = (num_items - group + groups - 1) / groups, width = rate * N;
  float *values = (float *)(memory + BARRIER_BYTES);
  const unsigned barriers = shared_address(memory), first_stage = barriers + BARRIER_BYTES + 3 * N * 4;
  const unsigned windows = first_stage + NUM_STAGES * STAGE + warpgroup * PITCH * INPUTS * 4;  // two of each warpgroup

  Stages<NUM_STAGES, STAGE> stages(weights, barriers, first_stage, NUM_STAGES, 1, rate);
  for (int i = threadIdx.x; i < 3 * N; i += blockDim.x) values[i] = coefficients[i / N * width + phase * N + i % N];
  __syncthreads();
  auto load_window = [&](int tile, int buffer) {
    tile = min(tile, num_tiles - 1);
    const int stream = tile / tiles_per_stream;
    copy_window<INPUTS>(windows + buffer * PITCH * INPUTS * 2, x + (long long)stream * columns * INPUTS,
                        state + (slots[stream] + 1) * INPUTS, (tile % tiles_per_stream) * TILE_ROWS - 1, WINDOW, PITCH,
                        INPUTS);
  };
  load_window(group * warpgroups + warpgroup, 0);
  for (int i = 0; i < NUM_STAGES; i++) barrier_wait(stages.full + 8 * i, 0);

#pragma unroll 1
  for (int turn = 0; turn < turns; turn++) {
    const int tile = (group + turn * groups) * warpgroups + warpgroup, buffer = turn & 1;
    float sums[N / 2];
    finish_window(warpgroup);
    if (turn + 1 < turns) load_window(tile + groups * warpgroups, buffer ^ 1);
    begin_products();
    const u64 a = operand(windows + buffer * PITCH * INPUTS * 2, PITCH * 16), b = operand(first_stage, N * 16);
#pragma unroll
    for (int tap = 0; tap < 2; tap++)
#pragma unroll
      for (int k = 0; k < INPUTS / 16; k++)
        multiply(sums, a + tap + k * 2 * PITCH, b + (tap * (INPUTS / 16) + k) * 2 * N, tap + k > 0);
    commit_products();
    finish_products(sums);
    if (tile >= num_tiles) continue;

    const int quad = lane % 4, row = (threadIdx.x % 128) / 32 * 16 + lane / 4;
    const int missing = absent ? (int)absent[tile / tiles_per_stream] : 0;
    const int column = (tile % tiles_per_stream) * TILE_ROWS + row;
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

#define RESIDUAL_UNIT(C, RESIDENT)                                                                                    \
  extern "C" __global__ void __launch_bounds__(MAX_WARPGROUPS * 128, 1) residual_unit_##C(                            \
      const half_bits *active, const half_bits *x, const half_bits *state, const long long *slots,                    \
      const half_bits *weights, const float *coefficients, half_bits *raw, half_bits *act, const long long *absent,   \
      int num_tiles, int columns, int dilation) {                                                                     \
    residual_unit<C, RESIDENT>(active, x, state, slots, weights, coefficients, raw, act, absent, num_tiles, columns,  \
                               dilation);                                                                             \
  }
RESIDUAL_UNIT(96, true)
RESIDUAL_UNIT(192, false)

extern "C" __global__ void __launch_bounds__(MAX_WARPGROUPS * 128, 1) convolution_192(
    const half_bits *x, const half_bits *state, const long long *slots, const half_bits *weights,
    const float *coefficients, const half_bits *add, half_bits *raw, half_bits *act, const long long *absent,
    int num_tiles, int columns, int inputs, int width, int taps, int dilation, int upsampling) {
  convolution<192>(x, state, slots, weights, coefficients, add, raw, act, absent, num_tiles, columns, inputs, width,
                   taps, dilation, upsampling);
}

extern "C" __global__ void __launch_bounds__(MAX_WARPGROUPS * 128, 1) upsampling_192_96(
    const half_bits *x, const half_bits *state, const long long *slots, const half_bits *weights,
    const float *coefficients, half_bits *raw, half_bits *act, const long long *absent, int num_tiles, int columns,
    int rate) {
  upsampling<192, 96>(x, state, slots, weights, coefficients, raw, act, absent, num_tiles, columns, rate);
}
