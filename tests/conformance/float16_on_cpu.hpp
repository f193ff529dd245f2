// SPDX-License-Identifier: Apache-2.0
// float16 for a CPU.
static float to_float(unsigned short bits) {
  _Float16 value;
  std::memcpy(&value, &bits, sizeof value);
  return (float)value;
}
static unsigned short rounded(float value) {
  const _Float16 made = (_Float16)value;
  unsigned short bits;
  std::memcpy(&bits, &made, sizeof bits);
  return bits;
}
