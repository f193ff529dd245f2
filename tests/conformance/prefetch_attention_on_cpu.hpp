// SPDX-License-Identifier: Apache-2.0
// What prefetch_attention.cu needs of the hardware beyond its headers, for a CPU.
#define __grid_constant__

struct TensorMap {  // the test fills it in
  const unsigned char *values;
  int row, item_size;  // elements, bytes of an element
};
static void copy_box(unsigned to, const TensorMap &map, int column, int row, unsigned barrier) {
  const int bytes = DIM * map.item_size;
  require((to & 0xFFFFFF) % 128 == 0, "a box begins at no multiple of 128 bytes");
  for (int i = 0; i < PAGE; i++)
    copy(to + i * bytes, map.values + ((long long)(row + i) * map.row + column) * map.item_size, bytes, barrier);
}

static void store_first(float *at, float value) {
  *(float *)pointer(remote_address(shared_address(at), 0), sizeof value) = value;
}
