// The data folder of a storage node: whose it is, and that one process uses it. Not thread-safe.
//
//   NF1  A folder that is not this node's, of this database and profile, is refused before anything
//        in it is changed: another name, database, profile, a newer format, a damaged stamp, or
//        files without a stamp.
//   NF2  The stamp is there, durable, before anything else is put into the folder; it is written
//        once and never changed.
//   NF3  Two processes never use one folder: the lock goes with the process, however it ends.
// The stamp's format is in docs/data_formats.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "io/file_system.h"

namespace strata::storenode {

struct NodeStamp {
  std::string name;
  uint64_t identity = 0;  // random, not 0
  uint64_t database_id = 0;
  std::string profile;
  bool operator==(const NodeStamp&) const = default;
};

[[nodiscard]] std::string encode(const NodeStamp& stamp);
// `path` is for messages. kDataLoss: damaged; unsupported: of a newer format.
StatusOr<NodeStamp> decode_stamp(std::string_view text, const std::string& path);

class NodeFolder {
 public:
  // Makes the folder when absent, locks it and reads its stamp. `files` is on the same disk as the
  // lock, the real one. Blocks. Errors: wrong_database (NF1, NF3), in_use, kDataLoss (NF1), the
  // file system's.
  static StatusOr<std::unique_ptr<NodeFolder>> open(FileSystem* files, std::string directory);
  ~NodeFolder();
  NodeFolder(const NodeFolder&) = delete;
  NodeFolder& operator=(const NodeFolder&) = delete;

  // Nothing: the folder is new.
  [[nodiscard]] const std::optional<NodeStamp>& stamp() const noexcept { return stamp_; }
  // NF1, for what is known without the registry. OK for a new folder.
  [[nodiscard]] Status check(std::string_view name, std::string_view profile) const;
  // NF1, for the rest.
  [[nodiscard]] Status check_database(uint64_t database_id) const;
  // Once, of a new folder (NF2). Blocks.
  Status write(const NodeStamp& stamp);

 private:
  NodeFolder(FileSystem* files, std::string directory);
  [[nodiscard]] std::string path(std::string_view name) const;
  [[nodiscard]] Status refused(const std::string& why) const;
  Status check_contents();
  Status lock();
  Status read();

  FileSystem* const files_;
  const std::string directory_;
  int lock_fd_ = -1;
  std::optional<NodeStamp> stamp_;
};

// 16 hexadecimal digits.
[[nodiscard]] std::string hex64(uint64_t value);

}  // namespace strata::storenode
