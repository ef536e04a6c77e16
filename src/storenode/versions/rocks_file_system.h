// RocksDB on strata::FileSystem, so that what loses power in tests and in crash campaigns
// (io/README.md) takes RocksDB's files along. Without it RocksDB uses its own POSIX files.
#pragma once

#include <memory>

#include "io/file_system.h"
#include "rocksdb/env.h"

namespace strata::storenode {

// `files` must outlive the result. Background threads are those of rocksdb::Env::Default().
// Locks of files only keep out the same process: the caller's data folder has a lock of its own.
std::unique_ptr<rocksdb::Env> make_rocks_env(FileSystem* files);

}  // namespace strata::storenode
