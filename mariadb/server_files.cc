#include "mariadb/server_files.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "io/file_system.h"
#include "mariadb/connection.h"
#include "mariadb/error_map.h"
#include "mariadb/paths_of_server.h"

namespace strata::glue {

namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;  // "database/name" -> contents

constexpr int kRetryMs = 1000;
constexpr size_t kEventBytes = 4096;               // of inotify, read at once
constexpr std::string_view kFilePrefix = "file/";  // keys of the kernel's journal
constexpr std::string_view kOwnerKey = "files-of";
constexpr std::string_view kViewBegins = "TYPE=VIEW";
constexpr uint32_t kEvents = IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_CREATE;

// Files that went away meanwhile are as if they had not been there.
Status read_file(FileSystem* disk, const std::string& path, Files* files, const std::string& name) {
  const std::string extension = fs::path(path).extension();
  const bool named = name.ends_with("/db.opt") || extension == ".TRG" || extension == ".TRN";
  if (!named && extension != ".frm") return ok_status();
  // Not every definition file of ours is opened whenever one of them changes (definition_files.h).
  const fs::path folder_and_name(name);
  if (!named &&
      kernel->table_exists(folder_and_name.parent_path().string(), folder_and_name.stem().string()))
    return ok_status();
  // Closed after writing, it would be an event, to which the watcher comes here again.
  const auto file = disk->open(path, {.read_only = true});
  if (is_not_found(file.status())) return ok_status();
  STRATA_RETURN_IF_ERROR(file.status());
  STRATA_ASSIGN_OR_RETURN(const uint64_t bytes, (*file)->size());
  std::string contents(bytes, '\0');
  size_t got = 0;
  STRATA_RETURN_IF_ERROR((*file)->read_at(0, contents.data(), contents.size(), &got));
  contents.resize(got);
  if (named || contents.starts_with(kViewBegins)) (*files)[name] = std::move(contents);
  return ok_status();
}

// All or an error (SF3).
StatusOr<Files> read_folders(FileSystem* disk) {
  Files files;
  STRATA_ASSIGN_OR_RETURN(const std::vector<std::string> folders, disk->list(mysql_real_data_home));
  for (const std::string& folder : folders) {
    const std::string path = mysql_real_data_home + folder;
    std::error_code error;
    if (!is_database_folder(folder) || !fs::is_directory(path, error)) continue;
    const auto names = disk->list(path);
    if (is_not_found(names.status())) continue;
    STRATA_RETURN_IF_ERROR(names.status());
    for (const std::string& name : *names)
      STRATA_RETURN_IF_ERROR(read_file(disk, path + "/" + name, &files, folder + "/" + name));
  }
  return files;
}

// Who had the database last, and in which life of his machine.
struct Owner {
  uint64_t folder = 0;  // 0: nobody
  uint64_t boot = 0;
};

uint64_t this_boot() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(in, text);
  return std::hash<std::string>{}(text);
}

StatusOr<Files> read_copies(Owner* owner) {
  Files files;
  STRATA_RETURN_IF_ERROR(kernel->for_each_journal([&](Bytes key, Bytes value) {
    if (key == kOwnerKey && value.size() == 16)
      *owner = {load_u64(value.data()), load_u64(value.data() + 8)};
    if (key.starts_with(kFilePrefix))
      files[std::string(key.substr(kFilePrefix.size()))] = std::string(value);
  }));
  return files;
}

Status write_copies(const Files& before, const Files& now, const Owner& owner) {
  const std::unique_ptr<engine::Session> session = kernel->new_session();
  session->begin(engine::Isolation::kReadCommitted);
  std::string owner_value;
  append_u64(&owner_value, owner.folder);
  append_u64(&owner_value, owner.boot);
  STRATA_RETURN_IF_ERROR(session->journal_put(kOwnerKey, owner_value));
  for (const auto& [name, contents] : now) {
    const auto old = before.find(name);
    if (old != before.end() && old->second == contents) continue;
    STRATA_RETURN_IF_ERROR(session->journal_put(std::string(kFilePrefix) + name, contents));
  }
  for (const auto& [name, contents] : before)
    if (!now.contains(name))
      STRATA_RETURN_IF_ERROR(session->journal_erase(std::string(kFilePrefix) + name));
  return session->commit();
}

// Durable when this returns.
Status write_file(FileSystem* disk, const std::string& name, const std::string& contents) {
  const std::string folder = mysql_real_data_home + name.substr(0, name.find('/'));
  STRATA_RETURN_IF_ERROR(disk->make_directory(folder));
  const std::string path = mysql_real_data_home + name;
  {
    STRATA_ASSIGN_OR_RETURN(const auto file, disk->open(path, {.create = true}));
    STRATA_RETURN_IF_ERROR(file->truncate(0));
    STRATA_RETURN_IF_ERROR(file->write_at(0, contents.data(), contents.size()));
    STRATA_RETURN_IF_ERROR(file->sync_data());
  }
  STRATA_RETURN_IF_ERROR(disk->sync_directory(folder));
  return disk->sync_directory(mysql_real_data_home);
}

// SF1. `all`: the folder is not the last one, and what it has of its own does not count.
Status give_copies(FileSystem* disk, const Files& copies, bool all) {
  STRATA_ASSIGN_OR_RETURN(const Files local, read_folders(disk));
  for (const auto& [name, contents] : local) {
    const auto copy = copies.find(name);
    if (!all || (copy != copies.end() && copy->second == contents)) continue;
    std::string flat = name;
    std::replace(flat.begin(), flat.end(), '/', '.');
    move_to_replaced(mysql_real_data_home + name, flat);
  }
  for (const auto& [name, contents] : copies) {
    const auto there = local.find(name);
    const bool has = there != local.end() && !there->second.empty();
    if (has && (!all || there->second == contents)) continue;
    STRATA_RETURN_IF_ERROR(write_file(disk, name, contents));
  }
  return ok_status();
}

void report_failure(const char* what, const Status& status) {
  sql_print_error("STRATA: views, triggers and database options could not be %s: %s", what,
                  std::string(status.message()).c_str());
}

class Watcher {
 public:
  Watcher(std::unique_ptr<FileSystem> disk, Files copies, const Owner& owner)
      : disk_(std::move(disk)), copies_(std::move(copies)), owner_(owner) {
    thread_ = std::thread([this] { run(); });
  }
  ~Watcher() {
    const uint64_t one = 1;
    (void)!::write(stop_, &one, sizeof one);
    thread_.join();
    ::close(stop_);
    ::close(notify_);
  }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  void run() {
    for (bool stopping = false;;) {
      (void)guarded([&] {  // what goes on in folders may throw
        watch_folders();
        copy_changes();
        return 0;
      });
      if (stopping) return;
      pollfd ready[] = {{notify_, POLLIN, 0}, {stop_, POLLIN, 0}};
      while (::poll(ready, 2, copied_ && told_of_all_ ? -1 : kRetryMs) < 0 && errno == EINTR) {
      }
      stopping = (ready[1].revents & POLLIN) != 0;
      char events[kEventBytes];
      if ((ready[0].revents & POLLIN) != 0) (void)!::read(notify_, events, sizeof events);
    }
  }
  // Watching a folder again changes nothing. Where the system watches no more, it is looked at once
  // a second instead.
  void watch_folders() {
    told_of_all_ = watch(mysql_real_data_home, IN_CREATE | IN_MOVED_TO | IN_DELETE);
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(mysql_real_data_home, error))
      if (is_database_folder(entry.path().filename()) && entry.is_directory(error))
        told_of_all_ &= watch(entry.path().c_str(), kEvents);
  }
  bool watch(const char* folder, uint32_t events) const {
    return ::inotify_add_watch(notify_, folder, events | IN_ONLYDIR) >= 0 || errno == ENOENT;
  }
  void copy_changes() {
    StatusOr<Files> now = read_folders(disk_.get());
    if (now.ok() && copied_ && *now == copies_) return;
    const Status written = now.ok() ? write_copies(copies_, *now, owner_) : now.status();
    if (written.ok()) {
      copies_ = *std::move(now);
    } else if (copied_ || !reported_) {  // once; it is tried again every second
      report_failure("copied into the database", written);
      reported_ = true;
    }
    copied_ = written.ok();
  }

  const std::unique_ptr<FileSystem> disk_;
  Files copies_;
  const Owner owner_;
  bool copied_ = false;  // once, so that the database knows whose files they are
  bool reported_ = false;
  bool told_of_all_ = false;
  const int notify_ = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  const int stop_ = ::eventfd(0, EFD_CLOEXEC);
  std::thread thread_;
};

std::unique_ptr<Watcher> watcher;

}  // namespace

void start_server_files(uint64_t folder) {
  std::unique_ptr<FileSystem> disk = make_posix_file_system();
  Owner before;
  StatusOr<Files> read = read_copies(&before);
  if (!read.ok()) {
    report_failure("read, and changes of them will not be kept until they are (at the next start)",
                   read.status());
    return;  // SF3
  }
  Files copies = std::move(read).value();
  const Owner now{folder, this_boot()};
  const bool others = before.folder != 0 && before.folder != folder;
  if (others || (before.folder == folder && before.boot != now.boot)) {
    if (const Status given = give_copies(disk.get(), copies, others); !given.ok()) {
      report_failure(
          "given to this folder, and changes of them will not be kept until they are (at "
          "the next start)",
          given);
      return;  // SF3
    }
  }
  watcher = std::make_unique<Watcher>(std::move(disk), std::move(copies), now);
}

void stop_server_files() { watcher.reset(); }

}  // namespace strata::glue
