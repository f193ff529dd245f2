// SPDX-License-Identifier: Apache-2.0
// What test_races_on_cpu.py lets ThreadSanitizer know: which waits of a program order reads and writes of memory.
#pragma once

#ifdef __SANITIZE_THREAD__
extern "C" {
void AnnotateIgnoreSyncBegin(const char *, int);
void AnnotateIgnoreSyncEnd(const char *, int);
void AnnotateIgnoreReadsBegin(const char *, int);
void AnnotateIgnoreReadsEnd(const char *, int);
void AnnotateIgnoreWritesBegin(const char *, int);
void AnnotateIgnoreWritesEnd(const char *, int);
void __tsan_release(void *);
void __tsan_acquire(void *);
}
// In its scope a function of this folder exchanges registers or changes a barrier, which ThreadSanitizer does not see: an
// exchange of registers orders no memory, and `publish` and `observe` say what a barrier orders.
struct Internal {
  Internal() {
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Internal() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  }
};
// What a thread did before `publish` is visible to threads that call `observe` of the same address afterwards.
static void publish(void *barrier) { __tsan_release(barrier); }
static void observe(void *barrier) { __tsan_acquire(barrier); }
#else
struct Internal {
  Internal() {}
};
static void publish(void *) {}
static void observe(void *) {}
#endif
