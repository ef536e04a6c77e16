// Writes a trace (trace_format.h) while a program runs. For the pager's thread: it touches no
// memory but its own mappings, and takes no latch. Every 4 MiB it asks the file system for more
// room. It keeps no descriptor: a program may close all it finds, and then have another file at
// the number.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "farmem/policy/policy_options.h"
#include "farmem/trace/trace_format.h"

namespace strata::farmem {

struct TraceAbout {
  PolicyOptions policy;
  uint64_t pages = 0;  // of the region
  uint64_t pid = 0;
  std::string name = {};
};

class TraceWriter {
 public:
  // Replaces what is in the file. Errors: kIoError, kNoSpace, which say which file.
  static StatusOr<std::unique_ptr<TraceWriter>> create(const std::string& path,
                                                       const TraceAbout& about);
  ~TraceWriter();  // the file is as long as its records then
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // When the file system has no more room, this and all later ones are not recorded, and the
  // header says so.
  void add(TraceKind kind, uint64_t page, uint64_t pages = 0, uint8_t flags = 0) noexcept;
  // Of the last record, if it is a fault: nobody waited after it.
  void mark_quiet() noexcept;

 private:
  TraceWriter(std::string path, uint64_t inode, TraceHeader* header, uint64_t begin_us) noexcept
      : path_(std::move(path)), inode_(inode), header_(header), begin_us_(begin_us) {}
  bool next_chunk() noexcept;

  const std::string path_;
  const uint64_t inode_;
  TraceHeader* const header_;
  const uint64_t begin_us_;
  uint64_t chunks_ = 0;
  TraceRecord* chunk_ = nullptr;
  uint64_t used_ = 0;  // records of the chunk
};

// As long as its records: for a process that was ended. What is no trace is left alone.
void trim_trace(const std::string& path) noexcept;

}  // namespace strata::farmem
