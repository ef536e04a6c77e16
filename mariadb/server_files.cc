#include "mariadb/server_files.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "mariadb/connection.h"
#include "mariadb/error_map.h"
#include "mariadb/paths_of_server.h"

namespace strata::glue {

namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;  // "database/name" -> contents

constexpr int kRetryMs = 1000;
constexpr std::string_view kFilePrefix = "file/";  // keys of the kernel's journal
constexpr std::string_view kOwnerKey = "files-of";
constexpr uint32_t kEvents = IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_CREATE;

bool is_database(const std::string& folder) {
  for (const char* const own : {"mysql", "sys", "performance_schema", "lost+found"})
    if (folder == own) return false;
  return !folder.empty() && folder.front() != '#' && folder.front() != '.';
}

std::string contents_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Whether it is one of ours, and then what it holds.
bool read_file(const fs::path& path, std::string* contents) {
  const std::string extension = path.extension();
  const bool named = path.filename() == "db.opt" || extension == ".TRG" || extension == ".TRN";
  if (!named && extension != ".frm") return false;
  *contents = contents_of(path);
  return named || contents->starts_with("TYPE=VIEW");
}

Files read_folders() {
  Files files;
  std::error_code error;
  for (const fs::directory_entry& database : fs::directory_iterator(mysql_real_data_home, error)) {
    const std::string folder = database.path().filename();
    if (!is_database(folder) || !database.is_directory(error)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(database.path(), error)) {
      std::string contents;
      if (read_file(entry.path(), &contents))
        files[folder + "/" + entry.path().filename().string()] = std::move(contents);
    }
  }
  return files;
}

Files read_copies(uint64_t* owner) {
  Files files;
  kernel->for_each_journal([&](Bytes key, Bytes value) {
    if (key == kOwnerKey && value.size() == 8) *owner = load_u64(value.data());
    if (key.starts_with(kFilePrefix))
      files[std::string(key.substr(kFilePrefix.size()))] = std::string(value);
  });
  return files;
}

Status write_copies(const Files& before, const Files& now, uint64_t owner) {
  const std::unique_ptr<engine::Session> session = kernel->new_session();
  session->begin(engine::Isolation::kReadCommitted);
  std::string owner_value;
  append_u64(&owner_value, owner);
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

// SF1, in a folder that others went on without.
void give_copies(const Files& local, const Files& copies) {
  for (const auto& [name, contents] : local) {
    const auto copy = copies.find(name);
    if (copy != copies.end() && copy->second == contents) continue;
    std::string flat = name;
    std::replace(flat.begin(), flat.end(), '/', '.');
    move_to_replaced(mysql_real_data_home + name, flat);
  }
  for (const auto& [name, contents] : copies) {
    const auto there = local.find(name);
    if (there != local.end() && there->second == contents) continue;
    const fs::path path = mysql_real_data_home + name;
    std::error_code error;
    if (fs::create_directory(path.parent_path(), error))
      fs::permissions(path.parent_path(), fs::perms::owner_all, error);
    std::ofstream out(path, std::ios::binary | std::ios::trunc);
    out.write(contents.data(), static_cast<std::streamsize>(contents.size()));
    out.close();
    if (!out)
      sql_print_error("STRATA: cannot write %s, a view, trigger or database option", path.c_str());
  }
}

class Watcher {
 public:
  Watcher(Files copies, uint64_t owner) : copies_(std::move(copies)), owner_(owner) {
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
      while (::poll(ready, 2, copied_ ? -1 : kRetryMs) < 0 && errno == EINTR) {
      }
      stopping = (ready[1].revents & POLLIN) != 0;
      char events[4096];
      if ((ready[0].revents & POLLIN) != 0) (void)!::read(notify_, events, sizeof events);
    }
  }
  // Watching a folder again changes nothing.
  void watch_folders() {
    (void)::inotify_add_watch(notify_, mysql_real_data_home,
                              IN_CREATE | IN_MOVED_TO | IN_DELETE | IN_ONLYDIR);
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(mysql_real_data_home, error))
      if (is_database(entry.path().filename()) && entry.is_directory(error))
        (void)::inotify_add_watch(notify_, entry.path().c_str(), kEvents | IN_ONLYDIR);
  }
  void copy_changes() {
    Files now = read_folders();
    if (now == copies_ && copied_) return;
    const Status written = write_copies(copies_, now, owner_);
    copied_ = written.ok();
    if (written.ok()) {
      copies_ = std::move(now);
    } else {
      sql_print_error(
          "STRATA: views, triggers and database options could not be copied into the database: %s",
          std::string(written.message()).c_str());
    }
  }

  Files copies_;
  const uint64_t owner_;
  bool copied_ = false;  // once, so that the database knows whose files they are
  const int notify_ = ::inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  const int stop_ = ::eventfd(0, EFD_CLOEXEC);
  std::thread thread_;
};

std::unique_ptr<Watcher> watcher;

}  // namespace

void start_server_files(uint64_t folder) {
  uint64_t owner = 0;
  Files copies = read_copies(&owner);
  if (owner != 0 && owner != folder) give_copies(read_folders(), copies);
  watcher = std::make_unique<Watcher>(std::move(copies), folder);
}

void stop_server_files() { watcher.reset(); }

}  // namespace strata::glue
