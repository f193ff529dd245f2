// SPDX-License-Identifier: Apache-2.0
// Decode attention of one row and its output projection: the launcher and the contract are in attention_output.py.
// tests/conformance/test_attention_output_on_cpu.py runs this file on a CPU.
//
// In a program of the projection a warp has the columns of a KV head's two query heads, and computes their attention.
//
// The tensor cores' operands of attention are loaded as they are stored. Keys: a thread has 8 consecutive dimensions of
// two positions. Values: 16 consecutive dimensions of four positions, and product i of 16 has dimension i of each
// thread.

#include "vector_program.cuh"
#include "attention.cuh"

constexpr int DIM = 128, KV_HEADS = WARPS, HEADS = 2;  // HEADS: query heads of a KV head
constexpr float LOWEST = -1e30f;

constexpr int MAX_REGISTERS = 112;  // per thread, so that programs of the launches before and after fit beside it

__device__ __forceinline__ unsigned pair_of_halves(unsigned first, unsigned second, bool upper) {
  return upper ? first >> 16 | (second & 0xFFFF0000u) : (first & 0xFFFFu) | second << 16;
}

// Norm and rotation of a head: a thread has 4 dimensions.
__device__ __forceinline__ uint2 rotate(uint2 head, uint2 gain, uint2 cos, uint2 sin, float eps) {
  const Dimensions x = unpack(head), factor = unpack(gain), by_cos = unpack(cos), by_sin = unpack(sin);
  float square = (x.value[0] * x.value[0] + x.value[1] * x.value[1]) +
                 (x.value[2] * x.value[2] + x.value[3] * x.value[3]);
  const float scale = rsqrtf(sum_of_lanes(square, 32) / DIM + eps);
  float made[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float normed = rounded_float(factor.value[i] * rounded_float(x.value[i] * scale));
    const float partner = shuffle_xor(normed, 16);
    made[i] = rounded_float(normed * by_cos.value[i]) + rounded_float(partner * by_sin.value[i]);
  }
  return make_uint2(pack(made[0], made[1]), pack(made[2], made[3]));
}

struct PageArguments {
  const bits16 *qkv;                    // one row: query heads, keys and values of all KV heads
  const bits16 *query_gain, *key_gain;  // [DIM]
  const bits16 *cos, *sin;              // [positions, DIM]
  bits16 *keys, *values;
  const long long *tables, *slots, *positions;
  int page_stride, position_stride, head_stride, table_row;
  float eps, scale;
};

// A warp's attention of the query heads of one KV head over a page of 16 positions.
struct PageAttention {
  const PageArguments &given;
  const int lane, head;  // of the thread, the KV head
  const bool stores;     // the row's own key and value
  bits16 *const first_query, *const second_query, *const own_key;  // [DIM] each, in shared memory
  int own;       // position of the row
  long long at;  // of the page's first position and the KV head
  uint4 keys[DIM / 32][2];  // positions lane / 4 and 8 more
  uint4 values[4][2];       // positions 2 · (lane % 4) + 0, 1, 8 and 9
  uint2 of_query, of_key, by_cos, by_sin;

  __device__ PageAttention(const PageArguments &given, int lane, int head, bool stores, bits16 *first_query,
                           bits16 *second_query, bits16 *own_key)
      : given(given), lane(lane), head(head), stores(stores), first_query(first_query), second_query(second_query),
        own_key(own_key) {}
  __device__ __forceinline__ int value_position(int i) { return lane % 4 * 2 + i % 2 + i / 2 * 8; }

  __device__ __forceinline__ void prefetch() {
    own = (int)given.positions[0];
    at = given.tables[given.slots[0] * given.table_row] * given.page_stride + head * given.head_stride;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const int row = lane / 4 + 8 * half;
      const bits16 *from = given.keys + at + (long long)row * given.position_stride + lane % 4 * 8;
#pragma unroll
      for (int i = 0; i < DIM / 32; i++)
        keys[i][half] = row < own ? load_16_bytes(from + i * 32) : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const bits16 *from = given.values + at + (long long)value_position(i) * given.position_stride + lane / 4 * 16;
#pragma unroll
      for (int half = 0; half < 2; half++)
        values[i][half] = value_position(i) < own ? load_16_bytes(from + half * 8) : make_uint4(0, 0, 0, 0);
    }
    of_query = *(const uint2 *)(given.query_gain + lane * 4), of_key = *(const uint2 *)(given.key_gain + lane * 4);
    by_cos = *(const uint2 *)(given.cos + own * DIM + lane * 4);
    by_sin = *(const uint2 *)(given.sin + own * DIM + lane * 4);
  }

  // The row's own query heads and key to shared memory, where threads find the dimensions of their operands.
  __device__ __forceinline__ void take_own() {
    const bits16 *heads = given.qkv + lane * 4;
    const bits16 *value = given.qkv + (3 * KV_HEADS + head) * DIM + lane / 4 * 16;
    const uint2 first = load_8_bytes(heads + HEADS * head * DIM), second = load_8_bytes(heads + (HEADS * head + 1) * DIM);
    uint2 key = load_8_bytes(heads + (HEADS * KV_HEADS + head) * DIM);
    const uint4 own_value[2] = {load_16_bytes(value), load_16_bytes(value + 8)};
    *(uint2 *)(first_query + lane * 4) = rotate(first, of_query, by_cos, by_sin, given.eps);
    *(uint2 *)(second_query + lane * 4) = rotate(second, of_query, by_cos, by_sin, given.eps);
    key = rotate(key, of_key, by_cos, by_sin, given.eps);
    *(uint2 *)(own_key + lane * 4) = key;
    if (stores) {
      const long long to = at + (long long)own * given.position_stride;
      *(uint2 *)(given.keys + to + lane * 4) = key;
      if (lane % 4 == 0) {
        *(uint4 *)(given.values + to + lane / 4 * 16) = own_value[0];
        *(uint4 *)(given.values + to + lane / 4 * 16 + 8) = own_value[1];
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (value_position(i) == own) values[i][0] = own_value[0], values[i][1] = own_value[1];
    sync_warp();
#pragma unroll
    for (int i = 0; i < DIM / 32; i++) {
      const uint4 operand = *(const uint4 *)(own_key + i * 32 + lane % 4 * 8);
      if (lane / 4 == own) keys[i][0] = operand;
      if (lane / 4 + 8 == own) keys[i][1] = operand;
    }
  }

  // The weights of the values, as operands of the products in which the first two rows are the query heads; sums: of
  // the weights of each head, in thread 0.
  __device__ __forceinline__ void weigh(unsigned (&operand)[2], float (&sums)[HEADS]) {
    float scores[2][4] = {{0.f, 0.f, 0.f, 0.f}, {0.f, 0.f, 0.f, 0.f}};
#pragma unroll
    for (int i = 0; i < DIM / 32; i++) {
      const bits16 *query = lane / 4 ? second_query : first_query;
      const uint4 of = lane / 4 < HEADS ? *(const uint4 *)(query + i * 32 + lane % 4 * 8) : make_uint4(0, 0, 0, 0);
      multiply(scores[0], keys[i][0].x, keys[i][1].x, keys[i][0].y, keys[i][1].y, of.x, of.y);
      multiply(scores[1], keys[i][0].z, keys[i][1].z, keys[i][0].w, keys[i][1].w, of.z, of.w);
    }
    operand[0] = operand[1] = 0;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {  // every fourth thread has the scores of positions lane / 4 and 8 more
      float score[2], weight[2], most;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int i = 2 * half + h;
        score[half] = lane / 4 + 8 * half <= own ? (scores[0][i] + scores[1][i]) * given.scale : LOWEST;
      }
      most = fmaxf(score[0], score[1]);
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) most = fmaxf(most, shuffle_xor(most, mask));
#pragma unroll
      for (int half = 0; half < 2; half++) {
        weight[half] = lane / 4 + 8 * half <= own ? power_of_2(score[half] - most) : 0.f;
        const int from = lane % 4 * 8;
        const float first = from_lane(weight[half], from), second = from_lane(weight[half], from + 4);
        if (lane / 4 == h) operand[half] = pack(first, second);
      }
      sums[h] = weight[0] + weight[1];
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) sums[h] += shuffle_xor(sums[h], mask);
    }
  }

  // The weighted sums of the values: thread 4 · head + i has dimensions 32 · i + 2 · part and one more, in made[0], and
  // 16 more, in made[1].
  __device__ __forceinline__ void weighted_sums(const unsigned (&operand)[2], int part, float2 (&made)[2]) {
    float lower[4] = {0.f, 0.f, 0.f, 0.f}, upper[4] = {0.f, 0.f, 0.f, 0.f};
    unsigned of[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint4 words = values[i][part / 4];
      of[i] = part % 4 == 0 ? words.x : part % 4 == 1 ? words.y : part % 4 == 2 ? words.z : words.w;
    }
    multiply(lower, operand[0], 0, operand[1], 0, pair_of_halves(of[0], of[1], false),
             pair_of_halves(of[2], of[3], false));
    multiply(upper, operand[0], 0, operand[1], 0, pair_of_halves(of[0], of[1], true),
             pair_of_halves(of[2], of[3], true));
    made[0] = make_float2(lower[0], upper[0]), made[1] = make_float2(lower[1], upper[1]);
  }
};
constexpr int PARTS = DIM / 16;  // of weighted sums

// Attention as columns of x.
template <class Program> struct AttendedRow {
  Program &program;
  PageAttention attention;

  __device__ AttendedRow(Program &program, const PageArguments &page)
      : program(program), attention(page, program.lane, program.warp, blockIdx.x == 0, program.own_x(), program.own_x(1),
                                    program.own_x() + DIM) {}
  __device__ __forceinline__ void prefetch() { attention.prefetch(); }
  __device__ __forceinline__ void take() {
    attention.take_own();
    const int lane = program.lane;
    unsigned operand[2], made[2][PARTS];
    float sums[HEADS];
    attention.weigh(operand, sums);
    const float first = from_lane(sums[0], 0), second = from_lane(sums[1], 0), scale = 1.f / (lane / 4 ? second : first);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
      float2 both[2];
      attention.weighted_sums(operand, part, both);
#pragma unroll
      for (int i = 0; i < 2; i++) made[i][part] = pack(both[i].x * scale, both[i].y * scale);
    }
    sync_warp();
    if (lane / 4 < HEADS)
#pragma unroll
      for (int i = 0; i < 2 * PARTS; i += 4)
        *(uint4 *)(program.own_x() + lane / 4 * DIM + lane % 4 * 32 + i * 2) =
            make_uint4(made[i / PARTS][i % PARTS], made[i / PARTS][i % PARTS + 1], made[i / PARTS][i % PARTS + 2],
                       made[i / PARTS][i % PARTS + 3]);
  }
};

#define PAGE_OUTPUT(HEIGHT)                                                                                            \
  extern "C" __global__ void __maxnreg__(MAX_REGISTERS) page_output_##HEIGHT(                                          \
      const bits16 *qkv, const bits16 *query_gain, const bits16 *key_gain, const bits16 *cos, const bits16 *sin,       \
      bits16 *keys, bits16 *values, const long long *tables, const long long *slots, const long long *positions,       \
      const bits16 *weight, const bits16 *add, const bits16 *out_gain, bits16 *out, bits16 *gained, float *squares,    \
      int page_stride, int position_stride, int head_stride, int table_row, float eps, float scale, int outputs) {     \
    SHARED_MEMORY(memory);                                                                                             \
    const PageArguments page{qkv,   query_gain, key_gain,    cos,             sin,         keys,      values, tables,  \
                             slots, positions,  page_stride, position_stride, head_stride, table_row, eps,    scale};  \
    const Arguments given{weight, add, out_gain, out, gained, squares, outputs, 0.f};                                  \
    start_next();                                                                                                      \
    typedef VectorProgram<ADD, HEIGHT, HEADS * WARPS * DIM> Program;                                                   \
    Program program(given, memory);                                                                                    \
    program.run(AttendedRow<Program>(program, page), false);                                                           \
  }
PAGE_OUTPUT(8)
