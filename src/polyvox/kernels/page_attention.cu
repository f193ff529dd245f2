// SPDX-License-Identifier: Apache-2.0
// Decode attention over one short page: the launcher and the contract are in page_attention.py.
// tests/conformance/test_decode_attention_on_cpu.py runs this file on a CPU.
//
// A warp has one row and KV head with its two query heads, and a thread 4 dimensions of each. All earlier keys and
// values of the page are in registers before the previous launch has ended.

#include "warps.cuh"
#include "overlap.cuh"
#include "bfloat16.cuh"
#include "attention.cuh"

constexpr int DIM = 128, GROUP = 2, POSITIONS = 16;

#include "rotate.cuh"

// One step of the sums of 32 values over 32 threads: in the end thread i has the sum of value i.
template <int HALF> __device__ __forceinline__ void halve(float (&sums)[2 * POSITIONS], int lane) {
  const bool upper = lane & HALF;
#pragma unroll
  for (int i = 0; i < HALF; i++) {
    const float kept = upper ? sums[i + HALF] : sums[i], sent = upper ? sums[i] : sums[i + HALF];
    sums[i] = kept + shuffle_xor(sent, HALF);
  }
}

extern "C" __global__ void __launch_bounds__(32) page_attention(
    const bits16 *qkv, const bits16 *query_gain, const bits16 *key_gain, const bits16 *cos, const bits16 *sin,
    bits16 *keys, bits16 *values, const long long *tables, const long long *slots, const long long *positions,
    bits16 *out, int kv_heads, int qkv_row, int page_stride, int position_stride, int head_stride, int table_row,
    float eps, float scale) {
  start_next();
  const int lane = threadIdx.x, row = blockIdx.x / kv_heads, head = blockIdx.x % kv_heads, column = lane * 4;
  const int position = (int)positions[row];
  const long long page = tables[slots[row] * table_row] * page_stride + head * head_stride + column;
  uint2 past_keys[POSITIONS], past_values[POSITIONS];
#pragma unroll
  for (int i = 0; i < POSITIONS; i++) {
    past_keys[i] = past_values[i] = make_uint2(0, 0);
    if (i < position) {
      const long long at = page + (long long)i * position_stride;
      past_keys[i] = load_8_bytes(keys + at), past_values[i] = load_8_bytes(values + at);
    }
  }
  const uint2 of_query = *(const uint2 *)(query_gain + column), of_key = *(const uint2 *)(key_gain + column);
  const uint2 by_cos = *(const uint2 *)(cos + position * DIM + column);
  const uint2 by_sin = *(const uint2 *)(sin + position * DIM + column);
  wait_for_previous();

  const bits16 *heads = qkv + (long long)row * qkv_row + column, *own = heads + (GROUP * kv_heads + head) * DIM;
  const uint2 first = load_8_bytes(heads + GROUP * head * DIM), second = load_8_bytes(heads + (GROUP * head + 1) * DIM);
  const uint2 own_key = load_8_bytes(own), own_value = load_8_bytes(own + kv_heads * DIM);
  const Dimensions queries[GROUP] = {rotate(first, of_query, by_cos, by_sin, eps),
                                     rotate(second, of_query, by_cos, by_sin, eps)};
  const Dimensions key = rotate(own_key, of_key, by_cos, by_sin, eps);
  const uint2 key_row = make_uint2(pack(key.value[0], key.value[1]), pack(key.value[2], key.value[3]));
  const long long at = page + (long long)position * position_stride;
  *(uint2 *)(keys + at) = key_row, *(uint2 *)(values + at) = own_value;

  float scores[GROUP * POSITIONS];  // [head][position]
#pragma unroll
  for (int i = 0; i < POSITIONS; i++) {
    if (i == position) past_keys[i] = key_row, past_values[i] = own_value;
#pragma unroll
    for (int h = 0; h < GROUP; h++) scores[h * POSITIONS + i] = dot(queries[h], unpack(past_keys[i]));
  }
  halve<16>(scores, lane), halve<8>(scores, lane), halve<4>(scores, lane), halve<2>(scores, lane);
  halve<1>(scores, lane);
  const bool visible = lane % POSITIONS <= position;
  const float score = visible ? scores[0] * scale : -1e30f;
  float most = score;
#pragma unroll
  for (int offset = POSITIONS / 2; offset > 0; offset /= 2) most = fmaxf(most, shuffle_xor(most, offset));
  const float weight = visible ? power_of_2(score - most) : 0.f;
  float sum = weight;
#pragma unroll
  for (int offset = POSITIONS / 2; offset > 0; offset /= 2) sum += shuffle_xor(sum, offset);
#pragma unroll
  for (int h = 0; h < GROUP; h++) {
    float made[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int i = 0; i < POSITIONS; i++) {
      const float of = from_lane(weight, h * POSITIONS + i);
      const Dimensions value = unpack(past_values[i]);
#pragma unroll
      for (int j = 0; j < 4; j++) made[j] += of * value.value[j];
    }
    const float all = from_lane(sum, h * POSITIONS);
    *(uint2 *)(out + ((long long)row * GROUP * kv_heads + GROUP * head + h) * DIM + column) =
        make_uint2(pack(made[0] / all, made[1] / all), pack(made[2] / all, made[3] / all));
  }
}
