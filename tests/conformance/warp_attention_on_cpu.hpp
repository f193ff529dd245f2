// SPDX-License-Identifier: Apache-2.0
// What warp_attention.cu needs of the hardware, for a CPU.
#include <limits>

#define MINUS_INFINITY (-std::numeric_limits<float>::infinity())

static void store_first(float *at, float value) {
  *(float *)pointer(remote_address(shared_address(at), 0), sizeof value) = value;
}

// Registers of all lanes of the warp.
static std::array<std::array<unsigned, 6>, 32> exchange(std::array<unsigned, 6> own) {
  const Internal exchange;  // of registers
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
  for (int i = 0; i < 4; i++) m[i] = *(unsigned *)(memory + (all[i * 8 + lane / 4][0] & 0xFFFFFF) + lane % 4 * 4);
}
static void load_transposed(unsigned (&m)[4], unsigned address) {
  const auto all = exchange({address});
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; i++) {
    const auto element = [&](int row) { return *(bits16 *)(memory + (all[i * 8 + row][0] & 0xFFFFFF) + lane / 4 * 2); };
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
static unsigned subtract_halves(unsigned a, unsigned b) {
  return pack_halves(half_to_float((bits16)a) - half_to_float((bits16)b),
                     half_to_float((bits16)(a >> 16)) - half_to_float((bits16)(b >> 16)));
}
static int from_lane(int value, int lane) { return (int)exchange({(unsigned)value})[lane][0]; }
static bool any_lane(bool value) {
  bool any = false;
  for (const auto &of_lane : exchange({value})) any |= of_lane[0] != 0;
  return any;
}
