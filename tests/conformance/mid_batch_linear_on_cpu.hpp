// SPDX-License-Identifier: Apache-2.0
// What mid_batch_linear.cu needs of the hardware beyond its headers, for a CPU.
static void publish_barriers() {}
static void copy_weights(unsigned to, const TensorMap &map, int column, int row, unsigned barrier) {
  require(row + map.box_rows <= map.rows && column + DEPTH <= map.columns, "a copy is outside of the matrix");
  copy_box(to, map, column, row, barrier);
}
static void sync_multiplying() { warpgroups[0]->arrive_and_wait(); }
static unsigned load_pair(const bits16 *from) { return *(const unsigned *)from; }
static float load_square(const float *from) { return *from; }
static float4 load_squares(const float *from) { return *(const float4 *)from; }
