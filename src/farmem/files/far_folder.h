// A folder of files whose pages are in a memory node, not in the kernel's cache here: a FUSE file
// system over the folder, in the mount namespace of the caller. What is in the folder stays where
// it is; names, sizes and rights are the folder's own, and only the content goes through FarCache.
//
//   FM65  For the processes that see the mount the folder is as it was: each call does to it what
//         it would have done, with the caller's user and group as owner of what is made. Not there:
//         shared writable mappings, links, locks and extended attributes.
//   FM66  The kernel keeps no content of it (FOPEN_DIRECT_IO): each read is a request.
//   FM67  When this process ends, however it does, or the node is lost, who reads gets an error;
//         nobody waits. Nothing of the host is changed: the mount is gone with its namespace.
// One thread answers all. It waits for the disk and the node.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "farmem/files/far_cache.h"

namespace strata::farmem {

struct FarFolderOptions {
  std::string folder;                          // there is one
  FileCounters* counters;                      // outlive it
  std::function<void(const Status&)> on_lost;  // once, in a thread of the folder's
};

class FarFolder {
 public:
  // Gives the calling thread a mount namespace of its own; what it starts afterwards sees the
  // mount. As root. Error: kInvalidArgument, which says what is missing.
  static StatusOr<std::unique_ptr<FarFolder>> mount(std::unique_ptr<MemoryClient> client,
                                                    const FarFolderOptions& options);
  // Nobody may be using the folder any more, or gets errors.
  ~FarFolder();
  FarFolder(const FarFolder&) = delete;
  FarFolder& operator=(const FarFolder&) = delete;

  [[nodiscard]] MemoryClient& client() const noexcept { return cache_.client(); }

 private:
  // A file or folder that the kernel knows.
  struct Node {
    int fd = -1;  // O_PATH
    dev_t device = 0;
    ino_t inode = 0;
    uint64_t known = 0;   // so many times the kernel was told of it
    uint64_t opened = 0;  // handles
  };
  struct Entry {
    std::string name;
    ino_t inode = 0;
    uint32_t type = 0;
  };
  struct Handle {
    int fd = -1;
    uint64_t node = 0;
    std::vector<Entry> entries;  // of a folder, as it was when it was first read
  };
  struct Request;

  FarFolder(int fuse_fd, std::unique_ptr<MemoryClient> client, const FarFolderOptions& options);
  void serve() noexcept;
  void handle(const Request& request);
  int change(const Request& request);
  void begin(const Request& request);
  void look_up(const Request& request);
  void attributes(const Request& request);
  void set_attributes(const Request& request);
  void make_file(const Request& request);
  void make_other(const Request& request);
  void open_file(const Request& request);
  void open_folder(const Request& request);
  void read_folder(const Request& request);
  void read(const Request& request);
  void write(const Request& request);
  void sync(const Request& request);
  void close(const Request& request);
  void statistics(const Request& request);
  void forget(uint64_t node, uint64_t times);
  int entry_of(uint64_t folder, const char* name, void* entry);
  uint64_t add_handle(Handle handle);
  Handle* handle_of(uint64_t number);
  Node* node_of(uint64_t number);
  [[nodiscard]] std::string path_of(const Node& node) const;
  void answer(const Request& request, const void* out, size_t bytes) const noexcept;
  void refuse(const Request& request, int error) const noexcept;
  void check_lost();

  const int fuse_fd_;
  const FarFolderOptions options_;
  FarCache cache_;
  std::map<uint64_t, Node> nodes_;  // by the numbers that the kernel was given
  std::map<std::pair<dev_t, ino_t>, uint64_t> numbers_;
  std::map<uint64_t, Handle> handles_;
  uint64_t last_number_ = 1;
  uint64_t last_handle_ = 0;
  bool told_ = false;
  const std::unique_ptr<char[]> in_;
  const std::unique_ptr<char[]> out_;
  std::thread server_;
};

}  // namespace strata::farmem
