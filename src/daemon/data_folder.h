// The data folder of a daemon: whose it is, and that one process uses it. Not thread-safe.
//
//   DM11  A folder that is not this node's, of this database and profile, is refused before
//         anything in it is changed: another kind of daemon, name, database, profile, a newer
//         format, a damaged stamp, or files without a stamp.
//   DM12  The stamp is there, durable, before anything else is put into the folder; it is written
//         once and never changed. A start that failed before leaves a folder that is new.
//   DM13  Two processes never use one folder: the lock goes with the process, however it ends.
// The stamp's format is in docs/data_formats.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "io/file_system.h"

namespace strata::daemon {

// What kind of daemon has such folders. Lives as long as the program.
struct FolderKind {
  std::string_view what;              // "storage node": the stamp begins with "strata storage node"
  uint32_t format = 1;                // of what is in the folder; a higher one is refused
  bool (*is_name)(std::string_view);  // of nodes and profiles
  std::string_view remedy_of_damage;  // what to do where the stamp is damaged
  // What is in it is of one database and made with one profile, which the stamp names then.
  bool of_one_database = true;
};

struct FolderStamp {
  std::string name;
  uint64_t identity = 0;  // random, not 0
  // Of folders that are of one database; else nothing.
  uint64_t database_id = 0;
  std::string profile = {};
  bool operator==(const FolderStamp&) const = default;
};

[[nodiscard]] std::string encode(const FolderKind& kind, const FolderStamp& stamp);
// `path` is for messages. kDataLoss: damaged, or of another kind; unsupported: of a newer format.
StatusOr<FolderStamp> decode_stamp(const FolderKind& kind, std::string_view text,
                                   const std::string& path);

class DataFolder {
 public:
  // Makes the folder when absent, locks it and reads its stamp. Blocks. Errors: wrong_database
  // (DM11), in_use (DM13), kDataLoss and unsupported (DM11), the file system's.
  static StatusOr<std::unique_ptr<DataFolder>> open(FileSystem* files, const FolderKind& kind,
                                                    std::string directory);
  DataFolder(const DataFolder&) = delete;
  DataFolder& operator=(const DataFolder&) = delete;

  // Nothing: the folder is new.
  [[nodiscard]] const std::optional<FolderStamp>& stamp() const noexcept { return stamp_; }
  // DM11, for what is known without the registry. OK for a new folder.
  [[nodiscard]] Status check(std::string_view name, std::string_view profile) const;
  // DM11, for the rest.
  [[nodiscard]] Status check_database(uint64_t database_id) const;
  // Once, of a new folder (DM12). Blocks.
  Status write(const FolderStamp& stamp);

 private:
  DataFolder(FileSystem* files, const FolderKind& kind, std::string directory);
  [[nodiscard]] std::string path(std::string_view name) const;
  [[nodiscard]] Status refused(const std::string& why) const;
  Status check_contents();
  Status lock();
  Status read();

  FileSystem* const files_;
  const FolderKind& kind_;
  const std::string directory_;
  std::unique_ptr<FileLock> lock_;
  std::optional<FolderStamp> stamp_;
};

// 16 hexadecimal digits.
[[nodiscard]] std::string hex64(uint64_t value);

}  // namespace strata::daemon
