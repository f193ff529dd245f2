// SPDX-License-Identifier: Apache-2.0
// Norm and rotation of a head, of which a thread of a warp has 4 dimensions; the including file defines DIM.

__device__ __forceinline__ float dot(const Dimensions &a, const Dimensions &b) {
  return (a.value[0] * b.value[0] + a.value[1] * b.value[1]) + (a.value[2] * b.value[2] + a.value[3] * b.value[3]);
}

// With the roundings of rotary.py.
__device__ __forceinline__ Dimensions rotate(uint2 head, uint2 gain, uint2 cos, uint2 sin, float eps) {
  const Dimensions x = unpack(head), factor = unpack(gain), by_cos = unpack(cos), by_sin = unpack(sin);
  float square = dot(x, x);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) square += shuffle_xor(square, offset);
  const float scale = rsqrtf(square / DIM + eps);
  Dimensions made;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float normed = rounded_float(factor.value[i] * rounded_float(x.value[i] * scale));
    const float partner = shuffle_xor(normed, 16);
    made.value[i] = rounded_float(rounded_float(normed * by_cos.value[i]) + rounded_float(partner * by_sin.value[i]));
  }
  return made;
}
