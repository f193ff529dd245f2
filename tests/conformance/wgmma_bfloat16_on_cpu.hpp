// SPDX-License-Identifier: Apache-2.0
// What wgmma_bfloat16.cuh needs of the hardware, and bulk tensor copies, for a CPU. Copies and products complete at
// once.
#define __grid_constant__
#define SWIZZLED_MEMORY(NAME) static_assert(true)

struct TensorMap {  // the test fills it in
  const bits16 *values;
  long long rows, columns, stride, box_rows;
};

static int uniform(int value) { return value; }
static void prefetch_map(const TensorMap &) {}
static void copy_box(unsigned to, const TensorMap &map, int column, int row, unsigned barrier) {
  require(to % 1024 == 0, "a copy does not begin at a swizzled block");
  unsigned char *there = pointer(to, map.box_rows * ROW_BYTES);
  for (int r = 0; r < map.box_rows; r++)
    for (int c = 0; c < DEPTH; c++) {
      const bool exists = row + r < map.rows && column + c < map.columns;
      const bits16 value = exists ? map.values[(row + r) * map.stride + column + c] : 0;
      *(bits16 *)(there + r * ROW_BYTES + ((c / 8 ^ r % 8) * 16 + c % 8 * 2)) = value;
    }
  change_barrier(barrier, 0, -(int)map.box_rows * ROW_BYTES);
}
static void begin_products() {}
static void commit_products() {}
template <int MAX_PENDING>
static void wait_for_products() { sync_warp(); }
template <int COUNT>
static void finish_products(float (&)[COUNT]) { sync_warp(); }
template <int COUNT>
static void use_from_here(float (&)[COUNT]) {}
static float silu(float x) { return x / (1.f + std::exp(-x)); }
static u64 operand(unsigned address) { return (address & 0xFFFFFF) >> 4; }

// One thread's part of a product of 64 rows: two rows, two of every eight columns, 16 columns of both operands.
template <int COUNT>
static void multiply(float (&d)[COUNT], u64 a, u64 b) {
  const auto value = [](u64 operand, int row, int k) {
    const unsigned start = operand / 64 * 1024, chunk = operand % 64 + k / 8;
    require(chunk < 8, "an operand does not begin within 128 bytes of a swizzled block");
    const unsigned at = start + row * ROW_BYTES + (chunk ^ row % 8) * 16 + k % 8 * 2;
    return to_float(*(const bits16 *)(memory + at));
  };
  const int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane / 4;
  for (int i = 0; i < COUNT; i++) {
    const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; k++) d[i] += value(a, row + i / 2 % 2 * 8, k) * value(b, column, k);
  }
}
