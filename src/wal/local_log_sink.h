// A log stream in local files: <directory>/log-<node>-<start lsn, 16 hex digits>.seg, fixed size,
// preallocated and zero filled, recycled by rename once below the checkpoint.
//   LS1  The first block (BlockWriter) of a segment is its header {magic, format, node, database
//        id, start lsn, bytes, crc32c}; a segment whose header does not verify is reported with
//        its path.
//   LS2  A segment is durable (header, size, directory entry) before the first append to it.
//   LS3  A name log-*.seg only ever stands for a complete segment: files are filled under a
//        spare-*.seg name and renamed; a recycled one is a spare, durably, before its header
//        changes.
//   LS4  After open() the first sync() covers whatever a reader has seen, in every segment.
//   LS6  Writes are whole blocks (direct I/O): what lies behind an append up to its
//        block's end is undefined after it. Nothing of the stream ever lies there (appends are in
//        order; erase_tail() of a LogReader blanks what an old life left).
//   LS5  Segments exist without a hole from the oldest one needed on: what stands before a hole
//        does not count, and reading there is kDataLoss.
//   LS7  reserve_segments spare files are only for prepare_reserved_room(): prepare_room() makes
//        its segments of others, and fails until as many are there. They are allocated, not filled:
//        slower to append to, and quick to make.
#pragma once

#include <memory>
#include <string>

#include "io/file_system.h"
#include "wal/log_sink.h"

namespace strata {

struct LocalLogOptions {
  std::string directory;
  NodeId node{1};
  uint64_t database_id = 0;
  uint64_t segment_bytes = 64u << 20;  // header included; whole blocks
  uint32_t spare_segments_max = 4;     // recycled files kept for reuse
  uint32_t reserve_segments = 0;       // LS7
  bool direct_io = true;               // writes; reads are buffered
  // Between two pieces of a new segment while nobody waits for it: commits want the disk, too.
  uint64_t fill_pause_us = 2000;
};

// Creates the stream (an empty directory) starting at `start`.
StatusOr<std::unique_ptr<LogSink>> create_local_log(FileSystem* fs, const LocalLogOptions& options,
                                                    Lsn start);
// Opens what is there. kDataLoss: foreign, damaged or missing segment (says which).
StatusOr<std::unique_ptr<LogSink>> open_local_log(FileSystem* fs, const LocalLogOptions& options);

}  // namespace strata
