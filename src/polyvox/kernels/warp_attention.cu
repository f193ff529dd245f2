// SPDX-License-Identifier: Apache-2.0
// Decode attention of large batches with tensor cores: the launcher and the contract are in warp_attention.py.
// tests/conformance/test_warp_attention_on_cpu.py runs this file on a CPU.
//
// A warp has one row and KV head with its two query heads; with fewer warps, as in tests, they take these in turn. Pages
// of 16 positions are copied to the warp's part of shared memory, STAGES - 1 steps ahead. Keys times queries are products
// of 16 positions × 8 columns, of which two are query heads; the sums of values are 16 dimensions × 8 columns. Rows in
// shared memory are swizzled: chunk c of 16 bytes of row p is at c ^ p % 8.

#include "warps.cuh"
#include "overlap.cuh"
#include "bfloat16.cuh"
#include "attention.cuh"
#include "async_copies.cuh"
#include "quantized_rows.cuh"

constexpr int DIM = 128, GROUP = 2, PAGE = 16, KV_HEADS = 8;
constexpr int STAGES = 3, STEPS = DIM / 16;  // in shared memory; products of 16 dimensions
constexpr float WEIGHT_SCALE = 64.f;         // of weights in float16 times the scales of values: few are subnormal

// Everything that needs the hardware; a test replaces it by functions for a CPU.
#ifdef ON_CPU
#include "warp_attention_on_cpu.hpp"
#else
__device__ __forceinline__ unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void load_matrices(unsigned (&m)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_transposed(unsigned (&m)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ unsigned transpose(unsigned row) {
  unsigned made;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(made) : "r"(row));
  return made;
}
template <int TYPE>
__device__ __forceinline__ void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if (TYPE == BF16)
    multiply(d, a[0], a[1], a[2], a[3], b0, b1);
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ unsigned pack_halves(float low, float high) {  // float16
  unsigned packed;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ __forceinline__ unsigned subtract_halves(unsigned a, unsigned b) {
  unsigned made;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(made) : "r"(a), "r"(b));
  return made;
}
__device__ __forceinline__ int from_lane(int value, int lane) { return __shfl_sync(0xFFFFFFFF, value, lane); }
__device__ __forceinline__ bool any_lane(bool value) { return __any_sync(0xFFFFFFFF, value); }
#define SHARED_MEMORY extern __shared__ __align__(128) unsigned char memory[]
#define MINUS_INFINITY (-__int_as_float(0x7F800000))
#endif

__device__ __forceinline__ float nearest(float value) { return low(pack(value, 0.f)); }  // bfloat16

// Norm and rotation of a head, of which a thread has 4 dimensions, with the roundings of rotary.py.
__device__ __forceinline__ uint2 rotate(uint2 head, uint2 gain, uint2 cos, uint2 sin, float eps) {
  const float x[4] = {low(head.x), high(head.x), low(head.y), high(head.y)};
  const float factor[4] = {low(gain.x), high(gain.x), low(gain.y), high(gain.y)};
  const float by_cos[4] = {low(cos.x), high(cos.x), low(cos.y), high(cos.y)};
  const float by_sin[4] = {low(sin.x), high(sin.x), low(sin.y), high(sin.y)};
  float square = (x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3]), made[4];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) square += shuffle_xor(square, offset);
  const float scale = rsqrtf(square / DIM + eps);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float normed = nearest(factor[i] * nearest(x[i] * scale)), partner = shuffle_xor(normed, 16);
    made[i] = nearest(normed * by_cos[i]) + nearest(partner * by_sin[i]);
  }
  return make_uint2(pack(made[0], made[1]), pack(made[2], made[3]));
}

// A thread's 4 dimensions of a head as bytes, with the roundings of kv_quantize.py.
template <int TYPE>
__device__ __forceinline__ unsigned quantize(uint2 head, float &scale) {
  const float x[4] = {low(head.x), high(head.x), low(head.y), high(head.y)};
  float largest = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) largest = fmaxf(largest, shuffle_xor(largest, offset));
  return to_bytes<TYPE>(x, factor_of_row<TYPE>(largest, scale));
}
// Two bytes of a word as float16: the lower or upper two, or the even or odd ones.
constexpr unsigned LOWER = 0x4140, UPPER = 0x4342, EVEN = 0x4240, ODD = 0x4341;
template <int TYPE, unsigned BYTES>
__device__ __forceinline__ unsigned to_halves(unsigned word) {
  if (TYPE == FP8) {
    if (BYTES == LOWER) return float8_to_halves(word);
    return float8_to_halves(select_bytes(word, 0, BYTES == UPPER ? 0x32 : BYTES == EVEN ? 0x20 : 0x31));
  }
  // A byte plus 128 is the mantissa of a float16 from 1,024 on.
  return subtract_halves(select_bytes(word ^ 0x80808080u, 0x64646464u, BYTES), 0x64806480u);
}

struct Cache {
  unsigned char *keys, *values;      // [P, PAGE, KV_HEADS, DIM]
  float *key_scales, *value_scales;  // [P, KV_HEADS, PAGE], of a quantised cache
  const long long *tables, *slots, *positions;
  int table_row;
};

template <int TYPE> struct Attention {
  static constexpr int PAGES = TYPE == BF16 ? 1 : 2;                                 // of a step
  static constexpr int ROW = TYPE == BF16 ? DIM * 2 : DIM, PAGE_BYTES = PAGE * ROW;  // bytes of a head
  static constexpr int CHUNKS = ROW / 16, ROWS = 32 / CHUNKS;                        // copied by a warp at once
  static constexpr int SCALES = TYPE == BF16 ? 0 : PAGE * 4;
  static constexpr int SUB = 2 * PAGE_BYTES + 2 * SCALES, STAGE = PAGES * SUB;  // keys, values and their scales
  static constexpr long long POSITION_STRIDE = KV_HEADS * ROW, PAGE_STRIDE = PAGE * POSITION_STRIDE;

  const Cache &cache;
  const int items, stride, lane;

  // What is copied next: this page of an item. Lane i has entry page - page % 32 + i of the slot's table in `pages`.
  int item, page, position, pages, slot;
  int next_position, next_slot, next_pages;  // of the item after it

  __device__ __forceinline__ int load_pages(int of_slot, int of_position, int from) {
    return (int)cache.tables[(long long)of_slot * cache.table_row + min(from + lane, of_position / PAGE)];
  }
  __device__ __forceinline__ void begin(int first) {
    item = first, page = 0;
    position = (int)cache.positions[item / KV_HEADS], slot = (int)cache.slots[item / KV_HEADS];
    pages = load_pages(slot, position, 0);
  }
  __device__ __forceinline__ void copy_page(unsigned to, int number) {
    const int past = position - number * PAGE;  // positions of this page that earlier passes wrote
    const long long index = from_lane(pages, number % 32), head = item % KV_HEADS;
    const long long at = index * PAGE_STRIDE + head * ROW + lane / CHUNKS * POSITION_STRIDE + lane % CHUNKS * 16;
    const unsigned char *keys = cache.keys + at, *values = cache.values + at;
#pragma unroll
    for (int i = 0; i < PAGE / ROWS; i++) {
      const int p = ROWS * i + lane / CHUNKS;
      const unsigned there = to + p * ROW + ((lane % CHUNKS ^ p % 8) * 16);
      if (past >= PAGE) {
        copy_16_bytes(there, keys + i * ROWS * POSITION_STRIDE);
        copy_16_bytes(there + PAGE_BYTES, values + i * ROWS * POSITION_STRIDE);
      } else {
        copy_or_clear(there, keys + i * ROWS * POSITION_STRIDE, p < past);
        copy_or_clear(there + PAGE_BYTES, values + i * ROWS * POSITION_STRIDE, p < past);
      }
    }
    if (TYPE != BF16 && lane < PAGE / 2) {  // 4 scales of each
      const float *scales = lane < PAGE / 4 ? cache.key_scales : cache.value_scales;
      scales += (index * KV_HEADS + head) * PAGE + lane % (PAGE / 4) * 4;
      copy_or_clear(to + 2 * PAGE_BYTES + lane * 16, scales, past > 0);
    }
  }
  // Copies the next step of PAGES pages, if there is one, and looks up the pages of the item after this one.
  __device__ __forceinline__ void copy(unsigned to) {
    if (item < items) {
      if (page % 32 == 0 && page > 0) pages = load_pages(slot, position, page);
#pragma unroll
      for (int i = 0; i < PAGES; i++) copy_page(to + i * SUB, page + i);
      const int last = position / PAGE, next = item + stride;
      if (page == 0 && next < items)
        next_position = (int)cache.positions[next / KV_HEADS], next_slot = (int)cache.slots[next / KV_HEADS];
      page += PAGES;
      if ((page == 2 * PAGES || (page == PAGES && page > last)) && next < items)
        next_pages = load_pages(next_slot, next_position, 0);
      if (page > last) item = next, page = 0, position = next_position, slot = next_slot, pages = next_pages;
    }
    commit_copies();
  }

  static __device__ __forceinline__ void score(
      float (&scores)[2][4], unsigned keys, unsigned at, const unsigned (&queries)[STEPS][2]) {
    if (TYPE == BF16) {
#pragma unroll
      for (int i = 0; i < STEPS; i++) {
        unsigned a[4];
        load_matrices(a, keys + (at ^ i * 32));
        multiply<TYPE>(scores[i % 2], a, queries[i][0], queries[i][1]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < STEPS; i += 2) {
        unsigned m[4];
        load_matrices(m, keys + (at ^ i * 16));
#pragma unroll
        for (int j = 0; j < 2; j++) {
          const unsigned a[4] = {to_halves<TYPE, LOWER>(m[2 * j]), to_halves<TYPE, LOWER>(m[2 * j + 1]),
                                 to_halves<TYPE, UPPER>(m[2 * j]), to_halves<TYPE, UPPER>(m[2 * j + 1])};
          multiply<TYPE>(scores[j], a, queries[i + j][0], queries[i + j][1]);
        }
      }
    }
  }
  static __device__ __forceinline__ void add_values(
      float (&sums)[STEPS][4], unsigned values, unsigned at, unsigned upper, unsigned lower) {
    if (TYPE == BF16) {
#pragma unroll
      for (int i = 0; i < STEPS; i++) {
        unsigned a[4];
        load_transposed(a, values + (at ^ i * 32));
        multiply<TYPE>(sums[i], a, upper, lower);
      }
    } else {
#pragma unroll
      for (int i = 0; i < STEPS; i += 2) {
        unsigned m[4];
        load_transposed(m, values + (at ^ i * 16));
#pragma unroll
        for (int j = 0; j < 2; j++) {  // rows of the product: even, then odd dimensions
          const unsigned a[4] = {to_halves<TYPE, EVEN>(m[2 * j]), to_halves<TYPE, ODD>(m[2 * j]),
                                 to_halves<TYPE, EVEN>(m[2 * j + 1]), to_halves<TYPE, ODD>(m[2 * j + 1])};
          multiply<TYPE>(sums[i + j], a, upper, lower);
        }
      }
    }
  }
};

template <int TYPE>
__device__ __forceinline__ void attention(
    const bits16 *qkv, const bits16 *query_gain, const bits16 *key_gain, const bits16 *cos, const bits16 *sin,
    const Cache &cache, bits16 *out, int rows, int qkv_row, float eps, float scale) {
  typedef Attention<TYPE> A;
  constexpr int PAGES = A::PAGES;
  SHARED_MEMORY;
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32, column = lane * 4;
  const int items = rows * KV_HEADS, stride = gridDim.x * warps;
  unsigned char *own = memory + threadIdx.x / 32 * STAGES * A::STAGE;
  const unsigned stages = shared_address(own);
  int item = blockIdx.x * warps + threadIdx.x / 32;
  if (item >= items) return;

  A loader{cache, items, stride, lane};
  loader.begin(item);
#pragma unroll
  for (int i = 0; i < STAGES - 1; i++) loader.copy(stages + i * A::STAGE);
  int next_position = (int)cache.positions[item / KV_HEADS], next_slot = (int)cache.slots[item / KV_HEADS];
  const uint2 of_query = *(const uint2 *)(query_gain + column), of_key = *(const uint2 *)(key_gain + column);
  wait_for_previous();

  uint2 first, second, new_key, new_value, by_cos, by_sin;
  int own_page;
  const auto load_item = [&](int of) {  // the row's own heads, its angles and its page
    const int head = of % KV_HEADS;
    const bits16 *heads = qkv + (long long)(of / KV_HEADS) * qkv_row + column;
    first = load_8_bytes(heads + GROUP * head * DIM), second = load_8_bytes(heads + (GROUP * head + 1) * DIM);
    new_key = load_8_bytes(heads + (GROUP * KV_HEADS + head) * DIM);
    new_value = load_8_bytes(heads + ((GROUP + 1) * KV_HEADS + head) * DIM);
    by_cos = *(const uint2 *)(cos + (long long)next_position * DIM + column);
    by_sin = *(const uint2 *)(sin + (long long)next_position * DIM + column);
    own_page = (int)cache.tables[(long long)next_slot * cache.table_row + next_position / PAGE];
  };
  load_item(item);

  // Where a lane's rows of 8 × 8 matrices begin: positions below and from 8 on, then the next chunk; of values in 16
  // bits the next chunk comes first.
  const unsigned key_at = ((lane / 8 % 2 * 8 + lane % 8) * A::ROW) | ((lane / 16 ^ lane % 8) * 16);
  const unsigned value_at =
      TYPE != BF16 ? key_at : ((lane / 16 * 8 + lane % 8) * A::ROW) | ((lane / 8 % 2 ^ lane % 8) * 16);
  int stage = 0, free = STAGES - 1;
  for (; item < items; item += stride) {
    const int position = next_position, last = position / PAGE, head = item % KV_HEADS, next = item + stride;
    if (next >= items) start_next();
    // Queries in the layout of products; the free stage passes them from the layout of the rotation.
    unsigned queries[STEPS][2];
    {
      unsigned char *passed = own + free * A::STAGE;
      __syncwarp();
      *(uint2 *)(passed + lane * 8) = rotate(first, of_query, by_cos, by_sin, eps);
      *(uint2 *)(passed + DIM * 2 + lane * 8) = rotate(second, of_query, by_cos, by_sin, eps);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < STEPS; i++) {
        uint2 words = make_uint2(0, 0);
        if (lane / 4 < GROUP) {
          const unsigned char *row = passed + lane / 4 * DIM * 2 + i * 32;
          if (TYPE == BF16)
            words = make_uint2(*(const unsigned *)(row + lane % 4 * 4), *(const unsigned *)(row + lane % 4 * 4 + 16));
          else
            words = *(const uint2 *)(row + lane % 4 * 8);
        }
        queries[i][0] = TYPE == BF16 ? words.x : pack_halves(low(words.x), high(words.x));
        queries[i][1] = TYPE == BF16 ? words.y : pack_halves(low(words.y), high(words.y));
      }
      __syncwarp();
    }
    // The row's own key and value, as the cache stores them.
    uint2 key = rotate(new_key, of_key, by_cos, by_sin, eps), value = new_value;
    float key_scale = 0.f, value_scale = 0.f;
    const long long at = own_page * A::PAGE_STRIDE + position % PAGE * A::POSITION_STRIDE + head * A::ROW;
    if (TYPE == BF16) {
      *(uint2 *)(cache.keys + at + lane * 8) = key, *(uint2 *)(cache.values + at + lane * 8) = value;
    } else {
      key.x = quantize<TYPE>(key, key_scale), value.x = quantize<TYPE>(value, value_scale);
      *(unsigned *)(cache.keys + at + lane * 4) = key.x, *(unsigned *)(cache.values + at + lane * 4) = value.x;
      const long long of = ((long long)own_page * KV_HEADS + head) * PAGE + position % PAGE;
      if (lane == 0) cache.key_scales[of] = key_scale, cache.value_scales[of] = value_scale;
    }

    float sums[STEPS][4], most[2] = {MINUS_INFINITY, MINUS_INFINITY}, total[2] = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < STEPS * 4; i++) sums[i / 4][i % 4] = 0.f;
    for (int page = 0; page <= last; page += PAGES) {
      wait_for_copies<STAGES - 2>();
      __syncwarp();
      const unsigned here = stages + stage * A::STAGE;
      if (page + PAGES > last) {
        const int p = position % PAGE;
        unsigned char *sub = own + stage * A::STAGE + (last - page) * A::SUB;
        if (TYPE == BF16) {
          unsigned char *row = sub + p * A::ROW + ((lane / 2 ^ p % 8) * 16) + lane % 2 * 8;
          *(uint2 *)row = key, *(uint2 *)(row + A::PAGE_BYTES) = value;
        } else {
          unsigned char *row = sub + p * A::ROW + ((lane / 4 ^ p % 8) * 16) + lane % 4 * 4;
          *(unsigned *)row = key.x, *(unsigned *)(row + A::PAGE_BYTES) = value.x;
          float *scales = (float *)(sub + 2 * A::PAGE_BYTES);
          if (lane == 0) scales[p] = key_scale, scales[PAGE + p] = value_scale;
        }
        __syncwarp();
      }

      float scores[PAGES][2][4];
#pragma unroll
      for (int u = 0; u < PAGES; u++) {
#pragma unroll
        for (int i = 0; i < 8; i++) scores[u][i / 4][i % 4] = 0.f;
        A::score(scores[u], here + u * A::SUB, key_at, queries);
      }
      loader.copy(stages + free * A::STAGE);
      if (page == 0 && next < items)
        next_position = (int)cache.positions[next / KV_HEADS], next_slot = (int)cache.slots[next / KV_HEADS];
      if (page + PAGES > last && next < items) load_item(next);

      // Rows lane / 4 and lane / 4 + 8 of each page, two columns.
      float weight[PAGES][4], factor[2], of_values[PAGES][2];
#pragma unroll
      for (int u = 0; u < PAGES; u++) {
        const int upper = position - (page + u) * PAGE - lane / 4;
        float of_keys[2] = {scale, scale};
        of_values[u][0] = of_values[u][1] = 1.f;
        if (TYPE != BF16) {
          const float *scales = (const float *)(own + stage * A::STAGE + u * A::SUB + 2 * A::PAGE_BYTES);
#pragma unroll
          for (int i = 0; i < 2; i++) {
            of_keys[i] = scale * scales[lane / 4 + 8 * i];
            of_values[u][i] = upper >= 8 * i ? WEIGHT_SCALE * scales[PAGE + lane / 4 + 8 * i] : 0.f;
          }
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
          weight[u][i] = upper >= i / 2 * 8 ? (scores[u][0][i] + scores[u][1][i]) * of_keys[i / 2] : MINUS_INFINITY;
      }
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float most_here = fmaxf(weight[0][i], weight[0][i + 2]);
#pragma unroll
        for (int u = 1; u < PAGES; u++) most_here = fmaxf(most_here, fmaxf(weight[u][i], weight[u][i + 2]));
#pragma unroll
        for (int offset = 4; offset < 32; offset *= 2) most_here = fmaxf(most_here, shuffle_xor(most_here, offset));
        most_here = fmaxf(most_here, most[i]);
        factor[i] = power_of_2(most[i] - most_here), most[i] = most_here;
        float sum = 0.f;
#pragma unroll
        for (int u = 0; u < PAGES; u++) {
          weight[u][i] = power_of_2(weight[u][i] - most_here);
          weight[u][i + 2] = power_of_2(weight[u][i + 2] - most_here);
          sum += weight[u][i] + weight[u][i + 2];
        }
        total[i] = total[i] * factor[i] + sum;
      }
      if (any_lane(factor[0] != 1.f || factor[1] != 1.f))
#pragma unroll
        for (int i = 0; i < STEPS * 4; i++) sums[i / 4][i % 4] *= factor[i % 2];
#pragma unroll
      for (int u = 0; u < PAGES; u++) {
        unsigned packed[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
          packed[i] = transpose(TYPE == BF16 ? pack(weight[u][2 * i], weight[u][2 * i + 1])
                                             : pack_halves(weight[u][2 * i] * of_values[u][i],
                                                           weight[u][2 * i + 1] * of_values[u][i]));
        A::add_values(sums, here + u * A::SUB + A::PAGE_BYTES, value_at, packed[0], packed[1]);
      }
      free = stage;
      if (++stage == STAGES) stage = 0;
    }

#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
      for (int offset = 4; offset < 32; offset *= 2) total[i] += shuffle_xor(total[i], offset);
      if (TYPE != BF16) total[i] *= WEIGHT_SCALE;
    }
    // The stage that was read last passes the results from the layout of products to rows.
    unsigned char *passed = own + free * A::STAGE;
    __syncwarp();
    if (lane % 4 == 0)
#pragma unroll
      for (int i = 0; i < STEPS; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          const float a = sums[i][j] / total[j], b = sums[i][j + 2] / total[j];
          unsigned char *to = passed + j * DIM * 2 + i * 32;
          if (TYPE == BF16) {
            *(bits16 *)(to + lane / 4 * 2) = (bits16)pack(a, 0.f);
            *(bits16 *)(to + lane / 4 * 2 + 16) = (bits16)pack(b, 0.f);
          } else {
            *(unsigned *)(to + lane / 4 * 4) = pack(a, b);
          }
        }
    __syncwarp();
    bits16 *row = out + (long long)item * GROUP * DIM + column;
    *(uint2 *)row = *(const uint2 *)(passed + lane * 8);
    *(uint2 *)(row + DIM) = *(const uint2 *)(passed + DIM * 2 + lane * 8);
  }
}

#define ATTENTION(NAME, TYPE)                                                                                         \
  extern "C" __global__ void __launch_bounds__(64) attention_##NAME(                                                  \
      const bits16 *qkv, const bits16 *query_gain, const bits16 *key_gain, const bits16 *cos, const bits16 *sin,      \
      unsigned char *keys, unsigned char *values, float *key_scales, float *value_scales, const long long *tables,    \
      const long long *slots, const long long *positions, bits16 *out, int rows, int qkv_row, int table_row,          \
      float eps, float scale) {                                                                                       \
    const Cache cache{keys, values, key_scales, value_scales, tables, slots, positions, table_row};                   \
    attention<TYPE>(qkv, query_gain, key_gain, cos, sin, cache, out, rows, qkv_row, eps, scale);                      \
  }
ATTENTION(bf16, BF16)
ATTENTION(int8, INT8)
ATTENTION(fp8, FP8)
