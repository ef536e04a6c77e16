// The journal of the power-loss file system: what happened to files since they were last synced.
// Written by the server under test (power_loss.cc), read by the tool after a kill
// (power_loss_revert.cc).
//   record:  magic u32 | payload bytes u32 | crc32c of the payload u32 | payload
//   payload: kind u8 | seq u64 | file u64 | a u64 | b u64 | c u64 | d u64 | path | path2 | data
//            (the last three as u32 length, bytes)
// A record is appended with one write() before the change it describes, a sync mark after the sync:
// what the page cache holds survives the death of the process. The last record may be cut off.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "io/internal/unsynced.h"

namespace strata::power_loss {

enum class RecordKind : uint8_t {
  kFile = 1,    // file `file` is at `path`
  kCreate = 2,  // ... and was made just now
  kChange = 3,  // a, b, c, d: FileChange offset, bytes, old size, new size; data: before
  kSync = 4,    // file synced: changes with seq < a are durable, but for those in data (u64 each)
  kRename = 5,  // file moved from path to path2; b: file that path2 named before (0: none), kept
                // in data (a path; empty: not kept)
  kRemove = 6,  // path removed; the file is kept in path2 (empty: not kept)
  kCancel = 8,  // the change of a name with seq a failed and was not made
  kSyncDirectory = 7,  // names in folder `path` are durable as far as seq < a
};

struct Record {
  RecordKind kind = RecordKind::kFile;
  uint64_t seq = 0;
  uint64_t file = 0;
  uint64_t a = 0;
  uint64_t b = 0;
  uint64_t c = 0;
  uint64_t d = 0;
  std::string path;
  std::string path2;
  std::string data;
};

void append_record(std::string* out, const Record& record);
// Takes the record at the start of *in; nothing at the end or at damage.
std::optional<Record> take_record(Bytes* in);

Record change_record(uint64_t seq, uint64_t file, const FileChange& change);
FileChange change_of(const Record& record);

// Where the power-loss file system keeps removed files until their removal is durable.
std::string kept_folder_of(const std::string& journal_path);
// Removes what an earlier life left there. Best effort.
void empty_kept_folder(const std::string& journal_path);

}  // namespace strata::power_loss
