// SPDX-License-Identifier: Apache-2.0
// Decode attention whose keys and values come to shared memory by bulk copies. The launcher and the contract are in
// prefetch_attention.py. tests/conformance/test_decode_attention_on_cpu.py runs this file on a CPU.
//
// A program computes one row and KV head, with its two query heads, after another. Its warps take the pages of the
// past in turn and keep a running softmax each. A warp copies its next pages to shared memory ahead, also those of the
// next row. At the end of a row the warps add up their parts through shared memory. Few rows have a cluster of SPLITS
// programs each, which divide the pages and add up their parts in the same way.
//
// 16 threads have a position, 8 dimensions each, so a load has two positions: thread `lane` of a warp has dimensions
// lane % 16 * 8 of positions 2·i + lane / 16 of its page, for 8 loads i. Eight threads copy the scales of a
// page, 16 bytes each: a small bulk copy would take about 70 cycles.

#include "warps.cuh"
#include "overlap.cuh"
#include "bfloat16.cuh"
#include "barriers.cuh"
#include "attention.cuh"
#include "async_copies.cuh"
#include "quantized_rows.cuh"

constexpr int DIM = 128, GROUP = 2, PAGE = 16;
constexpr int WARPS = 8;
constexpr int LOADS = PAGE / 2;
constexpr int PART = 8;  // dimensions of a thread
constexpr int SUMS = GROUP * DIM + 2 * GROUP;  // floats that a warp hands over: sums, maxima and denominators
constexpr float LOWEST = -1e30f;

// Everything that needs the hardware; a test replaces it by functions for a CPU.
#ifdef ON_CPU
#include "prefetch_attention_on_cpu.hpp"
#else
// A value in the memory of the cluster's first program.
__device__ __forceinline__ void store_first(float *at, float value) {
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, 0;\n"
               "st.shared::cluster.f32 [there], %1;\n}" ::"r"(shared_address(at)), "f"(value) : "memory");
}
#endif

// A page of a KV head in shared memory: keys, values, the scales of the keys and those of the values.
template <int TYPE> struct Slot {
  static constexpr int ITEM_SIZE = TYPE == BF16 ? 2 : 1;
  static constexpr int PAGE_BYTES = PAGE * DIM * ITEM_SIZE, SCALE_BYTES = TYPE == BF16 ? 0 : PAGE * 4;
  static constexpr int AT_SCALES = 2 * PAGE_BYTES, BYTES = AT_SCALES + 2 * SCALE_BYTES;
};

struct Part {  // a thread's dimensions of a head
  float value[PART];
};
__device__ __forceinline__ Part unpack(uint4 row) {
  return {{low(row.x), high(row.x), low(row.y), high(row.y), low(row.z), high(row.z), low(row.w), high(row.w)}};
}
__device__ __forceinline__ float dot(const Part &a, const Part &b) {
  float even = a.value[0] * b.value[0], odd = a.value[1] * b.value[1];
#pragma unroll
  for (int i = 2; i < PART; i += 2) even += a.value[i] * b.value[i], odd += a.value[i + 1] * b.value[i + 1];
  return even + odd;
}
__device__ __forceinline__ float sum_of_16(float value) {
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) value += shuffle_xor(value, offset);
  return value;
}

struct Arguments {
  const bits16 *qkv, *query_gain, *key_gain, *cos, *sin;
  unsigned char *keys, *values;
  float *key_scales, *value_scales;  // [P, KVH, PAGE], of a quantised cache
  const long long *tables, *slots, *positions;
  bits16 *out;
  int rows, kv_heads, qkv_row, page_stride, position_stride, head_stride, table_row;
  float eps, scale;
};

// Norm and rotation of a head.
__device__ __forceinline__ Part rotate(uint4 head, const bits16 *gains, uint4 cos, uint4 sin, float eps) {
  const Part x = unpack(head), gain = unpack(*(const uint4 *)gains), by_cos = unpack(cos), by_sin = unpack(sin);
  const float scale = rsqrtf(sum_of_16(dot(x, x)) / DIM + eps);
  Part made;
#pragma unroll
  for (int i = 0; i < PART; i++) {
    const float normed = rounded_float(gain.value[i] * rounded_float(x.value[i] * scale));
    const float partner = shuffle_xor(normed, 8);
    made.value[i] = rounded_float(rounded_float(normed * by_cos.value[i]) + rounded_float(partner * by_sin.value[i]));
  }
  return made;
}

// A head as bytes, with the roundings of kv_quantize.py; becomes what these bytes and the scale mean.
template <int TYPE> __device__ __forceinline__ uint2 quantize(Part &head, float &scale) {
  float largest = 0.f;
#pragma unroll
  for (int i = 0; i < PART; i++) largest = fmaxf(largest, fabsf(head.value[i]));
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) largest = fmaxf(largest, shuffle_xor(largest, offset));
  const float factor = factor_of_row<TYPE>(largest, scale);
  const uint2 bytes = make_uint2(to_bytes<TYPE>(head.value, factor), to_bytes<TYPE>(head.value + 4, factor));
  from_bytes<TYPE>(bytes.x, head.value), from_bytes<TYPE>(bytes.y, head.value + 4);
#pragma unroll
  for (int i = 0; i < PART; i++) head.value[i] *= scale;
  return bytes;
}

// One step of the sums of 16 values over 16 threads: in the end a thread has the sum of value lane % 16.
template <int HALF> __device__ __forceinline__ void halve(float (&sums)[GROUP * LOADS], int lane) {
  const bool upper = lane & HALF;
#pragma unroll
  for (int i = 0; i < HALF; i++) {
    const float kept = upper ? sums[i + HALF] : sums[i], sent = upper ? sums[i] : sums[i + HALF];
    sums[i] = kept + shuffle_xor(sent, HALF);
  }
}

// The running softmax of a warp. Threads with lane & 8 have the maximum and a part of the denominator of the second
// head, the others those of the first; all have a part of the sums of both.
struct Softmax {
  float maximum, denominator, sums[GROUP][PART];
};

// Keys or values of a page, without their scales; positions from `count` on do not exist.
template <int TYPE, bool FULL>
__device__ __forceinline__ Part load(const unsigned char *page, int i, int lane, int count) {
  const bool exists = FULL || 2 * i + lane / 16 < count;
  if (TYPE == BF16) {
    uint4 row = *(const uint4 *)(page + i * 2 * DIM * 2 + lane * 16);
    if (!exists) row = make_uint4(0, 0, 0, 0);
    return unpack(row);
  }
  uint2 row = *(const uint2 *)(page + i * 2 * DIM + lane * 8);
  if (!exists) row = make_uint2(0, 0);
  Part made;
  from_bytes<TYPE>(row.x, made.value), from_bytes<TYPE>(row.y, made.value + 4);
  return made;
}

template <int TYPE, bool FULL> __device__ __forceinline__ void attend(
    Softmax &state, const Part (&queries)[GROUP], const unsigned char *slot, int lane, int count, float scale) {
  float scores[GROUP * LOADS];  // [head][load]
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    const Part key = load<TYPE, FULL>(slot, i, lane, count);
#pragma unroll
    for (int h = 0; h < GROUP; h++) scores[h * LOADS + i] = dot(queries[h], key);
  }
  halve<8>(scores, lane), halve<4>(scores, lane), halve<2>(scores, lane), halve<1>(scores, lane);
  // Now a thread has the score of one head and one position.
  const int position = 2 * (lane % LOADS) + lane / 16;
  const bool exists = FULL || position < count;
  const float *scales = (const float *)(slot + Slot<TYPE>::AT_SCALES) + position;
  if (TYPE != BF16) scale *= scales[0];
  const float score = exists ? scores[0] * scale : LOWEST;
  float maximum = fmaxf(state.maximum, score);
  maximum = fmaxf(maximum, shuffle_xor(maximum, 1));
  maximum = fmaxf(maximum, shuffle_xor(maximum, 2));
  maximum = fmaxf(maximum, shuffle_xor(maximum, 4));
  maximum = fmaxf(maximum, shuffle_xor(maximum, 16));
  const float rescale = power_of_2(state.maximum - maximum), other = shuffle_xor(rescale, 8);
  float weight = exists ? power_of_2(score - maximum) : 0.f;
  state.maximum = maximum;
  state.denominator = state.denominator * rescale + weight;
  if (TYPE != BF16) weight *= exists ? scales[PAGE] : 0.f;
  const float rescales[GROUP] = {lane & 8 ? other : rescale, lane & 8 ? rescale : other};
#pragma unroll
  for (int h = 0; h < GROUP; h++)
#pragma unroll
    for (int j = 0; j < PART; j++) state.sums[h][j] *= rescales[h];
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    const Part value = load<TYPE, FULL>(slot + Slot<TYPE>::PAGE_BYTES, i, lane, count);
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
      const float of = from_lane(weight, (lane & 16) + h * LOADS + i);
#pragma unroll
      for (int j = 0; j < PART; j++) state.sums[h][j] += of * value.value[j];
    }
  }
}

struct Row {
  int index, head, last;  // last: its position
  long long slot;
};

struct Joined {  // parts of a head
  float maximum, denominator, sum;
};

template <int TYPE, int SPLITS> struct AttentionProgram {
  // Pages of a warp that are in shared memory or on the way: prefetch_attention.py computes the same number.
  static constexpr int AHEAD = TYPE == BF16 && SPLITS >= 4 ? 1 : 2;
  static constexpr int PAGE_BYTES = Slot<TYPE>::PAGE_BYTES, ITEM_SIZE = Slot<TYPE>::ITEM_SIZE;
  static constexpr int SCALE_LANES = PAGE / 4;  // copy the scales of a page's keys; as many copy those of its values
  static constexpr int AT_SUMS = WARPS * AHEAD * Slot<TYPE>::BYTES, AT_BARRIERS = AT_SUMS + 2 * WARPS * SUMS * 4;
  static constexpr int STRIDE = WARPS * SPLITS;  // pages between two of a warp
  static_assert(SPLITS <= WARPS, "the parts of a cluster need no more memory than those of a program");

  const Arguments &given;
  unsigned char *memory;
  int warp, lane, column, rank, items, step;

  __device__ AttentionProgram(const Arguments &given, unsigned char *memory) : given(given), memory(memory) {
    warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = lane % 16 * PART;
    rank = blockIdx.x % SPLITS, items = given.rows * given.kv_heads, step = gridDim.x / SPLITS;
  }
  __device__ unsigned char *slot(int index) { return memory + (warp * AHEAD + index) * Slot<TYPE>::BYTES; }
  __device__ unsigned copied(int index) { return shared_address(memory + AT_BARRIERS) + (warp * AHEAD + index) * 8; }
  // Of a part, for rows of even or odd index among those of the program: heads, then maxima and denominators.
  __device__ float *sums(int index, int part) {
    return (float *)(memory + AT_SUMS) + (index % 2 * WARPS + part) * SUMS;
  }

  __device__ __forceinline__ Row find(int item) {
    const int index = min(item, items - 1) / given.kv_heads;
    return {index, item % given.kv_heads, (int)given.positions[index], given.slots[index]};
  }

  // The pages of this warp, row after row.
  struct Cursor {
    Row row;
    int item, page;
  };
  __device__ __forceinline__ void skip_rows(Cursor &at) {  // that have no page for this warp
    while (at.item < items && at.page * PAGE >= at.row.last) {
      at.item += step, at.page = warp * SPLITS + rank;
      if (at.item < items) at.row = find(at.item);
    }
  }
  // Index of the scale of a page's first position.
  __device__ __forceinline__ long long scales_of(long long page, int head) {
    return (page * given.kv_heads + head) * PAGE;
  }
  // Earlier frames wrote the past: there is nothing to wait for.
  __device__ __forceinline__ void copy_page(Cursor &at, int index, const TensorMap &keys, const TensorMap &values) {
    if (lane < (TYPE == BF16 ? 1 : 2 * SCALE_LANES)) {
      const int page = (int)given.tables[at.row.slot * given.table_row + at.page];
      const unsigned to = shared_address(slot(index));
      if (TYPE != BF16) {
        const float *scales = lane < SCALE_LANES ? given.key_scales : given.value_scales;
        scales += scales_of(page, at.row.head) + lane % SCALE_LANES * 4;
        copy_16_bytes(to + Slot<TYPE>::AT_SCALES + lane * 16, scales);
      }
      if (lane == 0) {
        arrive_expecting(copied(index), 2 * PAGE_BYTES);
        copy_box(to, keys, at.row.head * DIM, page * PAGE, copied(index));
        copy_box(to + PAGE_BYTES, values, at.row.head * DIM, page * PAGE, copied(index));
      }
    }
    at.page += STRIDE;
    skip_rows(at);
  }
  // The warp's next page, if there is one.
  __device__ __forceinline__ void copy_next(Cursor &at, int index, const TensorMap &keys, const TensorMap &values) {
    if (at.item < items) copy_page(at, index, keys, values);
    if (TYPE != BF16) commit_copies();
  }

  __device__ __forceinline__ void run(const TensorMap &keys, const TensorMap &values) {
    if (lane == 0) {
      for (int i = 0; i < AHEAD; i++) init_barrier(copied(i), 1);
      fence_barriers();
    }
    sync_warp();
    if (SPLITS > 1) sync_cluster();  // no program writes to another one that has not started
    Row row = find(blockIdx.x / SPLITS);
    Cursor ahead = {row, (int)blockIdx.x / SPLITS, warp * SPLITS + rank};
    skip_rows(ahead);
#pragma unroll
    for (int i = 0; i < AHEAD; i++) copy_next(ahead, i, keys, values);

    int used = 0, index = 0;  // pages, rows
    for (int item = blockIdx.x / SPLITS; item < items; item += step, index++) {
      const int pages = (row.last + PAGE - 1) / PAGE;
      const bool is_last = rank == pages % SPLITS && warp == pages / SPLITS % WARPS;  // also attends to the row itself
      long long own = 0, own_scale = 0;  // where the cache has it
      if (is_last) {
        const long long page = given.tables[row.slot * given.table_row + row.last / PAGE];
        own = page * given.page_stride + row.last % PAGE * given.position_stride + row.head * given.head_stride + column;
        own_scale = scales_of(page, row.head) + row.last % PAGE;
      }
      const uint4 cos = *(const uint4 *)(given.cos + (long long)row.last * DIM + column);
      const uint4 sin = *(const uint4 *)(given.sin + (long long)row.last * DIM + column);
      if (index == 0) {
        wait_for_previous();
        start_next();
      }
      const bits16 *heads = given.qkv + (long long)row.index * given.qkv_row + column;
      const bits16 *own_head = heads + (GROUP * given.kv_heads + row.head) * DIM;
      const uint4 first = load_16_bytes(heads + GROUP * row.head * DIM), second = load_16_bytes(heads + (GROUP * row.head + 1) * DIM);
      uint4 own_key = make_uint4(0, 0, 0, 0), own_value = own_key;
      if (is_last) own_key = load_16_bytes(own_head), own_value = load_16_bytes(own_head + given.kv_heads * DIM);
      const Row next = find(item + step);
      const Part queries[GROUP] = {rotate(first, given.query_gain + column, cos, sin, given.eps),
                                   rotate(second, given.query_gain + column, cos, sin, given.eps)};
      Softmax state = {LOWEST, 0.f, {}};
      if (is_last) {
        Part key = rotate(own_key, given.key_gain + column, cos, sin, given.eps);
        Part value = unpack(own_value);
        if (TYPE == BF16) {
          begin(state, queries, key, value);
          if (lane < 16)
            *(uint4 *)(given.keys + own * ITEM_SIZE) =
                make_uint4(pack(key.value[0], key.value[1]), pack(key.value[2], key.value[3]),
                           pack(key.value[4], key.value[5]), pack(key.value[6], key.value[7]));
          else
            *(uint4 *)(given.values + own * ITEM_SIZE) = own_value;
        } else {
          float key_scale, value_scale;
          const uint2 key_bytes = quantize<TYPE>(key, key_scale), value_bytes = quantize<TYPE>(value, value_scale);
          begin(state, queries, key, value);
          *(uint2 *)((lane < 16 ? given.keys : given.values) + own) = lane < 16 ? key_bytes : value_bytes;
          if (lane == 0) given.key_scales[own_scale] = key_scale, given.value_scales[own_scale] = value_scale;
        }
      }
      for (int page = warp * SPLITS + rank; page < pages; page += STRIDE, used++) {
        const int at = used % AHEAD, count = min(PAGE, row.last - page * PAGE);
        if (TYPE != BF16) wait_for_copies<AHEAD - 1>();
        wait_barrier(copied(at), used / AHEAD % 2);
        sync_warp();
        if (count == PAGE)
          attend<TYPE, true>(state, queries, slot(at), lane, count, given.scale);
        else
          attend<TYPE, false>(state, queries, slot(at), lane, count, given.scale);
        sync_warp();
        copy_next(ahead, at, keys, values);
      }
      hand_over(state, index);
      sync_program();
      finish(row, index);
      row = next;
    }
  }

  // The softmax over the row's own position.
  __device__ __forceinline__ void begin(Softmax &state, const Part (&queries)[GROUP], const Part &key, const Part &value) {
    const float scores[GROUP] = {sum_of_16(dot(queries[0], key)), sum_of_16(dot(queries[1], key))};
    state.maximum = (lane & 8 ? scores[1] : scores[0]) * given.scale;
    state.denominator = lane % 8 == 0 && lane < 16 ? 1.f : 0.f;
#pragma unroll
    for (int h = 0; h < GROUP; h++)
#pragma unroll
      for (int j = 0; j < PART; j++) state.sums[h][j] = lane < 16 ? value.value[j] : 0.f;
  }

  __device__ __forceinline__ void hand_over(Softmax &state, int index) {
    float *to = sums(index, warp);
    float made[PART];  // of one head; the other half of the warp has the other
#pragma unroll
    for (int j = 0; j < PART; j++) {
      const float kept = lane < 16 ? state.sums[0][j] : state.sums[1][j];
      const float sent = lane < 16 ? state.sums[1][j] : state.sums[0][j];
      made[j] = kept + shuffle_xor(sent, 16);
    }
    float *row = to + lane / 16 * DIM + column;
    *(float4 *)row = make_float4(made[0], made[1], made[2], made[3]);
    *(float4 *)(row + 4) = make_float4(made[4], made[5], made[6], made[7]);
    float denominator = state.denominator;
    denominator += shuffle_xor(denominator, 1);
    denominator += shuffle_xor(denominator, 2);
    denominator += shuffle_xor(denominator, 4);
    denominator += shuffle_xor(denominator, 16);
    if (lane < 16 && lane % 8 == 0) {
      to[GROUP * DIM + lane / 8] = state.maximum;
      to[GROUP * DIM + GROUP + lane / 8] = denominator;
    }
  }

  // A dimension of a head per thread, joined from the parts of a program or of a cluster.
  template <int PARTS> __device__ __forceinline__ Joined join(int index) {
    const int head = threadIdx.x / DIM;
    Joined made = {LOWEST, 0.f, 0.f};
#pragma unroll
    for (int i = 0; i < PARTS; i++) made.maximum = fmaxf(made.maximum, sums(index, i)[GROUP * DIM + head]);
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
      const float *part = sums(index, i), rescale = power_of_2(part[GROUP * DIM + head] - made.maximum);
      made.sum += rescale * part[threadIdx.x];
      made.denominator += rescale * part[GROUP * DIM + GROUP + head];
    }
    return made;
  }
  __device__ __forceinline__ void finish(const Row &row, int index) {
    Joined made = join<WARPS>(index);
    if (SPLITS > 1) {  // a cluster has one row only: the memory of the next one is free
      const int head = threadIdx.x / DIM;
      float *to = sums(1, rank);
      store_first(to + threadIdx.x, made.sum);
      if (threadIdx.x % DIM == 0) {
        store_first(to + GROUP * DIM + head, made.maximum);
        store_first(to + GROUP * DIM + GROUP + head, made.denominator);
      }
      sync_cluster();
      if (rank > 0) return;
      made = join<SPLITS>(1);
    }
    given.out[((long long)row.index * given.kv_heads + row.head) * GROUP * DIM + threadIdx.x] =
        rounded(made.sum / made.denominator);
  }
};
static_assert(WARPS * 32 == GROUP * DIM, "a thread for each output");

#define ATTENTION(NAME, TYPE, SPLITS)                                                                                 \
  extern "C" __global__ void __launch_bounds__(32 * WARPS) __cluster_dims__(SPLITS, 1, 1)                             \
  attention_##NAME##_##SPLITS(                                                                                        \
      const bits16 *qkv, const bits16 *query_gain, const bits16 *key_gain, const bits16 *cos, const bits16 *sin,      \
      unsigned char *keys, unsigned char *values, float *key_scales, float *value_scales, const long long *tables,    \
      const long long *slots, const long long *positions, bits16 *out, int rows, int kv_heads, int qkv_row,           \
      int page_stride, int position_stride, int head_stride, int table_row, float eps, float scale,                   \
      const __grid_constant__ TensorMap key_map, const __grid_constant__ TensorMap value_map) {                       \
    SHARED_MEMORY(memory);                                                                                            \
    const Arguments given = {qkv, query_gain, key_gain, cos, sin, keys, values, key_scales, value_scales, tables,     \
                             slots, positions, out, rows, kv_heads, qkv_row, page_stride, position_stride,            \
                             head_stride, table_row, eps, scale};                                                     \
    AttentionProgram<TYPE, SPLITS>(given, memory).run(key_map, value_map);                                            \
  }
#define ATTENTION_OF_ALL_TYPES(SPLITS) \
  ATTENTION(bf16, BF16, SPLITS) ATTENTION(int8, INT8, SPLITS) ATTENTION(fp8, FP8, SPLITS)
ATTENTION_OF_ALL_TYPES(1)
ATTENTION_OF_ALL_TYPES(2)
ATTENTION_OF_ALL_TYPES(4)
ATTENTION_OF_ALL_TYPES(8)
