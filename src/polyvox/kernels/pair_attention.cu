// SPDX-License-Identifier: Apache-2.0
// Attention of the first two rows of a page: the launcher and the contract are in pair_attention.py.
// tests/conformance/test_decode_attention_on_cpu.py runs this file on a CPU.
//
// A warp has both rows of a slot and one KV head with its two query heads, and a thread 4 dimensions of each. The first
// row attends to itself only, so its result is its value.

#include "warps.cuh"
#include "overlap.cuh"
#include "bfloat16.cuh"
#include "attention.cuh"

constexpr int DIM = 128, GROUP = 2;

#include "rotate.cuh"

__device__ __forceinline__ uint2 pack(const Dimensions &d) {
  return make_uint2(pack(d.value[0], d.value[1]), pack(d.value[2], d.value[3]));
}
__device__ __forceinline__ float dot_of_warp(const Dimensions &a, const Dimensions &b) {
  float sum = dot(a, b);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += shuffle_xor(sum, offset);
  return sum;
}

extern "C" __global__ void __launch_bounds__(128) pair_attention(
    const bits16 *qkv, const bits16 *query_gain, const bits16 *key_gain, const bits16 *cos, const bits16 *sin,
    bits16 *keys, bits16 *values, const long long *tables, const long long *slots, bits16 *out, int pairs,
    int kv_heads, int qkv_row, int page_stride, int position_stride, int head_stride, int table_row, float eps,
    float scale) {
  const int lane = threadIdx.x % 32, item = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (item >= pairs * kv_heads) return;
  const int pair = item / kv_heads, head = item % kv_heads, column = lane * 4;
  const long long at = tables[slots[2 * pair] * table_row] * page_stride + head * head_stride + column;
  const uint2 of_query = *(const uint2 *)(query_gain + column), of_key = *(const uint2 *)(key_gain + column);
  uint2 by_cos[2], by_sin[2];
#pragma unroll
  for (int i = 0; i < 2; i++)
    by_cos[i] = *(const uint2 *)(cos + i * DIM + column), by_sin[i] = *(const uint2 *)(sin + i * DIM + column);
  wait_for_previous();
  start_next();

  const bits16 *rows[2] = {qkv + 2ll * pair * qkv_row + column, qkv + (2ll * pair + 1) * qkv_row + column};
  uint2 queries[GROUP], new_keys[2], new_values[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    queries[i] = load_8_bytes(rows[1] + (GROUP * head + i) * DIM);
    new_keys[i] = load_8_bytes(rows[i] + (GROUP * kv_heads + head) * DIM);
    new_values[i] = load_8_bytes(rows[i] + ((GROUP + 1) * kv_heads + head) * DIM);
  }
  Dimensions rotated[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    rotated[i] = rotate(new_keys[i], of_key, by_cos[i], by_sin[i], eps);
    *(uint2 *)(keys + at + (long long)i * position_stride) = pack(rotated[i]);
    *(uint2 *)(values + at + (long long)i * position_stride) = new_values[i];
  }
  const Dimensions first = unpack(new_values[0]), second = unpack(new_values[1]);
  bits16 *made = out + ((long long)2 * pair * kv_heads + head) * GROUP * DIM + column;
#pragma unroll
  for (int h = 0; h < GROUP; h++) {
    const Dimensions query = rotate(queries[h], of_query, by_cos[1], by_sin[1], eps);
    const float a = dot_of_warp(query, rotated[0]) * scale, b = dot_of_warp(query, rotated[1]) * scale, most = fmaxf(a, b);
    const float of_first = power_of_2(a - most), of_second = power_of_2(b - most), sum = of_first + of_second;
    Dimensions mixed;
#pragma unroll
    for (int i = 0; i < 4; i++) mixed.value[i] = (of_first * first.value[i] + of_second * second.value[i]) / sum;
    *(uint2 *)(made + h * DIM) = new_values[0];
    *(uint2 *)(made + (kv_heads * GROUP + h) * DIM) = pack(mixed);
  }
}
