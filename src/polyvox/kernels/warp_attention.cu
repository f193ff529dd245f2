// SPDX-License-Identifier: Apache-2.0
// Decode attention with tensor cores: the launcher and the contract are in warp_attention.py.
// tests/conformance/test_warp_attention_on_cpu.py runs this file on a CPU.
//
// A program has one row and KV head with its two query heads; with few rows, a cluster of SPLITS programs shares them.
// The warps take steps of one or two pages of 16 positions in turn, with a running softmax each, and add up their parts
// through shared memory in the end; then the first program of a cluster adds up those of all. Pages are copied to the
// warp's part of shared memory, STAGES - 1 steps ahead. Keys times queries are products of 16 positions × 8 columns, of
// which two are query heads; the sums of values are 16 dimensions × 8 columns. Rows in shared memory are swizzled: chunk
// c of 16 bytes of row p is at c ^ p % 8.

#include "warps.cuh"
#include "overlap.cuh"
#include "bfloat16.cuh"
#include "barriers.cuh"
#include "attention.cuh"
#include "async_copies.cuh"
#include "quantized_rows.cuh"

constexpr int DIM = 128, GROUP = 2, PAGE = 16, KV_HEADS = 8;
constexpr int STEPS = DIM / 16;              // products of 16 dimensions
constexpr int PART = GROUP * DIM + 2 * GROUP;  // floats of a part of the result: sums, maxima and denominators
constexpr float WEIGHT_SCALE = 64.f;         // of weights in float16 times the scales of values: few are subnormal

// Everything that needs the hardware; a test replaces it by functions for a CPU.
#ifdef ON_CPU
#include "warp_attention_on_cpu.hpp"
#else
// A value in the memory of the cluster's first program.
__device__ __forceinline__ void store_first(float *at, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote_address(shared_address(at), 0)), "f"(value) : "memory");
}
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
  unsigned char *keys, *values;      // [P, KV_HEADS, PAGE, DIM]
  float *key_scales, *value_scales;  // [P, KV_HEADS, PAGE], of a quantised cache
  const long long *tables, *slots, *positions;
  int table_row;
};
struct Heads {  // of the rows, and how they are normed and rotated
  const bits16 *qkv, *query_gain, *key_gain, *cos, *sin;
  int row;  // elements from row to row
  float eps;
};

template <int TYPE, int WARPS, int SPLITS> struct AttentionProgram {
  // warp_attention.py computes the same shared memory.
  static constexpr int STAGES = SPLITS > 1 ? 2 : 3;                                  // of a warp
  static constexpr int PAGES = TYPE != BF16 && WARPS == 1 ? 2 : 1;                   // of a step
  static constexpr int STRIDE = WARPS * SPLITS * PAGES;                              // from step to step of a warp
  static constexpr int ROW = TYPE == BF16 ? DIM * 2 : DIM, PAGE_BYTES = PAGE * ROW;  // bytes of a head
  static constexpr int CHUNKS = ROW / 16, ROWS = 32 / CHUNKS, COPIED = 32 * 16;      // by a warp at once
  static constexpr int SCALES = TYPE == BF16 ? 0 : PAGE * 4;
  static constexpr int SUB = 2 * PAGE_BYTES + 2 * SCALES, STAGE = PAGES * SUB;  // keys, values and their scales
  static constexpr int VALUES = GROUP * DIM / (32 * WARPS);                     // of the result, of a thread
  static_assert(PART * 4 <= STAGES * STAGE, "the parts of the result fit into the stages");

  const Cache &cache;
  unsigned char *memory, *own;  // shared memory of the program and of the warp
  unsigned stages;
  int warp, lane, rank, item, head, position, last, slot;  // position of the row, and its page
  int copied, found, pages;  // the page that is copied next; lane i has entry found + i of the slot's table in `pages`

  __device__ AttentionProgram(const Cache &cache, unsigned char *memory) : cache(cache), memory(memory) {
    warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x % SPLITS;
    item = blockIdx.x / SPLITS, head = item % KV_HEADS, own = memory + warp * STAGES * STAGE;
    stages = shared_address(own);
    position = (int)cache.positions[item / KV_HEADS], slot = (int)cache.slots[item / KV_HEADS], last = position / PAGE;
    copied = first_page(), found = 0;
    find_pages();
  }
  __device__ __forceinline__ int first_page() { return (warp * SPLITS + rank) * PAGES; }
  // A part of the result: of a warp, in place of its stages, or of a program of the cluster.
  __device__ __forceinline__ float *part_of_warp(int of) { return (float *)(memory + of * STAGES * STAGE); }
  __device__ __forceinline__ float *part_of_program(int of) { return part_of_warp(WARPS) + of * PART; }
  __device__ __forceinline__ long long page_of(int number) {
    return cache.tables[(long long)slot * cache.table_row + number];
  }
  __device__ __forceinline__ void find_pages() { pages = (int)page_of(min(found + lane, last)); }
  __device__ __forceinline__ void copy_page(unsigned to, int number) {
    const int past = position - number * PAGE;  // positions of this page that earlier passes wrote
    const long long index = (long long)from_lane(pages, number % 32) * KV_HEADS + head;  // page and head
    const long long at = index * PAGE_BYTES + lane * 16;
    const unsigned char *keys = cache.keys + at, *values = cache.values + at;
#pragma unroll
    for (int i = 0; i < PAGE / ROWS; i++) {
      const int p = ROWS * i + lane / CHUNKS;
      const unsigned there = to + p * ROW + ((lane % CHUNKS ^ p % 8) * 16);
      if (past >= PAGE) {
        copy_16_bytes(there, keys + i * COPIED);
        copy_16_bytes(there + PAGE_BYTES, values + i * COPIED);
      } else {
        copy_or_clear(there, keys + i * COPIED, p < past);
        copy_or_clear(there + PAGE_BYTES, values + i * COPIED, p < past);
      }
    }
    if (TYPE != BF16 && lane < PAGE / 2) {  // 4 scales of each
      const float *scales = lane < PAGE / 4 ? cache.key_scales : cache.value_scales;
      scales += index * PAGE + lane % (PAGE / 4) * 4;
      copy_or_clear(to + 2 * PAGE_BYTES + lane * 16, scales, past > 0);
    }
  }
  // Copies the warp's next step, if there is one.
  __device__ __forceinline__ void copy(int stage) {
    if (copied <= last) {
      if (copied >= found + 32) {
        found = copied - copied % 32;
        find_pages();
      }
#pragma unroll
      for (int i = 0; i < PAGES; i++) copy_page(stages + stage * STAGE + i * SUB, copied + i);
      copied += STRIDE;
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

  __device__ __forceinline__ void run(const Heads &given, bits16 *out, float scale) {
    const int column = lane * 4;
    const bool has_last = last / PAGES % (WARPS * SPLITS) * PAGES == first_page();  // also the row's own key and value
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) copy(i);
    sync_warp();
    if (SPLITS > 1) sync_cluster_relaxed();  // no program writes to another one that has not started
    const uint2 of_query = *(const uint2 *)(given.query_gain + column), of_key = *(const uint2 *)(given.key_gain + column);
    const uint2 by_cos = *(const uint2 *)(given.cos + (long long)position * DIM + column);
    const uint2 by_sin = *(const uint2 *)(given.sin + (long long)position * DIM + column);
    const int own_page = has_last ? (int)page_of(last) : 0;
    wait_for_previous();
    start_next();

    const bits16 *heads = given.qkv + (long long)(item / KV_HEADS) * given.row + column;
    const uint2 first = load_8_bytes(heads + GROUP * head * DIM), second = load_8_bytes(heads + (GROUP * head + 1) * DIM);
    uint2 key = make_uint2(0, 0), value = key;
    if (has_last) {
      key = load_8_bytes(heads + (GROUP * KV_HEADS + head) * DIM);
      value = load_8_bytes(heads + ((GROUP + 1) * KV_HEADS + head) * DIM);
    }

    // Queries in the layout of products; the free stage passes them from the layout of the rotation.
    unsigned queries[STEPS][2];
    {
      unsigned char *passed = own + (STAGES - 1) * STAGE;
      *(uint2 *)(passed + lane * 8) = rotate(first, of_query, by_cos, by_sin, given.eps);
      *(uint2 *)(passed + DIM * 2 + lane * 8) = rotate(second, of_query, by_cos, by_sin, given.eps);
      sync_warp();
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
      sync_warp();
    }
    // The row's own key and value, as the cache stores them.
    float key_scale = 0.f, value_scale = 0.f;
    if (has_last) {
      key = rotate(key, of_key, by_cos, by_sin, given.eps);
      const long long of = ((long long)own_page * KV_HEADS + head) * PAGE + position % PAGE, at = of * ROW;
      if (TYPE == BF16) {
        *(uint2 *)(cache.keys + at + lane * 8) = key, *(uint2 *)(cache.values + at + lane * 8) = value;
      } else {
        key.x = quantize<TYPE>(key, key_scale), value.x = quantize<TYPE>(value, value_scale);
        *(unsigned *)(cache.keys + at + lane * 4) = key.x, *(unsigned *)(cache.values + at + lane * 4) = value.x;
        if (lane == 0) cache.key_scales[of] = key_scale, cache.value_scales[of] = value_scale;
      }
    }

    // Where a lane's rows of 8 × 8 matrices begin: positions below and from 8 on, then the next chunk; of values in 16
    // bits the next chunk comes first.
    const unsigned key_at = ((lane / 8 % 2 * 8 + lane % 8) * ROW) | ((lane / 16 ^ lane % 8) * 16);
    const unsigned value_at =
        TYPE != BF16 ? key_at : ((lane / 16 * 8 + lane % 8) * ROW) | ((lane / 8 % 2 ^ lane % 8) * 16);
    float sums[STEPS][4], most[2] = {MINUS_INFINITY, MINUS_INFINITY}, total[2] = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < STEPS * 4; i++) sums[i / 4][i % 4] = 0.f;
    int stage = 0, free = STAGES - 1;
    for (int page = first_page(); page <= last; page += STRIDE) {
      wait_for_copies<STAGES - 2>();
      sync_warp();
      const unsigned here = stages + stage * STAGE;
      if (page + PAGES > last) {
        const int p = position % PAGE;
        unsigned char *sub = own + stage * STAGE + (last - page) * SUB;
        if (TYPE == BF16) {
          unsigned char *row = sub + p * ROW + ((lane / 2 ^ p % 8) * 16) + lane % 2 * 8;
          *(uint2 *)row = key, *(uint2 *)(row + PAGE_BYTES) = value;
        } else {
          unsigned char *row = sub + p * ROW + ((lane / 4 ^ p % 8) * 16) + lane % 4 * 4;
          *(unsigned *)row = key.x, *(unsigned *)(row + PAGE_BYTES) = value.x;
          float *scales = (float *)(sub + 2 * PAGE_BYTES);
          if (lane == 0) scales[p] = key_scale, scales[PAGE + p] = value_scale;
        }
        sync_warp();
      }

      float scores[PAGES][2][4];
#pragma unroll
      for (int u = 0; u < PAGES; u++) {
#pragma unroll
        for (int i = 0; i < 8; i++) scores[u][i / 4][i % 4] = 0.f;
        score(scores[u], here + u * SUB, key_at, queries);
      }
      copy(free);

      // Rows lane / 4 and lane / 4 + 8 of each page, two columns.
      float weight[PAGES][4], factor[2], of_values[PAGES][2];
#pragma unroll
      for (int u = 0; u < PAGES; u++) {
        const int upper = position - (page + u) * PAGE - lane / 4;
        float of_keys[2] = {scale, scale};
        of_values[u][0] = of_values[u][1] = 1.f;
        if (TYPE != BF16) {
          const float *scales = (const float *)(own + stage * STAGE + u * SUB + 2 * PAGE_BYTES);
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
        add_values(sums, here + u * SUB + PAGE_BYTES, value_at, packed[0], packed[1]);
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
    float *made = part_of_warp(warp);  // [GROUP][DIM], then maxima and denominators
    sync_warp();
    if (lane % 4 == 0)
#pragma unroll
      for (int i = 0; i < STEPS; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          float *to = made + j * DIM + i * 16 + (TYPE == BF16 ? lane / 4 : lane / 4 * 2);
          to[0] = sums[i][j], to[TYPE == BF16 ? 8 : 1] = sums[i][j + 2];
        }
    if (lane == 0)
#pragma unroll
      for (int j = 0; j < GROUP; j++) made[GROUP * DIM + j] = most[j], made[GROUP * DIM + GROUP + j] = total[j];
    sync_program();
    Joined joined = join<WARPS>(memory, STAGES * STAGE);
    if (SPLITS > 1) {
      float *to = part_of_program(rank);
#pragma unroll
      for (int i = 0; i < VALUES; i++) store_first(to + first_value() + i, joined.sums[i]);
      if (first_value() % DIM == 0) {
        store_first(to + GROUP * DIM + first_value() / DIM, joined.most);
        store_first(to + GROUP * DIM + GROUP + first_value() / DIM, joined.total);
      }
      sync_warp();  // all threads of a warp arrive together
      sync_cluster();
      if (rank > 0) return;
      joined = join<SPLITS>((unsigned char *)part_of_program(0), PART * 4);
    }
    store(out + (long long)item * GROUP * DIM + first_value(), joined);
  }

  // A thread's values of the result, from parts that are `bytes` bytes apart.
  struct Joined {
    float most, total, sums[VALUES];
  };
  static __device__ __forceinline__ int first_value() { return threadIdx.x * VALUES; }
  template <int PARTS> static __device__ __forceinline__ Joined join(const unsigned char *parts, int bytes) {
    const int head = first_value() / DIM;
    const auto at = [&](int i) { return (const float *)(parts + i * bytes); };
    Joined made = {MINUS_INFINITY, 0.f, {}};
#pragma unroll
    for (int i = 0; i < PARTS; i++) made.most = fmaxf(made.most, at(i)[GROUP * DIM + head]);
#pragma unroll
    for (int i = 0; i < PARTS; i++) {  // of programs without a position, all are minus infinity
      const float factor = made.most == MINUS_INFINITY ? 0.f : power_of_2(at(i)[GROUP * DIM + head] - made.most);
      made.total += factor * at(i)[GROUP * DIM + GROUP + head];
#pragma unroll
      for (int j = 0; j < VALUES; j++) made.sums[j] += factor * at(i)[first_value() + j];
    }
    return made;
  }
  static __device__ __forceinline__ void store(bits16 *to, const Joined &joined) {
    const auto pair = [&](int i) {
      return pack(joined.sums[i % VALUES] / joined.total, joined.sums[(i + 1) % VALUES] / joined.total);
    };
    if constexpr (VALUES == 8)
      *(uint4 *)to = make_uint4(pair(0), pair(2), pair(4), pair(6));
    else if constexpr (VALUES == 4)
      *(uint2 *)to = make_uint2(pair(0), pair(2));
    else if constexpr (VALUES == 2)
      *(unsigned *)to = pair(0);
    else
      *to = (bits16)pair(0);
  }
};

#define ATTENTION(NAME, TYPE, WARPS, SPLITS, CLUSTER)                                                                 \
  extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) CLUSTER attention_##NAME##_##WARPS##_##SPLITS(          \
      const bits16 *qkv, const bits16 *query_gain, const bits16 *key_gain, const bits16 *cos, const bits16 *sin,      \
      unsigned char *keys, unsigned char *values, float *key_scales, float *value_scales, const long long *tables,    \
      const long long *slots, const long long *positions, bits16 *out, int qkv_row, int table_row, float eps,         \
      float scale) {                                                                                                  \
    SHARED_MEMORY(memory);                                                                                            \
    const Cache cache{keys, values, key_scales, value_scales, tables, slots, positions, table_row};                   \
    AttentionProgram<TYPE, WARPS, SPLITS> program(cache, memory);                                                     \
    program.run({qkv, query_gain, key_gain, cos, sin, qkv_row, eps}, out, scale);                                     \
  }
#define ATTENTION_OF_ALL_TYPES(WARPS, SPLITS, CLUSTER)                                                                \
  ATTENTION(bf16, BF16, WARPS, SPLITS, CLUSTER)                                                                       \
  ATTENTION(int8, INT8, WARPS, SPLITS, CLUSTER)                                                                       \
  ATTENTION(fp8, FP8, WARPS, SPLITS, CLUSTER)
#define ATTENTION_OF_CLUSTERS(WARPS, SPLITS) ATTENTION_OF_ALL_TYPES(WARPS, SPLITS, __cluster_dims__(SPLITS, 1, 1))
// warp_attention.py lists the same.
ATTENTION_OF_ALL_TYPES(1, 1, )
ATTENTION_OF_ALL_TYPES(2, 1, )
ATTENTION_OF_ALL_TYPES(4, 1, )
ATTENTION_OF_ALL_TYPES(8, 1, )
ATTENTION_OF_CLUSTERS(8, 2)
ATTENTION_OF_CLUSTERS(8, 4)
