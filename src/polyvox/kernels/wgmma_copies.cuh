// SPDX-License-Identifier: Apache-2.0
// Copies to shared memory for wgmma_conv.cu: windows of columns, and weights.

// Copies `count` rows of CHANNELS in groups of 8 channels with `pitch` rows each; the first rows, below `start`, from
// `past`. Both pointers are to row 0 and to this thread's channel_offset.
template <int CHANNELS>
__device__ __forceinline__ int channel_offset() {
  return threadIdx.x % 128 % (CHANNELS / 8) * 8;
}
template <int CHANNELS>
__device__ __forceinline__ void copy_window(
    unsigned to, const half_bits *here, const half_bits *past, int start, int count, int pitch, int stride) {
  constexpr int GROUPS = CHANNELS / 8, STEP = 128 / GROUPS;  // channel groups; rows at once
  const int member = threadIdx.x % 128;
  if (member < STEP * GROUPS) {
    int row = member / GROUPS;
    to += (member % GROUPS * pitch + row) * 16;
#pragma unroll 4
    for (; row < count; row += STEP, to += STEP * 16) copy_16_bytes(to, (row >= start ? here : past) + row * stride);
  }
  commit_copies();
}
template <int MAX_PENDING = 0>
__device__ __forceinline__ void finish_window(int warpgroup) {
  wait_for_copies<MAX_PENDING>();
  publish_to_tensor_cores();
  sync_warpgroup(warpgroup);
}

// Stages of weights in shared memory: a ring that all warpgroups of a cluster read in the same order. The extra
// warpgroup of each program copies its part of every stage to all programs, so that a cluster reads weights once.
template <int BYTES>
struct Stages {
  unsigned full, empty, memory;
  int slots, slot = 0, phase = 0, released = 0;
  bool unreleased = false;

  __device__ __forceinline__ Stages(unsigned barriers, unsigned memory, int slots)
      : full(barriers), empty(barriers + 8 * slots), memory(memory), slots(slots) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < slots; i++) {
        barrier_init(full + 8 * i, 1);
        barrier_init(empty + 8 * i, CLUSTER * (blockDim.x / 128 - 1) * 4);
      }
      publish_barriers();
    }
  }
  // An item needs the weights number item % across: `large` stages of BYTES, then `small` ones of half as many.
  __device__ __forceinline__ void fill(
      const half_bits *weights, int large, int small, int first_item, int num_items, int stride, int across) {
    const int rank = cluster_rank();
    bool reused = false;
    for (int item = first_item; item < num_items; item += stride) {
      const char *from = (const char *)weights + (long long)(item % across) * (large * BYTES + small * (BYTES / 2));
      for (int i = 0; i < large + small; i++) {
        const int bytes = i < large ? BYTES : BYTES / 2;
        if (reused) barrier_wait(empty + 8 * slot, phase ^ 1);
        barrier_expect(full + 8 * slot, bytes);
        copy_bytes_to_cluster(memory + slot * BYTES + rank * (bytes / CLUSTER), from + rank * (bytes / CLUSTER),
                              bytes / CLUSTER, full + 8 * slot);
        from += bytes;
        next(slot);
        if (slot == 0) {
          phase ^= 1;
          reused = true;
        }
      }
    }
  }
  __device__ __forceinline__ void next(int &index) {
    if (++index == slots) index = 0;
  }
  __device__ __forceinline__ unsigned acquire() {
    barrier_wait(full + 8 * slot, phase);
    return memory + slot * BYTES;
  }
  // After products with the acquired stage were committed; the previous one is released when its products have ended.
  __device__ __forceinline__ void advance() {
    wait_for_products<1>();
    if (unreleased) release();
    unreleased = true;
    next(slot);
    if (slot == 0) phase ^= 1;
  }
  __device__ __forceinline__ void release() {
    if (threadIdx.x % 32 < CLUSTER) arrive_in_cluster(empty + 8 * released, threadIdx.x % 32);
    next(released);
    unreleased = false;
  }
};

// Copies weights that stay in shared memory; all threads wait for them with barrier_wait(barrier, 0).
__device__ __forceinline__ void load_weights(unsigned to, const half_bits *weights, int bytes, unsigned barrier) {
  if (threadIdx.x == 0) {
    barrier_init(barrier, 1);
    publish_barriers();
    publish_to_tensor_cores();
    barrier_expect(barrier, bytes);
    copy_bytes(to, weights, bytes, barrier);
  }
  __syncthreads();
}
