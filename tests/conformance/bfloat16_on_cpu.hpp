// SPDX-License-Identifier: Apache-2.0
// bfloat16 for a CPU.
static float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
static unsigned short rounded(float value) {  // to the nearest even
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return value != value ? 0x7FFF : (unsigned short)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
