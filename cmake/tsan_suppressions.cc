// What ThreadSanitizer cannot know of libraries of the system's that are not instrumented: it sees
// what they copy, but not the atomics by which their threads agree. Linked into every test.
extern "C" const char* __tsan_default_suppressions();   // NOLINT: the sanitizer's name
extern "C" const char* __tsan_default_suppressions() {  // NOLINT
  // RocksDB: the functions of ours read its memory and write only variables of their callers' own.
  return "race:librocksdb.so\n"
         "race:strata::storenode::internal::decode_version\n"
         "race:strata::storenode::internal::parse_version_key\n"
         "race:strata::storenode::internal::open_value\n"
         // A status has a counter of its holders, in libabsl; whichever thread is last frees it.
         "race:absl::*::Status::Unref\n"
         // libfabric's "tcp" copies puts and gets into and out of regions, as a network card would,
         // while their owner and its peers do atomic operations on them (transport RR3).
         "race:libfabric.so\n"
         // liburing maps and unmaps the memory of rings by calls of its own, which are not seen:
         // one ring's memory may lie where another thread's has been. What is in ours only one
         // thread uses.
         "race:io_uring_prep_rw\n";
}
