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
//   LS8  What is durable can be read beside the writer, past the operating system's cache, in which
//        a direct write may leave an older state of its block. The caller sees to it that the
//        segments stay (bufpool CP8).
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "base/aligned.h"
#include "base/bytes.h"
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

// LS8, for a copy of the log. One thread.
class DurableLogReader {
 public:
  DurableLogReader(FileSystem* fs, LocalLogOptions options)
      : fs_(fs), options_(std::move(options)) {}
  // Some bytes from `at` on, at least one and none from `end` on, which is durable; valid until the
  // next call. Blocks.
  StatusOr<Bytes> read(Lsn at, Lsn end);

 private:
  static constexpr size_t kChunk = 1u << 20;
  Status open_segment_of(Lsn at);
  FileSystem* const fs_;
  const LocalLogOptions options_;
  std::unique_ptr<File> file_;
  uint64_t start_ = 0;  // of the open segment: the Lsn of its first data byte
  AlignedBytes buffer_{kChunk};
};

}  // namespace strata
