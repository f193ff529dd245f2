// SPDX-License-Identifier: Apache-2.0
// What warp_attention.cu needs of the hardware, for a CPU. Copies to shared memory happen when they are waited for.
#include <deque>
#include <functional>
#include <limits>

static float half_to_float(bits16 bits) {
  _Float16 value;
  std::memcpy(&value, &bits, sizeof value);
  return (float)value;
}
static bits16 to_half(float value) {
  const _Float16 made = (_Float16)std::fmax(std::fmin(value, 65504.f), -65504.f);
  bits16 bits;
  std::memcpy(&bits, &made, sizeof bits);
  return bits;
}

#define SHARED_MEMORY static_assert(true)
#define MINUS_INFINITY (-std::numeric_limits<float>::infinity())

static void __syncwarp() { sync_warp(); }
static unsigned shared_address(const void *p) { return (unsigned)((const unsigned char *)p - memory); }

static thread_local std::deque<std::vector<std::function<void()>>> groups;
static thread_local std::vector<std::function<void()>> copies;
static void copy_or_clear(unsigned to, const void *from, bool exists) {
  require(to % 16 == 0 && to + 16 <= memory_bytes, "a copy outside of shared memory");
  copies.push_back([=] { exists ? std::memcpy(memory + to, from, 16) : std::memset(memory + to, 0, 16); });
}
static void copy_16_bytes(unsigned to, const void *from) { copy_or_clear(to, from, true); }
static void commit_copies() {
  groups.push_back(copies);
  copies.clear();
}
template <int MAX_PENDING> static void wait_for_copies() {
  for (; groups.size() > MAX_PENDING; groups.pop_front())
    for (const auto &copy : groups.front()) copy();
}
// Registers of all lanes of the warp.
static std::array<std::array<unsigned, 6>, 32> exchange(std::array<unsigned, 6> own) {
  fragments[threadIdx.x % 32] = own;
  sync_warp();
  std::array<std::array<unsigned, 6>, 32> all;
  std::copy(fragments, fragments + 32, all.begin());
  sync_warp();
  return all;
}
static void load_matrices(unsigned (&m)[4], unsigned address) {
  const auto all = exchange({address});
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; i++) m[i] = *(unsigned *)(memory + all[i * 8 + lane / 4][0] + lane % 4 * 4);
}
static void load_transposed(unsigned (&m)[4], unsigned address) {
  const auto all = exchange({address});
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; i++) {
    const auto element = [&](int row) { return *(bits16 *)(memory + all[i * 8 + row][0] + lane / 4 * 2); };
    m[i] = element(lane % 4 * 2) | (unsigned)element(lane % 4 * 2 + 1) << 16;
  }
}
static unsigned transpose(unsigned row) {
  const auto all = exchange({row});
  const int lane = threadIdx.x % 32, column = lane / 4;
  const auto element = [&](int of) { return all[of * 4 + column / 2][0] >> (column % 2 * 16) & 0xFFFF; };
  return element(lane % 4 * 2) | element(lane % 4 * 2 + 1) << 16;
}
template <int TYPE> static void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if (TYPE == BF16)
    multiply(d, a[0], a[1], a[2], a[3], b0, b1);
  else
    multiply_registers(d, {a[0], a[1], a[2], a[3], b0, b1}, half_to_float);
}
static unsigned pack_halves(float low, float high) { return to_half(low) | (unsigned)to_half(high) << 16; }
static unsigned select_bytes(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned made = 0;
  for (int i = 0; i < 4; i++) made |= (unsigned)(both >> (selector >> (4 * i) & 7) * 8 & 0xFF) << (8 * i);
  return made;
}
static unsigned subtract_halves(unsigned a, unsigned b) {
  return pack_halves(half_to_float((bits16)a) - half_to_float((bits16)b),
                     half_to_float((bits16)(a >> 16)) - half_to_float((bits16)(b >> 16)));
}
static float float8_to_float(unsigned char bits) {  // e4m3fn
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
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
static int from_lane(int value, int lane) { return (int)exchange({(unsigned)value})[lane][0]; }
static bool any_lane(bool value) {
  bool any = false;
  for (const auto &of_lane : exchange({value})) any |= of_lane[0] != 0;
  return any;
}
