// SPDX-License-Identifier: Apache-2.0
// What quantized_rows.cuh needs of the hardware, for a CPU.

static float half_to_float(bits16 bits) {
  _Float16 value;
  std::memcpy(&value, &bits, sizeof value);
  return (float)value;
}
static bits16 to_half(float value) {
  if (value != value) return 0x7FFF;  // NaN
  const _Float16 made = (_Float16)std::fmax(std::fmin(value, 65504.f), -65504.f);
  bits16 bits;
  std::memcpy(&bits, &made, sizeof bits);
  return bits;
}
static unsigned pack_halves(float low, float high) { return to_half(low) | (unsigned)to_half(high) << 16; }
static unsigned select_bytes(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned made = 0;
  for (int i = 0; i < 4; i++) made |= (unsigned)(both >> (selector >> (4 * i) & 7) * 8 & 0xFF) << (8 * i);
  return made;
}
static float float8_to_float(unsigned char bits) {  // e4m3fn
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return NAN;
  const float value = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
  return bits & 0x80 ? -value : value;
}
static unsigned float8_to_halves(unsigned pair) {
  return pack_halves(float8_to_float((unsigned char)pair), float8_to_float((unsigned char)(pair >> 8)));
}
static unsigned char to_float8(float value) {  // the nearest, ties to even
  unsigned char best = 0;
  for (int bits = 1; bits < 0x7F; bits++) {
    const float now = std::fabs(float8_to_float(best) - std::fabs(value));
    const float other = std::fabs(float8_to_float((unsigned char)bits) - std::fabs(value));
    if (other < now || (other == now && bits % 2 == 0)) best = (unsigned char)bits;
  }
  return best | (std::signbit(value) ? 0x80 : 0);
}
static unsigned to_float8(float low, float high) { return to_float8(low) | (unsigned)to_float8(high) << 8; }
static unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
static float divide(float a, float b) { return a / b; }
static float add(float a, float b) { return a + b; }
